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
  MemoryCharge(MemoryCharge&& other) noexcept { *this = std::move(other); }
  MemoryCharge& operator=(MemoryCharge&& other) noexcept {
    std::swap(ledger_, other.ledger_);
    std::swap(category_, other.category_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::size_t bytes() const { return bytes_; }

 private:
  MemoryLedger* ledger_ = nullptr;
  MemoryCategory category_ = MemoryCategory::workspace;
  std::size_t bytes_ = 0;
};

}  // namespace mylos
