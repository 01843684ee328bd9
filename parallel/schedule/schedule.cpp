// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/schedule/schedule.hpp"

#include <algorithm>
#include <cstddef>

namespace mylos {

std::vector<int> Schedule::slots() const {
  std::vector<int> slot(static_cast<std::size_t>(micro_batches), -1);
  std::vector<bool> taken;
  for (const Action& action : repeat) {
    int& own = slot[static_cast<std::size_t>(action.micro_batch)];
    if (action.kind == ActionKind::forward) {
      const auto free = std::ranges::find(taken, false);
      own = static_cast<int>(free - taken.begin());
      if (free == taken.end()) taken.push_back(true);
      taken[static_cast<std::size_t>(own)] = true;
    } else if (action.kind == ActionKind::backward) {
      taken[static_cast<std::size_t>(own)] = false;
    }
  }
  return slot;
}

}  // namespace mylos
