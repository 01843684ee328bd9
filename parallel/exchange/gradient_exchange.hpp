// SPDX-License-Identifier: BSD-3-Clause
// GradientExchange: who owns which part of a unit, when and how gradients combine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/model/program.hpp"
#include "core/optim/optimizer.hpp"
#include "core/param_spec.hpp"
#include "core/param_values.hpp"
#include "parallel/health/traffic.hpp"
#include "parallel/process_grid.hpp"
#include "parallel/repetition.hpp"

namespace mylos {

/// A block acquires a unit.
struct UnitAcquisition {
  UnitAccess access;
  int visit = 0;         ///< number of the block's pass: units that it acquires together have the same
  int micro_batch = -1;  ///< none outside a step; of the first of those that repeat
};
/// A pass through the blocks completes a range of a unit's gradient.
struct GradientCompletion {
  GradientRange range;
  bool is_last = false;  ///< no later micro-batch of the step adds to it
};
using UnitEvent = std::variant<UnitAcquisition, GradientCompletion>;

/// What asks for units, each in an order that is known at set-up.
enum class UnitSequence : std::uint8_t { step, evaluation, generation };
inline constexpr std::size_t num_unit_sequences = 3;
/// Those of one, in which one of many micro-batches stands for all that do likewise.
struct UnitEventList {
  std::vector<UnitEvent> events;
  Repetition repeated;  ///< the events of that micro-batch
};
using UnitEvents = std::array<UnitEventList, num_unit_sequences>;

/// The gradients in the order in which a step completes them.
std::vector<GradientRange> completions_of(const UnitEvents& events);

/// The weights and gradients of a unit while it is acquired, flat buffers of Unit::size elements.
struct UnitView {
  TensorRef weights;    // (size) compute type; its version says which content it is, 0 that copies do not pay
  TensorRef gradients;  // (size) fp32 or compute type; empty unless they were asked for
};

/// Holds the units' weights and gradients. One strategy of data parallelism is one implementation.
class GradientExchange {
 public:
  explicit GradientExchange(const ParameterTable& table) : table_(table) {}
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;
  virtual ~GradientExchange() = default;

  /// The events of this sequence follow, from the first to the last.
  virtual void begin(UnitSequence /*sequence*/) {}
  /// The unit's weights and gradients, as the access wants them, until `release`.
  virtual UnitView acquire(const UnitAccess& access) = 0;
  virtual void release(int unit) = 0;

  /// Whether gradients are reduced behind each micro-batch's backward pass, which then writes them, and not
  /// only behind the step's last.
  virtual bool reduces_each_micro_batch() const { return false; }
  /// A range of a unit's gradient has this rank's last contribution before the reduction. May start it;
  /// returns without waiting for it.
  virtual void gradient_ready(const GradientRange& range) = 0;
  /// Whether it does start one: such a range ends what a device can be given as a whole.
  virtual bool starts_reduction(const GradientRange& range) const = 0;
  /// Starts what was not started and waits: afterwards `gradient` of every owned part is the sum over all
  /// ranks that have a term of it.
  virtual void reduce() = 0;

  /// The parts this rank steps, the optimizer's granularity being elements: one per unit, which may be empty.
  virtual std::vector<UnitPart> owned() const = 0;
  /// The parts this rank writes to a checkpoint: over the ranks that hold the same parameters they cover
  /// every unit once, twins' apart.
  virtual std::vector<UnitPart> stored() const = 0;
  /// Along these axes the owned parts of a parameter are disjoint; along the others the ranks that hold the
  /// same part of it own the same.
  virtual AxisSet sharded_axes() const = 0;
  virtual TensorRef weights(const UnitPart& part) const = 0;   // (count) compute type
  virtual TensorRef gradient(const UnitPart& part) const = 0;  // (count)

  /// The owned weights of a unit were changed: brings them to all ranks that use them. Collective; does not
  /// wait. They are left alone until `settle`, or until the unit was acquired.
  virtual void publish(int unit) = 0;
  /// The same for all units.
  void publish_all() {
    for (int unit = 0; unit < table_.num_units(); ++unit) publish(unit);
  }
  /// Waits for what was published, before this rank does something that takes long.
  virtual void settle() {}

 protected:
  const ParameterTable& table() const { return table_; }

 private:
  const ParameterTable& table_;
};

/// If an exchange divides along Axis::shard, the ranks along these axes own the same and have other terms.
inline constexpr AxisSet replica_axes = loss_axes.without({Axis::shard});

/// Every unit as one part.
std::vector<UnitPart> whole_units(const ParameterTable& table);
/// What rank `rank` of `ranks` that hold the same `parts` writes to a checkpoint; rank 0 no fewer elements
/// than another.
std::vector<UnitPart> divided(const std::vector<UnitPart>& parts, int ranks, int rank);

/// What an exchange is made for: one rank of a layout.
struct ExchangeScope {
  const ParameterTable& table;
  Coordinates coordinates{};
  DType compute_type = DType::fp32;
  DType gradient_type = DType::fp32;
  /// Without those of a step the exchange holds no gradients.
  UnitEvents events{};
};

/// A collective that an exchange starts in a step.
struct PlannedCall {
  AxisSet group;
  Operation operation = Operation::all_reduce;
  std::int64_t count = 0;  ///< elements, as in CollectiveCall
  DType dtype = DType::fp32;
  std::size_t until = 0;  ///< as many calls of the list have started when this one was waited for
  std::size_t times = 1;  ///< as many micro-batches do likewise
};

/// What an exchange takes; its constructor allocates from the same plan.
struct ExchangePlan {
  std::int64_t weight_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t gathered_bytes = 0;       ///< weights of other ranks, while they are used
  std::int64_t full_gradient_bytes = 0;  ///< of units, until they are reduced to the rank's part
  std::vector<PlannedCall> calls{};      ///< of a step, in order
  std::vector<UnitPart> owned{};         ///< as GradientExchange::owned and stored
  std::vector<UnitPart> stored{};
  bool reduces_each_micro_batch = false;
  bool keeps_weights = true;  ///< at their place from step to step, so that backends' copies of them pay
};

/// An exchange, as decks and the planner know it. `values` are those of section parallel.
struct ExchangeKind {
  const char* name;
  const char* doc;
  std::span<const ParamSpec> params;  ///< of section parallel, without those of an earlier kind
  bool shards;                        ///< the ranks along Axis::shard hold different parts
  bool gathers_within_passes;         ///< so that a pass cannot be queued as a whole
  ExchangePlan (*plan)(const ParamValues& values, const ExchangeScope& scope);
  /// Collective. The references outlive the exchange.
  std::unique_ptr<GradientExchange> (*make)(const ParamValues& values, const ExchangeScope& scope,
                                            ComputeBackend& backend, MemoryLedger& ledger,
                                            const ProcessGrid& grid);
};

/// All exchanges, the default first.
std::span<const ExchangeKind* const> exchanges();

}  // namespace mylos
