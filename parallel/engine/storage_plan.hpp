// SPDX-License-Identifier: BSD-3-Clause
// StoragePlan: places every value that does not live for the whole run, given what the passes of a schedule
// read and write.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "core/memory/arena.hpp"
#include "core/model/pass.hpp"
#include "core/model/recorder.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// One item in the order of execution.
struct Passage {
  const Pass* pass = nullptr;
  int slot = 0;          ///< of the micro-batch; micro-batches in flight have separate activations
  int loads = 1;         ///< the slots whose inputs are loaded before it: its own and those that follow
  std::string prefix{};  ///< of the names of the inputs (CachedPass)
};

/// An arena: the storages of a category that the same ranks may share.
struct ArenaKey {
  MemoryCategory category = MemoryCategory::activations;
  AxisSet window{};

  auto operator<=>(const ArenaKey&) const = default;
};
inline ArenaKey arena_of(const Storage& storage) {
  return {storage.category, storage.window};
}

/// The offsets of the values in the arenas. Each slot has its own
/// activations; other values belong to no micro-batch. A tick of the plan is an entry. A storage has one
/// place, which its values take one after another.
class StoragePlan {
 public:
  /// `pool` has the inserted entries of the passes. Throws ExitCode::internal, with the entry's source line,
  /// if an entry reads a value that no entry has written.
  StoragePlan(const Storages& storages, const std::vector<Entry>& pool, const std::vector<Passage>& passages);

  /// The bytes of each arena; of all arenas of a category.
  std::map<ArenaKey, std::size_t> arenas() const;
  std::size_t bytes(MemoryCategory category) const;
  int num_slots() const { return static_cast<int>(places_.size()); }
  /// Whether the slot's passes use the storage, and the offset in its arena.
  bool has(int slot, int storage) const { return place(slot, storage) >= 0; }
  std::size_t offset(int slot, int storage) const {
    return arenas_.at(arena_of(storages_.at(storage))).offset(place(slot, storage));
  }

 private:
  int place(int slot, int storage) const {
    return places_[static_cast<std::size_t>(slot)][static_cast<std::size_t>(storage)];
  }

  const Storages& storages_;
  std::map<ArenaKey, ArenaPlan> arenas_;
  // Buffers of the arenas, by slot and storage; -1 if the slot does not use the storage.
  std::vector<std::vector<int>> places_;
};

}  // namespace mylos
