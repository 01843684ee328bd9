// SPDX-License-Identifier: BSD-3-Clause
// Ddp: every rank holds everything; gradients are summed in one of the four ways of the DDP study
// (Li et al., "PyTorch Distributed", VLDB 2020, for buckets and overlap).
#pragma once

#include <cstdint>
#include <vector>

#include "core/communicator.hpp"
#include "core/memory/device_buffer.hpp"
#include "parallel/exchange/gradient_exchange.hpp"

namespace mylos {

enum class DdpMode : std::uint8_t {
  per_parameter,  ///< one all_reduce a parameter, after the last backward
  flat,           ///< one all_reduce, after the last backward
  overlapped,     ///< one all_reduce a parameter, as soon as it is complete
  bucketed,       ///< as soon as `bucket_bytes` are complete
};

struct DdpConfig {
  DdpMode mode = DdpMode::bucketed;
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  DType compute_type = DType::fp32;
  DType gradient_type = DType::fp32;
  bool gradients = true;  ///< false for evaluation and generation
};

/// What `rank` of `ranks` replicas writes to a checkpoint; rank 0 no fewer elements than another.
std::vector<UnitPart> stored_parts(const ParameterTable& table, int ranks, int rank);

/// All gradients lie in one buffer, in the order in which backward completes them: head, blocks from last to
/// first, embedding. Only the last micro-batch of a step is reduced.
class Ddp final : public GradientExchange {
 public:
  /// `replicas` are the ranks that have other terms of the same gradients.
  Ddp(ComputeBackend& backend, MemoryLedger& ledger, const ParameterTable& table, const DdpConfig& config,
      Communicator& replicas);

  UnitView acquire(int unit, Phase phase, int micro_batch) override;
  void release(int unit, Phase phase) override;
  void gradient_ready(int unit, std::int64_t begin, std::int64_t end, int micro_batch, bool last) override;
  void reduce() override;
  bool communicates(ActionKind action, bool last_micro_batch) const override;
  std::vector<UnitPart> owned() const override;
  std::vector<UnitPart> stored() const override;
  AxisSet sharded_axes() const override { return {}; }
  TensorRef weights(const UnitPart& part) const override;
  TensorRef gradient(const UnitPart& part) const override;
  void apply(AdamW& optimizer, const StepScalars* scalars) override;
  void publish() override { ++version_; }

 private:
  std::int64_t offset(int unit) const { return offsets_[static_cast<std::size_t>(unit)]; }
  std::int64_t unit_size(int unit) const { return table_.units()[static_cast<std::size_t>(unit)].size; }
  TensorRef flat(const DeviceBuffer& buffer, DType type) const;
  /// Starts the reduction of elements [begin, end) of the whole buffer.
  void start(std::int64_t begin, std::int64_t end);
  /// One reduction for each parameter that begins in [begin, end) of a unit.
  void start_parameters(int unit, std::int64_t begin, std::int64_t end);

  const ParameterTable& table_;
  DdpConfig config_;
  Communicator& replicas_;
  std::int64_t size_;                  // elements of all units
  std::vector<std::int64_t> offsets_;  // of each unit in the buffers
  DeviceBuffer weights_;
  DeviceBuffer gradients_;
  std::uint64_t version_ = 1;
  std::int64_t complete_ = 0;  // elements complete in this step's last micro-batch
  std::int64_t started_ = 0;   // of these, under reduction
  std::vector<Request> requests_;
};

}  // namespace mylos
