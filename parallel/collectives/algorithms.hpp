// SPDX-License-Identifier: BSD-3-Clause
// The algorithms. Each function adds the rounds of one rank for any of `scheduled_operations`.
//
// K is the number of ranks; n is the size in bytes of the whole vector that is reduced, gathered or
// broadcast, not of one rank's part. If the parts differ in size, n / K stands for the size of the part that
// is sent.
#pragma once

#include "parallel/collectives/schedule_builder.hpp"

namespace mylos {

/// Everything passes through the root, or through rank 0 if there is no root. The root exchanges messages
/// with one rank after another: K - 1 steps and up to (K - 1) n bytes in each direction. In all_to_all, rank
/// 0 collects the parts for one target rank after another, in K (K - 1) steps, and forwards them.
void add_naive(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order);

/// Binomial trees (the "minimum spanning trees" of Chan et al.): ⌈log₂ K⌉ steps of n bytes for a reduce or a
/// broadcast, twice that for all_reduce. reduce_scatter is a reduce and a scatter, all_gather a gather and a
/// broadcast. all_to_all is Bruck's algorithm (Thakur et al.): ⌈log₂ K⌉ steps of up to half of the input.
void add_tree(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order);

/// Rings (Patarasuk and Yuan; the "bucket" algorithms of Chan et al.): reduce_scatter and all_gather move n /
/// K bytes in each of K - 1 steps; all_reduce is a reduce_scatter and an all_gather: 2 (K - 1) / K n bytes.
/// broadcast and reduce send K segments through a pipeline along the chain of ranks, so the last rank
/// finishes after 2 (K - 1) steps of n / K bytes. In step d = 1, 2, ..., K - 1 of all_to_all, a rank sends to
/// the rank d places ahead and receives from the rank d places behind (Thakur et al.).
void add_ring(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order);

/// Recursive halving and doubling (Rabenseifner; Thakur et al.): reduce_scatter and all_gather move as many
/// bytes as the ring in log₂ K steps, all_reduce in 2 log₂ K steps. reduce is a reduce_scatter and a binomial
/// gather, broadcast a binomial scatter and an all_gather. In step s = 1, 2, ... of all_to_all, rank i
/// exchanges with rank i xor s.
///
/// If K is not a power of two, let P be the largest power of two below K and r = K - P. Among the first 2 r
/// ranks, counted from the root, those with odd numbers are folded: each begins by sending its whole input to
/// the rank below it (fold-in: one step of n bytes, or n / K in all_gather; broadcast has no fold-in) and
/// ends by receiving its result from that rank (fold-out: one step of n bytes, or n / K in reduce_scatter;
/// reduce has no fold-out). all_to_all folds no ranks.
void add_halving_doubling(ScheduleBuilder& builder, const CollectiveCall& call, const RankOrder& order);

}  // namespace mylos
