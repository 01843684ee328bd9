// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/collective_schedule.hpp"

#include <iterator>

#include "parallel/collectives/algorithms.hpp"

namespace mylos {

CollectiveSchedule make_schedule(const CollectiveCall& call, Algorithm algorithm, int rank) {
  require(call.operation <= CommOperation::all_to_all, "a collective with equal parts");
  require(call.count >= 0 && rank >= 0 && rank < call.size, "a rank of the group and a count");
  require(call.root >= 0 && call.root < call.size, "a root of the group");
  require(algorithm != Algorithm::native, "the native algorithm has no schedule");
  constexpr decltype(&add_naive) adders[] = {nullptr, add_naive, add_tree, add_ring, add_halving_doubling};
  static_assert(std::size(adders) == std::size(all_algorithms));
  ScheduleBuilder builder;
  adders[static_cast<std::size_t>(algorithm)](builder, call, whole_order(call, rank));
  return builder.take();
}

}  // namespace mylos
