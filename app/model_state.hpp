// SPDX-License-Identifier: BSD-3-Clause
// Weights and optimizer states as global tensors, saved and restored for any layout.
#pragma once

#include "core/ops/compute_backend.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "parallel/engine/rank_state.hpp"

namespace mylos {

/// Returns the tensors that this rank writes to a checkpoint. Without `snapshot` the result refers to the
/// weights and states themselves, which must not change until they are written. Otherwise their values are
/// copied to `snapshot`: host memory of the size that snapshot_bytes() in run_plan.hpp returns.
CheckpointContent checkpoint_content(ComputeBackend& backend, const RankState& state,
                                     void* snapshot = nullptr);

/// Reads weights and optimizer states into the owned parts and publishes the weights, which are rounded to
/// nearest in the compute type. Only the publishing is collective.
void restore(ComputeBackend& backend, const CheckpointReader& reader, RankState& state);

/// Reads only the weights, for evaluation and generation, directly into the compute type. Collective.
void restore_weights(ComputeBackend& backend, const CheckpointReader& reader, RankState& state);

}  // namespace mylos
