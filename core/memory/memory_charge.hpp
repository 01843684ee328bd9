// SPDX-License-Identifier: BSD-3-Clause
// MemoryCharge: bytes that the ledger counts during the lifetime of the object.
#pragma once

#include <cstddef>
#include <memory>

#include "core/memory/memory_ledger.hpp"

namespace mylos {

/// Needed only for memory other than DeviceBuffers, which charge themselves. Move-only.
class MemoryCharge {
 public:
  MemoryCharge() = default;
  /// `ledger` must outlive this object. If it is null, nothing is charged.
  MemoryCharge(MemoryLedger* ledger, MemoryCategory category, std::size_t bytes)
      : ledger_(ledger, Release{category, bytes}) {
    if (ledger != nullptr) ledger->charge(category, bytes);
  }

  std::size_t bytes() const { return ledger_.get_deleter().bytes; }

 private:
  struct Release {
    MemoryCategory category;
    std::size_t bytes;
    void operator()(MemoryLedger* ledger) const { ledger->release(category, bytes); }
  };

  std::unique_ptr<MemoryLedger, Release> ledger_;
};

}  // namespace mylos
