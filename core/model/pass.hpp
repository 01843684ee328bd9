// SPDX-License-Identifier: BSD-3-Clause
// Pass: one run of a program, with the entries that a strategy of parallelism inserted between the program's
// own. Passes of a program share its entries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/model/program.hpp"

namespace mylos {

/// An entry that runs before or after entry `index` of a program.
struct Insertion {
  std::uint32_t index = 0;
  bool is_after = false;
  int entry = 0;  ///< number of the inserted entry, among those of all passes
  int slot = -1;  ///< of the activations that the entry works on; -1: that of the pass

  bool operator==(const Insertion&) const = default;
  /// Compares the places.
  bool operator<(const Insertion& other) const {
    return index != other.index ? index < other.index : !is_after && other.is_after;
  }
};

struct Pass {
  const Program* program = nullptr;
  int micro_batch = -1;   ///< -1 outside a step
  bool is_first = false;  ///< no earlier pass of the step adds to the gradients that this one adds to
  bool is_last = false;   ///< no later pass of the step adds to the gradients that this one completes
  std::vector<Insertion> inserted{};

  /// Inserts behind the insertions that are at the same place already.
  void insert(const Insertion& insertion) {
    inserted.insert(std::upper_bound(inserted.begin(), inserted.end(), insertion), insertion);
  }
};

/// Where an entry of a pass comes from.
struct EntryPlace {
  std::size_t index = 0;  ///< in the program, of the entry or, if it was inserted, of its neighbour
  bool is_inserted = false;
  int slot = -1;  ///< Insertion::slot
};

/// Calls visit(entry, place) for the entries of a pass in order. `pool` has the inserted entries of all
/// passes.
void for_each_entry(const Pass& pass, const std::vector<Entry>& pool, const auto& visit) {
  auto next = pass.inserted.begin();
  const auto visit_inserted = [&](const Insertion& until) {
    for (; next != pass.inserted.end() && !(until < *next); ++next)
      visit(pool[static_cast<std::size_t>(next->entry)], EntryPlace{next->index, true, next->slot});
  };
  const std::vector<Entry>& entries = pass.program->entries;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto index = static_cast<std::uint32_t>(i);
    visit_inserted({.index = index});
    visit(entries[i], EntryPlace{.index = i});
    visit_inserted({.index = index, .is_after = true});
  }
  visit_inserted({.index = UINT32_MAX, .is_after = true});
}

}  // namespace mylos
