// SPDX-License-Identifier: BSD-3-Clause
// GradientExchange: which rank owns which part of a unit, and when and how gradients are combined.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "core/communication/communicator.hpp"
#include "core/layout/parameter_table.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/model/program.hpp"
#include "core/optim/optimizer.hpp"
#include "core/param_spec.hpp"
#include "core/param_values.hpp"
#include "parallel/process_grid.hpp"
#include "parallel/repetition.hpp"

namespace mylos {

/// A block acquires a unit.
struct UnitAcquisition {
  UnitAccess access;
  int visit = 0;         ///< number of the pass through a block; units that the pass acquires share it
  int micro_batch = -1;  ///< as numbered by excerpt_of; -1 outside a step
};
/// A pass through the blocks completes a range of a unit's gradient.
struct GradientCompletion {
  GradientRange range;
  bool is_last = false;  ///< no later micro-batch of the step adds to it
};
using UnitEvent = std::variant<UnitAcquisition, GradientCompletion>;

/// The sequences in which units are acquired; the order of acquisitions in each is known at set-up.
enum class UnitSequence : std::uint8_t { step, evaluation, generation };
inline constexpr std::size_t num_unit_sequences = 3;
/// The events of one sequence, in which one micro-batch stands for all that repeat it.
struct UnitEventList {
  std::vector<UnitEvent> events;
  Repetition repeated;  ///< the events of that micro-batch
};
using UnitEvents = std::array<UnitEventList, num_unit_sequences>;

/// The ranges of gradients in the order in which a step completes them.
std::vector<GradientRange> completions_of(const UnitEvents& events);

/// The weights and gradients of a unit while it is acquired: flat buffers of Unit::size elements.
struct UnitView {
  // (size) compute type. The version identifies the content; 0 if backends should not keep copies of it.
  TensorRef weights;
  TensorRef gradients;  // (size) fp32 or compute type; empty unless requested
};

/// Holds the units' weights and gradients. Each strategy of data parallelism is one implementation.
class GradientExchange {
 public:
  explicit GradientExchange(const ParameterTable& table) : table_(table) {}
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;
  virtual ~GradientExchange() = default;

  /// Starts a sequence, whose events then follow in order.
  virtual void begin(UnitSequence /*sequence*/) {}
  /// The unit's weights and gradients, as requested by the access, until `release`.
  virtual UnitView acquire(const UnitAccess& access) = 0;
  virtual void release(int unit) = 0;

  /// Whether gradients are reduced after each micro-batch's backward pass, not only after the last one of the
  /// step. Each backward pass then overwrites the gradients.
  virtual bool reduces_each_micro_batch() const { return false; }
  /// Reports that a range of a unit's gradient has this rank's last contribution before the reduction. May
  /// start that reduction without waiting for it, and may wait for earlier reductions.
  virtual void gradient_ready(const GradientRange& range) = 0;
  /// Whether `gradient_ready` starts a reduction for this range. Such a range ends a segment that can be
  /// queued as a whole.
  virtual bool starts_reduction(const GradientRange& range) const = 0;
  /// Starts the remaining reductions and waits for all. Afterwards `gradient` of every owned part is the sum
  /// over the ranks along `loss_axes`.
  virtual void reduce() = 0;

  /// The parts that this rank's optimizer updates: one per unit, which may be empty and may begin at any
  /// element, since the optimizer works on single elements.
  virtual std::vector<UnitPart> owned() const = 0;
  /// The parts that this rank writes to a checkpoint. The stored parts of all ranks that hold the same
  /// parameters cover every unit once, before twins (Parameter::twins) divide them further.
  virtual std::vector<UnitPart> stored() const = 0;
  /// Along these axes the owned parts of a parameter are disjoint. Along the other axes, ranks that hold the
  /// same part of a parameter own the same part.
  virtual AxisSet sharded_axes() const = 0;
  virtual TensorRef weights(const UnitPart& part) const = 0;   // (count) compute type
  virtual TensorRef gradient(const UnitPart& part) const = 0;  // (count)

  /// Brings the changed owned weights of a unit to all ranks that use them. Collective; does not wait until
  /// they arrive. The caller must not access the weights until it has called `settle` or acquired the unit.
  virtual void publish(int unit) = 0;
  /// The same for all units.
  void publish_all() {
    for (int unit = 0; unit < table_.num_units(); ++unit) publish(unit);
  }
  /// Waits for all publications. Call it before this rank accesses weights outside `acquire` or stops
  /// communicating for long.
  virtual void settle() {}

 protected:
  const ParameterTable& table() const { return table_; }

 private:
  const ParameterTable& table_;
};

/// If an exchange divides along Axis::shard, the ranks along these axes own the same parts and hold different
/// terms of their gradients.
inline constexpr AxisSet replica_axes = loss_axes.without({Axis::shard});

/// Every unit as one part.
std::vector<UnitPart> whole_units(const ParameterTable& table);
/// The share of `parts` that rank `rank` of the `ranks` ranks that hold them writes to a checkpoint; rank 0
/// has no fewer elements than any other.
std::vector<UnitPart> share_of(const std::vector<UnitPart>& parts, int ranks, int rank);

/// What an exchange is planned and made for: one rank of a layout, its number formats and its events.
struct ExchangeScope {
  const ParameterTable& table;
  Coordinates coordinates{};
  DType compute_type = DType::fp32;
  DType gradient_type = DType::fp32;
  /// If the step has no events, the exchange holds no gradients.
  UnitEvents events{};
};

/// A collective of a step, as planned.
struct PlannedCall {
  AxisSet group;
  CommOperation operation = CommOperation::all_reduce;
  std::int64_t count = 0;  ///< elements, as in CollectiveCall
  DType dtype = DType::fp32;
  /// Number of calls in the list that have started when this one is waited for.
  std::size_t until = 0;
  std::size_t times = 1;  ///< how many times the call is made: once per micro-batch that it stands for
};

/// The memory and the calls that an exchange needs. The exchange's constructor allocates by the same plan.
struct ExchangePlan {
  std::int64_t weight_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t gathered_bytes = 0;       ///< whole units' weights, while they are used
  std::int64_t full_gradient_bytes = 0;  ///< whole units' gradients, until reduced to the rank's part
  std::vector<PlannedCall> calls{};      ///< of a step, in order
  std::vector<UnitPart> owned{};         ///< as GradientExchange::owned; `stored` as GradientExchange::stored
  std::vector<UnitPart> stored{};
  bool reduces_each_micro_batch = false;
  /// Weights keep their place from step to step, so that backends may keep copies of them.
  bool keeps_weights = true;
};

/// An exchange as decks and the planner see it. `values` contains at least section parallel.
struct ExchangeKind {
  const char* name;
  const char* doc;
  std::span<const ParamSpec> params;  ///< of section parallel, except those that an earlier kind declares
  bool shards;                        ///< the ranks along Axis::shard hold different parts
  bool gathers_within_passes;         ///< gathers weights during passes; rules out graphs
  ExchangePlan (*plan)(const ParamValues& values, const ExchangeScope& scope);
  /// Collective. `backend`, `ledger`, `grid` and the scope's table must outlive the exchange.
  std::unique_ptr<GradientExchange> (*make)(const ParamValues& values, const ExchangeScope& scope,
                                            ComputeBackend& backend, MemoryLedger& ledger,
                                            const ProcessGrid& grid);
};

/// All exchanges, the default first.
std::span<const ExchangeKind* const> exchanges();

}  // namespace mylos
