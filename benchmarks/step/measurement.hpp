// SPDX-License-Identifier: BSD-3-Clause
// Measurement: what training steps of one configuration cost: time by phase, gradient traffic, memory.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "app/deck/run_config.hpp"
#include "app/launch/session.hpp"
#include "parallel/engine/training_step.hpp"

namespace mylos {

/// A configuration to measure, and its name in reports.
struct Configuration {
  std::string name;
  RunConfig config;
};

/// How often a configuration is visited in turn with the others, and what a visit consists of.
struct Repetitions {
  int rounds = 3;
  int steps = 3;    ///< measured per visit
  int warm_up = 1;  ///< steps before them
  int traced = 1;   ///< steps after them, of which the time by operation is recorded
};

/// One step; times are maxima over the ranks.
struct StepCost {
  double seconds = 0.0;
  PhaseSeconds phases{};
  double coverage = 0.0;  ///< share of a rank's step that its phases explain; minimum over the ranks
};

/// All measured steps of a configuration.
struct Measurement {
  std::vector<StepCost> steps;
  std::vector<StepProfile> profiles;  ///< of this rank's traced steps
  std::int64_t parameters = 0;
  /// Collectives and messages of one rank in a step until the gradients are reduced, gathers of weights
  /// included.
  std::uint64_t reduce_calls = 0;
  std::uint64_t reduce_bytes = 0;                            ///< their payload
  std::array<std::int64_t, num_memory_categories> memory{};  ///< bytes, maximum over the ranks
  std::int64_t device_bytes = 0;  ///< growth of the memory in use on the device, likewise; 0 without a device

  /// Quantile `q` over the steps, interpolated between the two nearest steps.
  double step_seconds(double q = 0.5) const;
  /// Medians over the steps.
  double phase_seconds(StepPhase phase) const;
  double coverage() const;
  /// Medians of the ratios to the same step of the same round in `first`. The speed of a machine's memory can
  /// change between rounds; such a change has less effect on these ratios than on the ratio of two medians.
  /// May not be finite if a phase of `first` took no time.
  double step_ratio(const Measurement& first) const;
  double phase_ratio(const Measurement& first, StepPhase phase) const;

 private:
  using Value = std::function<double(const StepCost&)>;
  double quantile(double q, const Value& value) const;
  double ratio(const Measurement& first, const Value& value) const;
};

/// Trains on random tokens. Each round visits every configuration in turn, since a machine's speed drifts.
/// Each visit makes a model with initial weights and frees it, so that only one configuration's memory is in
/// use at a time. Collective over MPI_COMM_WORLD. Throws ExitCode::numerical if a step is not applied, since
/// such a step costs less.
std::vector<Measurement> measure(Session& session, const std::vector<Configuration>& configurations,
                                 const Repetitions& repetitions);

}  // namespace mylos
