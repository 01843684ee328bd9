// SPDX-License-Identifier: BSD-3-Clause
// Weights and optimizer states as global tensors, saved and restored for any layout.
#pragma once

#include "core/layout/parameter_table.hpp"
#include "core/ops/compute_backend.hpp"
#include "core/optim/optimizer.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "parallel/exchange/gradient_exchange.hpp"

namespace mylos {

/// Returns the tensors that this rank writes to a checkpoint. Without `snapshot` the result refers to the
/// weights and states themselves, which must not change until they are written. Otherwise their values are
/// copied to `snapshot`: host memory of the size that snapshot_bytes() in run_plan.hpp returns.
CheckpointContent checkpoint_content(ComputeBackend& backend, const ParameterTable& table,
                                     const GradientExchange& exchange, const Optimizer& optimizer,
                                     void* snapshot = nullptr);

/// Reads weights and optimizer states into the owned parts and publishes the weights, which are rounded to
/// nearest in the compute type. Only the publishing is collective.
void restore(ComputeBackend& backend, const ParameterTable& table, const CheckpointReader& reader,
             GradientExchange& exchange, Optimizer& optimizer);

/// Reads only the weights, for evaluation and generation, directly into the compute type. Collective.
void restore_weights(ComputeBackend& backend, const ParameterTable& table, const CheckpointReader& reader,
                     GradientExchange& exchange);

}  // namespace mylos
