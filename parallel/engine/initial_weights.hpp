// SPDX-License-Identifier: BSD-3-Clause
// The model's initial weights (Radford et al., 2019, section 2.3), the same for every layout.
#pragma once

#include <cstdint>

#include "core/layout/parameter_table.hpp"
#include "core/ops/compute_backend.hpp"
#include "core/optim/optimizer.hpp"
#include "parallel/exchange/gradient_exchange.hpp"

namespace mylos {

/// Sets the owned parts to the model's initial weights and publishes them. Collective.
void initialise_weights(ComputeBackend& backend, const ParameterTable& table, std::uint64_t seed,
                        GradientExchange& exchange, Optimizer& optimizer);

}  // namespace mylos
