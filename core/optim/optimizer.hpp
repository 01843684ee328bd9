// SPDX-License-Identifier: BSD-3-Clause
// Optimizer: the fp32 states of the parts of units that this rank owns, and the operations that update these
// parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <source_location>
#include <span>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/model/recorder.hpp"
#include "core/param_spec.hpp"
#include "core/param_values.hpp"

namespace mylos {

struct OptimizerKind;

struct OptimizerConfig {
  const OptimizerKind* kind = nullptr;
  ParamValues values;         ///< values of the deck, including the kind's parameters
  float weight_decay = 0.1F;  ///< of weights with two or more dimensions
  bool keeps_master = true;   ///< keeps an fp32 master if the compute type is narrower
  std::uint64_t seed = 0;     ///< for the stochastic rounding of weights without a master
};

/// One part of a unit, as an optimizer's operations see it; all in storages (core/model/recorder.hpp). n is
/// the number of elements of the part.
struct OptimizerPart {
  TensorRef weights;   ///< (n) compute type
  TensorRef gradient;  ///< (n)
  TensorRef master;    ///< (n) fp32: the master, or the weights if these are fp32; otherwise empty
  TensorRef previous;  ///< (n) compute type: the version that the update reads, if it writes another
  std::vector<TensorRef> states;  ///< (n) fp32 each, one per state of the kind
  const Segment* segments = nullptr;
  int num_segments = 0;
  StepScalars* scalars = nullptr;
};

/// Records the operations of an update.
class UpdateRecorder {
 public:
  explicit UpdateRecorder(std::vector<Entry>& entries) : entries_(entries) {}
  void operator()(const auto& op, const std::source_location& where = std::source_location::current()) {
    entries_.push_back({.operation = op, .where = where});
  }

 private:
  std::vector<Entry>& entries_;
};

/// The storages of an optimizer on one rank: one fp32 value per element of its parts for each state of its
/// kind; states start as zeros. If the compute type is narrower than fp32, there is also an fp32 master or,
/// without `keeps_master`, the weights are rounded stochastically.
class Optimizer {
 public:
  /// `parts` are the parts of units, in `compute_type`, that the rank updates; some may be empty.
  Optimizer(const OptimizerConfig& config, const ParameterTable& table, DType compute_type,
            std::vector<UnitPart> parts, Storages& storages);

  const OptimizerKind& kind() const { return *config_.kind; }
  const std::vector<UnitPart>& parts() const { return parts_; }
  /// Returns part `index` of the kind's state number `state`.
  TensorRef state(std::size_t state, std::size_t index) const { return slice(states_[state], index); }
  /// Returns the most precise weights of part `index`: the fp32 master, or `weights` themselves if there is
  /// no master.
  TensorRef master(std::size_t index, TensorRef weights) const;

  /// Records the operations that update part `index` from its gradient and write its weights in the compute
  /// type: over the weights that they update or, with `previous`, from that version to another. The values do
  /// not change if the step is skipped (StepScalars::skip).
  void record(std::size_t index, TensorRef weights, TensorRef previous, TensorRef gradient,
              StepScalars* scalars, UpdateRecorder& run) const;

  /// The table of segments of all parts, and the storage that has to hold it.
  const std::vector<Segment>& segments() const { return segments_; }
  int segments_storage() const { return segments_storage_; }

 private:
  TensorRef slice(int storage, std::size_t index) const;

  OptimizerConfig config_;
  std::vector<UnitPart> parts_;
  std::vector<std::int64_t> offsets_;  // of each part in the storages
  int master_ = -1;                    // -1 if there is none
  std::vector<int> states_;
  std::vector<Segment> segments_;
  std::vector<std::size_t> first_segments_;  // of each part
  int segments_storage_ = -1;
};

/// Returns the segments of a part for an optimizer's operation: one per parameter in the part, including the
/// padding after the parameter.
std::vector<Segment> segments_of(const ParameterTable& table, const UnitPart& part, std::uint64_t seed);

/// Describes an optimizer to decks, checkpoints and the planner.
struct OptimizerKind {
  const char* name;
  const char* doc;
  std::span<const ParamSpec> params;    ///< of section optim, in addition to the common parameters
  std::span<const char* const> states;  ///< groups of a checkpoint's optimizer.h5
  /// Records the operations that update one part.
  void (*record)(const OptimizerConfig& config, const OptimizerPart& part, UpdateRecorder& run);

  /// Returns how many fp32 values are kept per element: the states and the master.
  std::int64_t values_per_element(DType compute_type, bool keeps_master) const {
    return std::ssize(states) + (compute_type != DType::fp32 && keeps_master ? 1 : 0);
  }
};

/// Returns an optimizer's operation with the members that the operations of all optimizers share.
template <class Op>
Op operation_on(const OptimizerPart& part, const OptimizerConfig& config) {
  Op op;
  op.weights = part.weights;
  op.gradient = part.gradient;
  op.master = part.master;
  op.previous = part.previous;
  op.segments = part.segments;
  op.num_segments = part.num_segments;
  op.weight_decay = config.weight_decay;
  op.scalars = part.scalars;
  return op;
}

/// All optimizers, the default first.
std::span<const OptimizerKind* const> optimizers();

}  // namespace mylos
