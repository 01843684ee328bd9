// SPDX-License-Identifier: BSD-3-Clause
// The algorithms: each adds the rounds of one rank for any collective operation except all_to_all_v.
//
// K is the number of ranks; n is the size in bytes of the whole vector that is reduced, gathered or
// broadcast, not of one rank's part. If the parts differ in size, n / K stands for the size of the part that
// is sent.
#pragma once

#include "parallel/collectives/schedule_builder.hpp"

namespace mylos {

/// Everything passes through the root, or rank 0 if there is no root. It exchanges messages with the other
/// ranks one after another: about K n bytes and K steps in each direction. all_to_all does the same for one
/// target rank after another.
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

/// Recursive halving and doubling (Rabenseifner; Thakur et al., sections 4.3 to 4.5): as many bytes as the
/// ring, in log₂ K steps for reduce_scatter and all_gather, 2 log₂ K for all_reduce. reduce is reduce_scatter
/// and a binomial gather, broadcast is a binomial scatter and all_gather. all_to_all exchanges with the ranks
/// whose numbers are this rank's xor 1, 2, 3, ...
///
/// If K is not a power of two, let P be the largest power of two below K and r = K - P. The ranks with odd
/// numbers among the first 2 r are folded: each first sends its whole input to the rank below it (fold-in:
/// one step of n, or of n / K in all_gather; broadcast has no fold-in) and last receives its result from that
/// rank (fold-out: one step of n, or of n / K in reduce_scatter; reduce has no fold-out). all_to_all folds no
/// ranks.
void add_halving_doubling(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order);

}  // namespace mylos
