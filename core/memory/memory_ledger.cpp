// SPDX-License-Identifier: BSD-3-Clause
#include "core/memory/memory_ledger.hpp"

#include "core/base/error.hpp"

namespace mylos {

namespace {

void raise_to(std::atomic<std::size_t>& peak, std::size_t value) {
  std::size_t seen = peak.load();
  while (seen < value && !peak.compare_exchange_weak(seen, value)) {
  }
}

}  // namespace

void MemoryLedger::charge(MemoryCategory category, std::size_t bytes) {
  const auto i = static_cast<std::size_t>(category);
  raise_to(peak_[i], current_[i] += bytes);
  raise_to(peak_total_, total_ += bytes);
  ++num_charges_;
}

void MemoryLedger::release(MemoryCategory category, std::size_t bytes) {
  const auto i = static_cast<std::size_t>(category);
  require(current_[i] >= bytes, "the ledger releases no more than was charged");
  current_[i] -= bytes;
  total_ -= bytes;
}

}  // namespace mylos
