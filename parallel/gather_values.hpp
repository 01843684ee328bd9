// SPDX-License-Identifier: BSD-3-Clause
// gather_values: a few integers of every rank, on every rank; agree_on_problem: the problem of one, on all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/communication/communicator.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// Returns the values of all ranks of `group`, one rank after another. Every rank passes the same number of
/// values. The buffers lie in memory of `backend`, with which `group` works. Collective; for set-ups and
/// decisions, not for steps.
std::vector<std::int64_t> gather_values(ComputeBackend& backend, Communicator& group,
                                        const std::vector<std::int64_t>& own);

/// Returns the problem of the lowest rank that has one, or "". Collective over `world`: a rank that has found
/// nothing must not go on to a collective that the others never enter.
std::string agree_on_problem(ComputeBackend& backend, Communicator& world, std::string problem);

}  // namespace mylos
