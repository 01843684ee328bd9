// SPDX-License-Identifier: BSD-3-Clause
// The algorithms: each adds the rounds of one rank for any collective operation except all_to_all_v.
//
// K ranks, n bytes: the whole vector that is reduced, gathered or broadcast, not one rank's part. If the
// parts are of unequal size, read n / K as the size of the parts in question.
#pragma once

#include "parallel/collectives/schedule_builder.hpp"

namespace mylos {

/// Everything passes through the root, or rank 0, which talks to the other ranks one after another: about K n
/// bytes and K steps there in each direction. all_to_all does the same part by part.
void add_naive(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order);

/// Binomial trees (Chan et al., section 4; "minimum spanning tree"): ⌈log₂ K⌉ steps of n bytes for a reduce
/// or a broadcast, twice that for all_reduce. reduce_scatter is reduce and scatter, all_gather is gather and
/// broadcast; all_to_all is Bruck's algorithm (Thakur et al., section 4.2), ⌈log₂ K⌉ steps of up to half of
/// the input.
void add_tree(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order);

/// Rings (Patarasuk and Yuan; the "bucket" algorithms of Chan et al.): reduce_scatter and all_gather take K -
/// 1 steps of n / K bytes each; all_reduce is reduce_scatter, then all_gather: 2 (K - 1) / K n. broadcast and
/// reduce are pipelines along the chain of ranks in K segments, so the last rank is complete after 2 (K - 1)
/// steps of n / K. all_to_all exchanges with the ranks at distance 1, 2, ..., K - 1 (Thakur et al., section
/// 4.2).
void add_ring(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order);

/// Recursive halving and doubling (Rabenseifner; Thakur et al., sections 4.3 to 4.5): the bytes of the ring
/// in log₂ K steps for reduce_scatter and all_gather, 2 log₂ K for all_reduce. reduce is reduce_scatter and a
/// binomial gather, broadcast is a binomial scatter and all_gather. all_to_all exchanges with rank xor 1, 2,
/// 3, ...
///
/// If K is not a power of two, let P be the largest power of two below K and r = K - P. The ranks with odd
/// numbers among the first 2 r are folded: each hands its whole input to the rank below it first (fold-in:
/// one step of n, or of n / K in all_gather; broadcast has none) and gets its result from that rank last
/// (fold-out: one step of n, or of n / K in reduce_scatter; reduce has none). all_to_all folds no ranks.
void add_halving_doubling(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order);

}  // namespace mylos
