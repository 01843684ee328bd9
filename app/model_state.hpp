// SPDX-License-Identifier: BSD-3-Clause
// ModelState: weights and optimizer as global tensors: saved and restored for any layout.
#pragma once

#include <functional>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/ops/compute_backend.hpp"
#include "core/optim/optimizer.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "parallel/exchange/gradient_exchange.hpp"

namespace mylos {

/// What this rank writes to a checkpoint: as it is in the weights and states, which must not change until
/// then, or, if given, copied to `snapshot`, host memory of `snapshot_bytes`.
CheckpointContent checkpoint_content(ComputeBackend& backend, const ParameterTable& table,
                                     const GradientExchange& exchange, const Optimizer& optimizer,
                                     float* snapshot = nullptr);

/// Reads weights and optimizer into the owned parts and publishes the weights. What has no master is rounded
/// to nearest. Collective only in publishing.
void restore(ComputeBackend& backend, const ParameterTable& table, const CheckpointReader& reader,
             GradientExchange& exchange, Optimizer& optimizer);

/// Reads weights only, for evaluation and generation: straight into the compute type. Collective.
void restore_weights(ComputeBackend& backend, const ParameterTable& table, const CheckpointReader& reader,
                     GradientExchange& exchange);

}  // namespace mylos
