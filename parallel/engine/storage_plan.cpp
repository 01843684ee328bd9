// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/storage_plan.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

namespace mylos {

namespace {

using Intervals = std::vector<LiveInterval>;

/// A result and an operand that may share memory.
struct SharedPair {
  int result = 0;
  int operand = 0;
  std::set<std::int64_t> ticks;
};

/// Whether result and operand are never live at the same time, except at `ticks`, when the result replaces
/// the operand.
bool follows(const Intervals& result, const Intervals& operand, const std::set<std::int64_t>& ticks) {
  auto r = result.begin();
  auto o = operand.begin();
  while (r != result.end() && o != operand.end()) {
    const bool is_replaced = o->last == r->first && ticks.contains(r->first);
    if (o->last < r->first || is_replaced) {
      ++o;
    } else if (r->last < o->first) {
      ++r;
    } else {
      return false;
    }
  }
  return true;
}

/// The intervals of `a` and `b` in order; intervals that share ticks are joined.
Intervals merged(const Intervals& a, const Intervals& b) {
  Intervals all;
  std::ranges::merge(a, b, std::back_inserter(all), {}, &LiveInterval::first, &LiveInterval::first);
  Intervals joined;
  for (const LiveInterval& live : all) {
    if (!joined.empty() && live.first <= joined.back().last) {
      joined.back().last = std::max(joined.back().last, live.last);
    } else {
      joined.push_back(live);
    }
  }
  return joined;
}

/// Collects, for the storages of one slot or for those of none, the intervals in which they hold a value that
/// is still to be read.
class Lifetimes {
 public:
  explicit Lifetimes(const Storages& storages)
      : storages_(storages), live_(storages.all().size()), is_reduced_(storages.all().size()) {}

  void load(std::string_view name, std::int64_t tick) {
    if (const int storage = storages_.find(name); storage >= 0) write({storage}, tick);
  }

  /// Adds the accesses of an entry to the storages for which `is_own` holds.
  void add(const Entry& entry, std::int64_t tick, const auto& is_own) {
    const auto each = [&](const auto& visit) {
      for_each_place(entry, [&](const Place& place, Access access) {
        if (is_own(storages_.at(place.storage))) visit(place, access);
      });
    };
    each([&](const Place& place, Access access) {
      if (is_gradient(place.storage)) return contribute(entry, place, access, tick);
      if (access == Access::read || access == Access::update) read(entry, place, tick);
    });
    each([&](const Place& place, Access access) {
      if (is_gradient(place.storage)) return;
      if (access == Access::write || access == Access::scratch) write(place, tick);
    });
    for_each_in_place(entry, [&](const TensorRef& result, const TensorRef& operand) {
      const std::size_t bytes = result.bytes();
      const int to = place_of(result).storage;
      const int from = place_of(operand).storage;
      const auto is_whole = [&](int storage) {
        const Storage& own = storages_.at(storage);
        return own.kind == StorageKind::activation && is_own(own) && own.bytes == bytes;
      };
      if (is_whole(to) && is_whole(from)) share(to, from, tick);
    });
  }

  /// Gives each result the memory of an operand that it may replace, if `follows` holds for the two.
  /// Sets the buffer, in the arena of its category, of each storage that is used: the same one if storages
  /// share memory.
  void place(std::map<ArenaKey, ArenaPlan>& arenas, std::vector<int>& buffers) {
    std::vector<int> owner(live_.size());
    std::iota(owner.begin(), owner.end(), 0);
    const auto owner_of = [&](int storage) {
      while (owner[index(storage)] != storage) storage = owner[index(storage)];
      return storage;
    };
    for (const SharedPair& pair : pairs_) {
      const int result = owner_of(pair.result);
      const int operand = owner_of(pair.operand);
      if (result == operand || !follows(of(result), of(operand), pair.ticks)) continue;
      of(operand) = merged(of(operand), of(result));
      owner[index(result)] = operand;
    }
    std::vector<int> own_buffers(live_.size(), -1);
    for (int storage = 0; storage < std::ssize(live_); ++storage) {
      const int own = owner_of(storage);
      if (of(own).empty()) continue;
      int& buffer = own_buffers[index(own)];
      if (buffer < 0) buffer = arenas[arena_of(storages_.at(own))].add(storages_.at(own).bytes, of(own));
      buffers[index(storage)] = buffer;
    }
  }

 private:
  static std::size_t index(int storage) { return static_cast<std::size_t>(storage); }
  Intervals& of(int storage) { return live_[index(storage)]; }
  bool is_gradient(int storage) const { return storages_.at(storage).kind == StorageKind::gradients; }

