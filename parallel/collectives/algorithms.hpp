// SPDX-License-Identifier: BSD-3-Clause
// The algorithms: each adds the rounds of one rank for any collective operation but all_to_all_v.
//
// K ranks, n bytes: the vector that is reduced, gathered or broadcast (all of it, not one rank's part). With
// parts of unequal size, read n / K as the size of the parts in question.
#pragma once

#include "parallel/collectives/schedule_builder.hpp"

namespace mylos {

/// Everything passes through the root, or rank 0, which talks to the others one after the other: about K n
/// bytes and K steps there in each direction. all_to_all likewise, part by part.
void add_naive(ScheduleBuilder& builder, const CollectiveCall& call, const Team& team);

/// Binomial trees (Chan et al., section 4; "minimum spanning tree"): ⌈log₂ K⌉ steps of n bytes for a reduce
/// or a broadcast, twice that for all_reduce. reduce_scatter is reduce and scatter, all_gather is gather and
/// broadcast; all_to_all is Bruck's algorithm (Thakur et al., section 4.2), ⌈log₂ K⌉ steps of up to half of
/// the input.
void add_tree(ScheduleBuilder& builder, const CollectiveCall& call, const Team& team);

/// Rings (Patarasuk and Yuan; the "bucket" algorithms of Chan et al.): reduce_scatter and all_gather in K - 1
/// steps of n / K bytes, all_reduce is one after the other: 2 (K - 1) / K n. broadcast and reduce are
/// pipelines along the chain of ranks in K segments, so the last rank has it after 2 (K - 1) steps of n / K.
/// all_to_all exchanges with the ranks at distance 1, 2, ..., K - 1 (Thakur et al., section 4.2).
void add_ring(ScheduleBuilder& builder, const CollectiveCall& call, const Team& team);

/// Recursive halving and doubling (Rabenseifner; Thakur et al., sections 4.3 to 4.5): the bytes of the ring
/// in log₂ K steps for reduce_scatter and all_gather, 2 log₂ K for all_reduce. reduce is reduce_scatter and a
/// binomial gather, broadcast is a binomial scatter and all_gather. all_to_all exchanges with rank xor 1, 2,
/// 3, ...
///
/// Where K is not a power of two, P is the next one below, r = K - P, and the odd ones of the first 2 r ranks
/// are folded: they hand their whole input to the rank below them first (fold-in: one step of n, n / K in
/// all_gather) and get their result from it last (fold-out: one step of n, n / K in reduce_scatter).
void add_halving_doubling(ScheduleBuilder& builder, const CollectiveCall& call, const Team& team);

}  // namespace mylos
