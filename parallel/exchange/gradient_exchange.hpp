// SPDX-License-Identifier: BSD-3-Clause
// GradientExchange: who owns which part of a unit, when and how gradients combine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/model/program.hpp"
#include "core/optim/optimizer.hpp"
#include "core/param_spec.hpp"
#include "core/param_values.hpp"
#include "parallel/health/traffic.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

enum class Phase : std::uint8_t { forward, backward };

/// The weights and gradients of a unit while it is acquired. Both are flat buffers of Unit::size elements.
struct UnitView {
  TensorRef weights;    // (size) compute type; carries the weight version
  TensorRef gradients;  // (size) fp32 or compute type; empty outside backward
};

/// Holds the units' weights and gradients. One strategy of data parallelism is one implementation.
class GradientExchange {
 public:
  virtual ~GradientExchange() = default;

  /// The unit's weights, and in backward its gradients, until `release`.
  virtual UnitView acquire(int unit, Phase phase) = 0;
  virtual void release(int unit, Phase phase) = 0;

  /// A range of a unit's gradient has this rank's last contribution of the step. May start a reduction;
  /// returns without waiting for it.
  virtual void gradient_ready(const GradientRange& range) = 0;
  /// Whether it does start one: such a range ends what a device can be given as a whole.
  virtual bool starts_reduction(const GradientRange& range) const = 0;
  /// Starts what was not started and waits: afterwards `gradient` of every owned part is the sum over all
  /// ranks that have a term of it.
  virtual void reduce() = 0;

  /// The parts this rank steps, the optimizer's granularity being elements.
  virtual std::vector<UnitPart> owned() const = 0;
  /// The parts this rank writes to a checkpoint: over the ranks that hold the same parameters they cover
  /// every unit once, twins' apart.
  virtual std::vector<UnitPart> stored() const = 0;
  /// Along these axes the owned parts of a parameter are disjoint; along the others the ranks that hold the
  /// same part of it own the same.
  virtual AxisSet sharded_axes() const = 0;
  virtual TensorRef weights(const UnitPart& part) const = 0;   // (count) compute type
  virtual TensorRef gradient(const UnitPart& part) const = 0;  // (count)

  /// Steps the owned parts; `publish` follows.
  virtual void apply(Optimizer& optimizer, const StepScalars* scalars) = 0;
  /// The owned weights were changed: brings them to all ranks that use them.
  virtual void publish() = 0;
};

/// What an exchange is made for: one rank of a layout.
struct ExchangeScope {
  const ParameterTable& table;
  Coordinates coordinates{};
  DType compute_type = DType::fp32;
  DType gradient_type = DType::fp32;
  /// All gradients, in the order in which the rank's step completes them. None for evaluation and generation:
  /// then the exchange holds no gradients.
  std::vector<GradientRange> completions{};
};

/// A collective that an exchange starts in a step.
struct PlannedCall {
  AxisSet group;
  Operation operation = Operation::all_reduce;
  std::int64_t count = 0;  ///< elements
  DType dtype = DType::fp32;
};

/// What an exchange takes; its constructor allocates from the same plan.
struct ExchangePlan {
  std::int64_t weight_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::vector<PlannedCall> calls{};  ///< of a step, in order
  std::vector<UnitPart> stored{};    ///< as GradientExchange::stored
};

/// An exchange, as decks and the planner know it. `values` are those of section parallel.
struct ExchangeKind {
  const char* name;
  const char* doc;
  std::span<const ParamSpec> params;  ///< of section parallel
  ExchangePlan (*plan)(const ParamValues& values, const ExchangeScope& scope);
  /// Collective. The references outlive the exchange.
  std::unique_ptr<GradientExchange> (*make)(const ParamValues& values, const ExchangeScope& scope,
                                            ComputeBackend& backend, MemoryLedger& ledger,
                                            const ProcessGrid& grid);
};

/// All exchanges, the default first.
std::span<const ExchangeKind* const> exchanges();

}  // namespace mylos