  void read(const Entry& entry, const Place& place, std::int64_t tick) {
    Intervals& live = of(place.storage);
    // Where steps overlap, a pass awaits what is not yet under way at the beginning of the run.
    if (live.empty() && std::holds_alternative<Await>(entry.operation)) return;
    if (live.empty()) {
      fail(ExitCode::internal, "{}:{}: reads {}, which nothing has written", entry.where.file_name(),
           entry.where.line(), storages_.at(place.storage).name);
    }
    live.back().last = std::max(live.back().last, tick);
  }
  /// A write at a positive offset continues the value that the write at offset 0 began.
  void write(const Place& place, std::int64_t tick) {
    Intervals& live = of(place.storage);
    if (place.offset > 0 && !live.empty()) {
      live.back().last = std::max(live.back().last, tick);
      return;
    }
    require(live.empty() || live.back().last < tick, "an operation does not read what it writes");
    live.push_back({tick, tick});
  }
  /// A gradient lives from its first contribution, wherever that lies, until the call that reduces all of it
  /// is awaited.
  void contribute(const Entry& entry, const Place& place, Access access, std::int64_t tick) {
    if (access == Access::read) {
      const std::optional<GroupedCall> reduction = call_of(entry);
      if (reduction && reduction->call.input.bytes() == storages_.at(place.storage).bytes)
        is_reduced_[index(place.storage)] = true;
      return read(entry, place, tick);
    }
    Intervals& live = of(place.storage);
    if (live.empty() || is_reduced_[index(place.storage)]) live.push_back({tick, tick});
    is_reduced_[index(place.storage)] = false;
    live.back().last = tick;
  }
  void share(int result, int operand, std::int64_t tick) {
    const auto is_same = [&](const SharedPair& pair) {
      return pair.result == result && pair.operand == operand;
    };
    auto found = std::ranges::find_if(pairs_, is_same);
    if (found == pairs_.end()) found = pairs_.insert(found, {result, operand, {}});
    found->ticks.insert(tick);
  }

  const Storages& storages_;
  std::vector<Intervals> live_;    // by storage
  std::vector<bool> is_reduced_;   // by storage: of gradients
  std::vector<SharedPair> pairs_;  // in the order of execution
};

}  // namespace

StoragePlan::StoragePlan(const Storages& storages, const std::vector<Entry>& pool,
                         const std::vector<Passage>& passages)
    : storages_(storages) {
  int num_slots = 0;
  for (const Passage& passage : passages) num_slots = std::max(num_slots, passage.slot + 1);
  std::vector<Lifetimes> of_slots(static_cast<std::size_t>(num_slots), Lifetimes(storages));
  Lifetimes of_none(storages);
  const auto is_of_slot = [](const Storage& storage) { return storage.kind == StorageKind::activation; };
  const auto is_of_none = [](const Storage& storage) {
    return storage.kind != StorageKind::activation && storage.kind != StorageKind::bound && !storage.persists;
  };
  std::int64_t tick = 0;
  for (const Passage& passage : passages) {
    for (int slot = passage.slot; slot < passage.slot + passage.loads; ++slot) {
      for (const char* name : {"tokens", "targets", "rows", "positions"})
        of_slots[static_cast<std::size_t>(slot)].load(passage.prefix + name, tick);
    }
    for_each_entry(*passage.pass, pool, [&](const Entry& entry, const EntryPlace& place) {
      const int slot = place.slot < 0 ? passage.slot : place.slot;
      of_slots[static_cast<std::size_t>(slot)].add(entry, tick, is_of_slot);
      of_none.add(entry, tick, is_of_none);
      ++tick;
    });
  }
  arenas_[ArenaKey()];  // of activations: the executor always has one
  std::vector<int> common(storages.all().size(), -1);
  of_none.place(arenas_, common);
  for (Lifetimes& slot : of_slots) {
    places_.push_back(common);
    slot.place(arenas_, places_.back());
  }
  for (auto& [key, arena] : arenas_) arena.solve();
}

std::map<ArenaKey, std::size_t> StoragePlan::arenas() const {
  std::map<ArenaKey, std::size_t> bytes;
  for (const auto& [key, arena] : arenas_) bytes[key] = arena.bytes();
  return bytes;
}

std::size_t StoragePlan::bytes(MemoryCategory category) const {
  std::size_t sum = 0;
  for (const auto& [key, arena] : arenas_) sum += key.category == category ? arena.bytes() : 0;
  return sum;
}

}  // namespace mylos
