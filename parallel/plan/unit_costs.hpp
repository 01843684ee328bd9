// SPDX-License-Identifier: BSD-3-Clause
// UnitCost: what the embedding, a block or the head costs a rank, by which a model is cut into chunks. Costs
// are those of the recorded operations, or were measured and read from a profile.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/parameters.hpp"
#include "parallel/engine/step_config.hpp"
#include "parallel/plan/machine.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// What a unit costs one of the ranks that divide it (rank 0 of the tensor axis) in a micro-batch.
struct UnitCost {
  std::string name{};  ///< Unit::name
  /// The time of its part of a forward pass, of backward_input and of backward_weight: FLOPs or seconds.
  double forward = 0.0;
  double input = 0.0;
  double weight = 0.0;
  std::int64_t parameters = 0;    ///< of the rank; a tied matrix is in the embedding
  std::int64_t output_bytes = 0;  ///< of the residual stream after the unit; 0 after the head
  std::int64_t kept_bytes = 0;    ///< of activations, from the forward pass to the backward pass
};

/// The costs in FLOPs of the embedding, the blocks and the head, in this order, recomputation included. They
/// are those of one recorded block, so this takes milliseconds for a model of any depth.
std::vector<UnitCost> unit_costs(const StepConfig& config);
/// The same in seconds on a machine.
std::vector<UnitCost> unit_costs(const StepConfig& config, MachineTimes& times);

/// The sums of the costs of each chunk's units, by chunk; without names.
std::vector<UnitCost> chunk_costs(const std::vector<UnitCost>& units, const ModelCuts& cuts);
/// The times of each chunk's passes, by chunk.
std::vector<PassTimes> pass_times(const std::vector<UnitCost>& units, const ModelCuts& cuts);

/// Reads a profile, a table in CSV: a header with the names of UnitCost's members, `unit` for the name, and a
/// row per unit, in the order of the model. People edit profiles: blanks, empty lines and carriage returns do
/// not matter. Throws ExitCode::usage, naming the line, if the text is anything else.
std::vector<UnitCost> parse_unit_profile(std::string_view text);
/// Writes a profile, from which parse_unit_profile reads the same numbers.
std::string unit_profile_text(const std::vector<UnitCost>& units);
/// Checks that a profile is of the model, layout and micro-batch whose costs are `own`: that it has the same
/// units, with equally many parameters and equally large outputs. Throws ExitCode::usage, naming what differs
/// first.
void check_profile(const std::vector<UnitCost>& profile, const std::vector<UnitCost>& own);

}  // namespace mylos
