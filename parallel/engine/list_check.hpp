// SPDX-License-Identifier: BSD-3-Clause
// Checks, once at set-up, that the lists of the ranks that work together fit each other.
#pragma once

#include "core/ops/compute_backend.hpp"
#include "parallel/engine/rank_program.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

/// Throws ExitCode::usage if the ranks of a group would not make the same collectives of that group in the
/// same order, with counts that fit each other, and names the first one that differs, by its source line,
/// axes, bytes and ranks. Throws ExitCode::internal if the ranks that hold the same parameters do not,
/// together, store every element once and step it. All ranks throw the same. Collective.
void check_lists(ComputeBackend& backend, const ProcessGrid& grid, const RankProgram& program);

/// A program that fits those of the other ranks. Collective.
class CheckedProgram : public RankProgram {
 public:
  CheckedProgram(ComputeBackend& backend, const ProcessGrid& grid, const StepConfig& config,
                 RankRole role = RankRole::training)
      : RankProgram(config, grid.coordinates(), role) {
    check_lists(backend, grid, *this);
  }
};

}  // namespace mylos
