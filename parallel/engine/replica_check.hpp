// SPDX-License-Identifier: BSD-3-Clause
// Finds a replica whose weights are no longer those of the others: memory errors that nothing else reports.
#pragma once

#include <string>

#include "core/communicator.hpp"
#include "core/optim/adamw.hpp"
#include "parallel/exchange/gradient_exchange.hpp"

namespace mylos {

/// Compares XXH3 hashes of each owned part's weights across `replicas`. Returns "" where all agree, else one
/// line, the same on all ranks, that names the rank: the minority, or the one whose weights are not its
/// rounded fp32 master. Collective.
std::string compare_replicas(ComputeBackend& backend, const GradientExchange& exchange,
                             const AdamW& optimizer, Communicator& replicas);

}  // namespace mylos
