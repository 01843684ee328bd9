// SPDX-License-Identifier: BSD-3-Clause
// Binomial trees over a team, rooted at its first rank: the phases that the algorithms are made of.
#pragma once

#include "parallel/collectives/schedule_builder.hpp"

namespace mylos {

/// The parent of i is i without its lowest bit, so the subtree of i is the ranks [i, i + lowest bit of i).
/// The root's result; elsewhere the reduction of the subtree.
BufferRange tree_reduce(ScheduleBuilder& builder, const Team& team, BufferRange own);
void tree_broadcast(ScheduleBuilder& builder, const Team& team, BufferRange vector);
/// `own` is this rank's part; `vector` has place for the parts of the subtree, unused where that is one part.
void tree_gather(ScheduleBuilder& builder, const Team& team, BufferRange own, BufferRange vector);
void tree_scatter(ScheduleBuilder& builder, const Team& team, BufferRange vector, BufferRange own);

}  // namespace mylos
