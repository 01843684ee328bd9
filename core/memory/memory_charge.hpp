// SPDX-License-Identifier: BSD-3-Clause
// MemoryCharge: bytes that the ledger counts during the lifetime of the object.
#pragma once

#include <cstddef>
#include <utility>

#include "core/memory/memory_ledger.hpp"

namespace mylos {

/// Needed only for memory outside DeviceBuffer and PinnedBuffer, which contain a charge. Move-only.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  /// `ledger` must outlive this object. If it is null, nothing is charged.
  MemoryCharge(MemoryLedger* ledger, MemoryCategory category, std::size_t bytes)
      : ledger_(ledger), category_(category), bytes_(bytes) {
    if (ledger_ != nullptr) ledger_->charge(category_, bytes_);
  }
  ~MemoryCharge() {
    if (ledger_ != nullptr) ledger_->release(category_, bytes_);
  }
  MemoryCharge(MemoryCharge&& other) noexcept
      : ledger_(std::exchange(other.ledger_, nullptr)),
        category_(other.category_),
        bytes_(std::exchange(other.bytes_, 0)) {}
  /// Releases the charge held so far.
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    MemoryCharge taken(std::move(other));
    std::swap(ledger_, taken.ledger_);
    std::swap(category_, taken.category_);
    std::swap(bytes_, taken.bytes_);
    return *this;
  }

  std::size_t bytes() const { return bytes_; }

 private:
  MemoryLedger* ledger_ = nullptr;
  MemoryCategory category_ = MemoryCategory::workspace;
  std::size_t bytes_ = 0;
};

}  // namespace mylos
