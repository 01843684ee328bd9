// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/collectives/collective_schedule.hpp"

#include "parallel/collectives/algorithms.hpp"

namespace mylos {

CollectiveSchedule make_schedule(const CollectiveCall& call, Algorithm algorithm, int rank) {
  require(call.operation <= CommOperation::all_to_all, "a schedule is for a collective of equal parts");
  require(call.count >= 0 && rank >= 0 && rank < call.size, "a rank of the group and a count");
  require(call.root >= 0 && call.root < call.size, "a root of the group");
  ScheduleBuilder builder;
  const RankOrder order = whole_order(call, rank);
  switch (algorithm) {
    case Algorithm::native:
      fail(ExitCode::internal, "the native algorithm has no schedule");
    case Algorithm::naive:
      add_naive(builder, call, order);
      break;
    case Algorithm::tree:
      add_tree(builder, call, order);
      break;
    case Algorithm::ring:
      add_ring(builder, call, order);
      break;
    case Algorithm::halving_doubling:
      add_halving_doubling(builder, call, order);
      break;
  }
  return builder.take();
}

}  // namespace mylos
