// SPDX-License-Identifier: BSD-3-Clause
// Finds a replica whose weights are no longer those of the others: memory errors that nothing else reports.
#pragma once

#include <string>

#include "core/optim/optimizer.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

/// Compares XXH3 hashes of the owned weights, masters and states across the ranks that own the same, and
/// along the tensor axis of what it does not divide. Returns "" if all agree, else one line, the same on all
/// that were compared, that names the parameter and the rank among them: the minority, or the one whose
/// weights are not its rounded fp32 master. Collective.
std::string compare_replicas(ComputeBackend& backend, const ParameterTable& table,
                             const GradientExchange& exchange, const Optimizer& optimizer,
                             const ProcessGrid& grid);

}  // namespace mylos
