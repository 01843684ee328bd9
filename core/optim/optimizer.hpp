// SPDX-License-Identifier: BSD-3-Clause
// Optimizer: the fp32 state of the parts of units that this rank owns, and the step that updates these parts.
#pragma once

#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/memory/device_buffer.hpp"
#include "core/ops/compute_backend.hpp"
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

/// What an optimizer works on. `parts` are the parts of units that the rank owns, in `compute_type`; some may
/// be empty. All references must outlive the optimizer.
struct OptimizerPlace {
  ComputeBackend& backend;
  MemoryLedger& ledger;
  const ParameterTable& table;
  DType compute_type = DType::fp32;
  std::vector<UnitPart> parts;
};

/// Keeps one fp32 value per owned element for each state of its kind; states start as zeros. If the compute
/// type is narrower than fp32, it also keeps an fp32 master or, without `keeps_master`, rounds the weights
/// stochastically.
class Optimizer {
 public:
  Optimizer(const OptimizerConfig& config, const OptimizerPlace& place);
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// Updates part `index` from its gradient and writes its weights in the compute type. Nothing changes if
  /// scalars->skip is set.
  virtual void step(std::size_t index, TensorRef weights, TensorRef gradient, const StepScalars* scalars) = 0;

  const OptimizerKind& kind() const { return *config_.kind; }
  const std::vector<UnitPart>& parts() const { return parts_; }
  /// Returns part `index` of the kind's state number `state`.
  TensorRef state(std::size_t state, std::size_t index) const { return slice(states_[state], index); }
  /// Returns the most precise weights of part `index`: the fp32 master, or `weights` themselves if there is
  /// no master.
  TensorRef master(std::size_t index, TensorRef weights) const;

 protected:
  ComputeBackend& backend() { return backend_; }
  const OptimizerConfig& config() const { return config_; }
  /// Makes an optimizer's operation and sets the members that the operations of all optimizers share.
  template <class Op>
  Op operation(std::size_t index, TensorRef weights, TensorRef gradient, const StepScalars* scalars) const {
    const TensorRef truth = master(index, weights);
    Op op;
    op.weights = weights;
    op.gradient = gradient;
    if (truth.dtype == DType::fp32) op.master = truth;
    op.segments = part_segments_[index];
    op.num_segments = num_segments_[index];
    op.weight_decay = config_.weight_decay;
    op.scalars = scalars;
    return op;
  }

 private:
  TensorRef slice(const DeviceBuffer& buffer, std::size_t index) const;

  ComputeBackend& backend_;
  OptimizerConfig config_;
  std::vector<UnitPart> parts_;
  std::vector<std::int64_t> offsets_;  // of each part in the state buffers
  DeviceBuffer master_;                // may be empty
  std::vector<DeviceBuffer> states_;
  DeviceBuffer segments_;
  std::vector<const Segment*> part_segments_;  // device memory
  std::vector<int> num_segments_;
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
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig& config, const OptimizerPlace& place);

  /// Returns how many fp32 values are kept per element: the states and the master.
  std::int64_t values_per_element(DType compute_type, bool keeps_master) const {
    return std::ssize(states) + (compute_type != DType::fp32 && keeps_master ? 1 : 0);
  }
};

template <class Kind>
std::unique_ptr<Optimizer> make_optimizer(const OptimizerConfig& config, const OptimizerPlace& place) {
  return std::make_unique<Kind>(config, place);
}

/// All optimizers, the default first.
std::span<const OptimizerKind* const> optimizers();

}  // namespace mylos
