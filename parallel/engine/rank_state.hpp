// SPDX-License-Identifier: BSD-3-Clause
// RankState: the weights, gradients and optimizer states that a rank holds, in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/engine/model_executor.hpp"

namespace mylos {

class RankState {
 public:
  /// Both arguments must outlive the object.
  RankState(const RankProgram& program, ModelExecutor& executor) : program_(program), executor_(executor) {}

  const StepConfig& config() const { return program_.config(); }
  const ParameterTable& table() const { return program_.table(); }
  /// The parts of units that this rank steps and those that it writes to checkpoints (Holding).
  const std::vector<UnitPart>& owned() const { return owned_; }
  const std::vector<UnitPart>& stored() const { return program_.holding().stored; }
  const Holding& holding() const { return program_.holding(); }
  /// The axes along which ranks own the same part of a unit.
  AxisSet copy_axes(int unit) const {
    return table().term_axes(unit).without(holding().units[static_cast<std::size_t>(unit)].divided_axes);
  }

  /// Return a part of the weights (count), in the compute type, and of the gradient of the last step. The
  /// held part of the unit contains it.
  TensorRef weights(const UnitPart& part) const { return executor_.bound(program_.holding().weights(part)); }
  /// The number of versions of a unit's weights that are kept; version t has the same memory as t modulo it.
  int num_versions(int unit) const { return static_cast<int>(program_.versions_of_weights(unit).size()); }
  /// The same of one of these versions.
  TensorRef weights(const UnitPart& part, std::int64_t version) const {
    return executor_.bound(program_.holding().weights(part), version);
  }
  TensorRef gradient(const UnitPart& part) const {
    return executor_.bound_gradient(program_.holding().gradient(part));
  }
  /// In training, return the kind of the optimizer and, of an owned part, a state of elements [begin, begin +
  /// count), fp32, or nothing if they do not have it; and the most precise weights: the fp32 master or, if
  /// there is none, the weights.
  const OptimizerKind& optimizer() const { return program_.optimizer().kind(); }
  TensorRef state(std::size_t state, std::size_t part, std::int64_t begin, std::int64_t count) const {
    const TensorRef found = program_.optimizer().state(state, part, begin, count);
    return found ? executor_.bound(found) : found;
  }
  TensorRef master(std::size_t part) const {
    return executor_.bound(program_.optimizer().master(part, program_.holding().weights(owned_[part])));
  }

  /// Brings weights that were set from outside to the ranks that use them. Collective; does not wait until
  /// they arrive: call `settle` before accessing them again from outside.
  void publish() { executor_.publish(); }
  void settle() { executor_.settle(); }

  /// Sets the model's initial weights (Radford et al., 2019, section 2.3), the same for every layout, and
  /// publishes them. Collective.
  void initialise(ComputeBackend& backend, std::uint64_t seed);

 private:
  const RankProgram& program_;
  ModelExecutor& executor_;
  std::vector<UnitPart> owned_ = program_.holding().owned();
};

}  // namespace mylos
