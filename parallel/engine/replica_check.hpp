// SPDX-License-Identifier: BSD-3-Clause
// Finds a replica whose weights are no longer those of the others: memory errors that nothing else reports.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/optim/optimizer.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

/// The hash of what a rank has of a parameter in one state: its weights, their fp32 master, or a state of the
/// optimizer.
struct StateHash {
  std::string name;   ///< "the first moment of h.0.ln_1.bias"
  std::size_t part;   ///< of those that the rank owns
  Piece piece;        ///< of the part
  bool is_weights;    ///< neither their master nor a state
  std::int64_t hash;  ///< XXH3, 64 bits
};

/// The hashes of all that this rank owns; none if no other rank holds the same. Of work queued before, all
/// has ended. If the host can read the backend's memory, the backend runs nothing, so that another thread may
/// call this until the next step of the optimizer.
std::vector<StateHash> hash_states(ComputeBackend& backend, const ParameterTable& table,
                                   const GradientExchange& exchange, const Optimizer& optimizer,
                                   const ProcessGrid& grid);

/// Compares hashes of `hash_states` across the ranks that own the same, and along the tensor axis those of
/// what it does not divide. Returns "" if all agree, else one line, the same on all that were compared, that
/// names the parameter and the rank: the minority, or the one whose weights are not its rounded fp32 master.
/// Collective; the states are still those that were hashed.
std::string compare_replicas(ComputeBackend& backend, const GradientExchange& exchange,
                             const Optimizer& optimizer, const ProcessGrid& grid,
                             const std::vector<StateHash>& hashes);

}  // namespace mylos
