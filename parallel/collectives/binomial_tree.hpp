// SPDX-License-Identifier: BSD-3-Clause
// Binomial trees over a RankOrder, rooted at its first rank: the phases from which the algorithms are built.
#pragma once

#include "parallel/collectives/schedule_builder.hpp"

namespace mylos {

/// The parent of rank i is i without its lowest set bit, so the subtree of i is the ranks [i, i + lowest set
/// bit of i). Returns the result at the root, and elsewhere the reduction over the rank's subtree.
BufferRange tree_reduce(ScheduleBuilder& builder, const RankOrder& order, BufferRange own);
void tree_broadcast(ScheduleBuilder& builder, const RankOrder& order, BufferRange vector);
/// `own` is this rank's part. `vector` is the whole vector: a rank uses only the parts of its subtree in it,
/// and a leaf below the root uses none.
void tree_gather(ScheduleBuilder& builder, const RankOrder& order, BufferRange own, BufferRange vector);
void tree_scatter(ScheduleBuilder& builder, const RankOrder& order, BufferRange vector, BufferRange own);

}  // namespace mylos
