// SPDX-License-Identifier: BSD-3-Clause
// GradientExchange: who owns which part of a unit, when and how gradients combine.
#pragma once

#include <cstdint>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/optim/adamw.hpp"
#include "parallel/schedule/schedule.hpp"

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
  virtual UnitView acquire(int unit, Phase phase, int micro_batch) = 0;
  virtual void release(int unit, Phase phase) = 0;

  /// Elements [begin, end) of a unit's gradient are complete for `micro_batch`; `last` of the step. May start
  /// a reduction; returns without waiting for it.
  virtual void gradient_ready(int unit, std::int64_t begin, std::int64_t end, int micro_batch, bool last) = 0;
  /// Starts what was not started and waits: afterwards `gradient` of every owned part is the sum over all
  /// ranks that have a term of it.
  virtual void reduce() = 0;

  /// Whether a forward, backward or step, of the last micro-batch or another, communicates or changes what
  /// the exchange remembers. One that does neither may be recorded once and queued again as it is.
  virtual bool communicates(ActionKind action, bool last_micro_batch) const = 0;

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
  virtual void apply(AdamW& optimizer, const StepScalars* scalars) = 0;
  /// The owned weights were changed: brings them to all ranks that use them.
  virtual void publish() = 0;
};

}  // namespace mylos
