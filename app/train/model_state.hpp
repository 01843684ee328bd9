// SPDX-License-Identifier: BSD-3-Clause
// Weights and optimizer states as global tensors, saved and restored for any layout.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/ops/compute_backend.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "parallel/engine/rank_state.hpp"

namespace mylos {

/// The versions of weights that micro-batches still need after an update: the newest, and older ones that
/// only asynchronous pipelines use, from `oldest` on if they exist.
struct KeptVersions {
  std::int64_t newest = 0;
  std::int64_t oldest = 0;
};

/// Returns the tensors that this rank writes to a checkpoint. Without `snapshot` the result refers to the
/// weights and states themselves, which must not change until they are written. Otherwise their values are
/// copied to `snapshot`: host memory of the size that snapshot_bytes() in run_plan.hpp returns.
CheckpointContent checkpoint_content(ComputeBackend& backend, const RankState& state, KeptVersions versions,
                                     void* snapshot = nullptr);

/// Reads weights, also the older `versions`, and optimizer states into the owned parts and publishes the
/// weights, which are rounded to nearest in the compute type. Only the publishing is collective.
void restore(ComputeBackend& backend, const CheckpointReader& reader, RankState& state,
             KeptVersions versions);

/// Reads parts of a weight as fp32.
using WeightReader = std::function<void(const TensorInfo& tensor, const std::vector<TensorPart>& parts)>;

/// Reads the initial weights of a run and publishes them: the most precise ones (RankState::master) receive
/// the values, rounded only to their own type. The optimizer's states stay as they are. Only the publishing
/// is collective.
void restore_initial(ComputeBackend& backend, const WeightReader& read, RankState& state);

/// Returns this rank's term of a digest of the weights. The sum of all ranks' terms, modulo 2^64, depends
/// only on names and values, not on the layout.
std::uint64_t digest_of_weights(ComputeBackend& backend, const RankState& state);

/// Reads only the weights, for evaluation and generation, directly into the compute type. Collective.
void restore_weights(ComputeBackend& backend, const WeightReader& read, RankState& state);

}  // namespace mylos
