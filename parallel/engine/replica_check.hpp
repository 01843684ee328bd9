// SPDX-License-Identifier: BSD-3-Clause
// Finds replicas whose weights or optimizer states differ, as after a memory error that nothing else reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/engine/rank_state.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

/// The hash of one state of a parameter on a rank: of its weights, their fp32 master, or a state of the
/// optimizer.
struct StateHash {
  std::string name;   ///< "the first moment of h.0.ln_1.bias"
  std::size_t part;   ///< index among the parts that the rank owns
  Piece piece;        ///< piece of the part
  bool is_weights;    ///< the hash is of weights, not of their master or of a state of the optimizer
  std::int64_t hash;  ///< the low 64 bits of XXH3-128
};

/// The hashes of everything that this rank owns; empty if no other rank has a copy of any of it. All work
/// queued earlier must have completed. If the host can read the backend's memory, this function queues no
/// work, so another thread may call it until the next step of the optimizer.
std::vector<StateHash> hash_states(ComputeBackend& backend, const RankState& state, const ProcessGrid& grid);

/// Compares the hashes of `hash_states` across the ranks that own the same parts and, along the tensor axis,
/// the hashes of parameters that this axis does not divide. Returns "" if all replicas of the job agree.
/// Otherwise returns one line, the same on all ranks of the job, that names the state and the suspected
/// ranks: the ranks whose weights are not their rounded fp32 master; if there are no such ranks, the
/// minority, or all ranks if there is no majority. If several groups differ, the line is about that of the
/// lowest rank. Collective; call it before the states change.
std::string compare_replicas(ComputeBackend& backend, const RankState& state, const ProcessGrid& grid,
                             const std::vector<StateHash>& hashes);

}  // namespace mylos
