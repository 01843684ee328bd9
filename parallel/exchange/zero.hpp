// SPDX-License-Identifier: BSD-3-Clause
// Zero: data parallelism whose ranks divide the optimizer's states and, depending on the stage, the gradients
// and the parameters (Rajbhandari et al., "ZeRO", SC 2020; Zhao et al., "PyTorch FSDP", VLDB 2023, for units
// and prefetching).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/memory/device_buffer.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/exchange/zero_layout.hpp"

namespace mylos {

/// Each rank along Axis::shard owns a part of every unit. A unit's gradient is reduce-scattered when the
/// step's last backward pass has completed it or, if gradients are divided, after every backward pass that
/// completes it. A divided gradient exists as a whole only from its first contribution until that reduction.
/// After a unit's last reduction of the step, the replicas sum the gradients of the parts that they own.
/// Undivided weights are gathered after the update, and their next use waits for the gather. Divided weights
/// are gathered before they are used.
class Zero final : public GradientExchange {
 public:
  /// `shards` are the ranks along Axis::shard. `replicas` are the ranks that own the same parts and hold
  /// different terms of the gradients; null if this rank is the only one. Collective.
  Zero(const ZeroConfig& config, const ExchangeScope& scope, ComputeBackend& backend, MemoryLedger& ledger,
       Communicator& shards, Communicator* replicas);
  ~Zero() override;

  void begin(UnitSequence sequence) override;
  UnitView acquire(const UnitAccess& access) override;
  void release(int unit) override;
  bool reduces_each_micro_batch() const override { return config_.divides_gradients(); }
  void gradient_ready(const GradientRange& range) override;
  bool starts_reduction(const GradientRange& range) const override;
  void reduce() override;
  std::vector<UnitPart> owned() const override { return layout_.owned(table()); }
  std::vector<UnitPart> stored() const override;
  AxisSet sharded_axes() const override { return {Axis::shard}; }
  TensorRef weights(const UnitPart& part) const override;
  TensorRef gradient(const UnitPart& part) const override;
  void publish(int unit) override;
  void settle() override;

 private:
  struct Reduction {
    int unit = 0;
    bool is_last = false;
    Request request;
  };

  const ZeroLayout::Sequence& sequence() const {
    return layout_.sequences[static_cast<std::size_t>(sequence_)];
  }
  TensorRef gathered_weights(int unit, std::size_t acquisition);
  /// The unit's whole gradient, padded. Begins it if the unit has none.
  TensorRef begun_gradient(int unit, std::size_t acquisition);
  /// The same for a gradient that has already begun.
  TensorRef full_gradient(int unit) const;
  /// The padded unit, or the padded part that this rank owns.
  TensorRef whole(const DeviceBuffer& buffer, DType type, int unit) const;
  TensorRef own(const DeviceBuffer& buffer, DType type, bool is_divided, int unit) const;
  TensorRef own_weights(int unit) const {
    return own(weights_, compute_type_, config_.divides_weights(), unit);
  }
  TensorRef own_gradient(int unit) const {
    return own(gradients_, gradient_type_, config_.divides_gradients(), unit);
  }
  /// Waits for the reduction under way, if there is one; after a unit's last reduction of the step, starts
  /// the sum over the replicas.
  void finish_reduction();

  ZeroConfig config_;
  ComputeBackend& backend_;
  DType compute_type_, gradient_type_;
  Communicator& shards_;
  Communicator* replicas_;
  ZeroLayout layout_;
  DeviceBuffer weights_;         // whole units, or this rank's parts
  DeviceBuffer gradients_;       // the same; empty without gradients
  DeviceBuffer gathered_;        // whole units, if weights are divided
  DeviceBuffer full_gradients_;  // whole units, if gradients are divided

  std::vector<std::uint64_t> versions_;  // by unit; 0 if weights are divided
  std::vector<Request> publications_;    // by unit
  UnitSequence sequence_ = UnitSequence::step;
  std::size_t num_acquired_ = 0;  // of the sequence so far
  std::size_t num_completed_ = 0;
  std::vector<Request> gathers_;           // by unit: the latest
  std::vector<std::int64_t> gathered_at_;  // by unit: offset of the latest
  // By unit: offset of the whole gradient until its reduction; otherwise -1.
  std::vector<std::int64_t> full_gradient_of_;
  std::vector<bool> has_sum_;           // by unit: the part holds the sum of earlier micro-batches
  std::optional<Reduction> reduction_;  // under way
  std::vector<Request> sums_;           // over the replicas
};

}  // namespace mylos
