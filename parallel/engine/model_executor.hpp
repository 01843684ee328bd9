// SPDX-License-Identifier: BSD-3-Clause
// ModelExecutor: runs micro-batches through the blocks, with weights from the exchange and activations in the
// arena.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/memory/device_buffer.hpp"
#include "core/memory/upload_buffer.hpp"
#include "core/model/block.hpp"
#include "parallel/engine/activation_plan.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

/// What an executor is made for.
struct ExecutorConfig {
  ModelConfig model;
  BatchShape shape;
  Recompute recompute = Recompute::none;
  std::uint64_t seed = 0;
  float gradient_scale = 1.0F;  ///< 1 / tokens of the global batch
};

class ModelExecutor {
 public:
  ModelExecutor(ComputeBackend& backend, MemoryLedger& ledger, const ParameterTable& table,
                GradientExchange& exchange, const Schedule& schedule, const ExecutorConfig& config);

  const BatchShape& shape() const { return config_.shape; }
  std::size_t activation_bytes() const { return plan_.bytes(); }

  /// Brings a micro-batch into its slot: B rows of T + 1 tokens, of which the last T are the targets; a
  /// negative token is a target that does not count (0 as input). The device may take them later.
  void load(int micro_batch, std::span<const std::int32_t> tokens);

  /// Forward of a training micro-batch; `first_sample` counts within the global batch.
  void forward(int micro_batch, std::int64_t first_sample, const StepScalars* scalars);
  /// Backward; adds the micro-batch's losses to loss_sum[0] (device, fp32), or sets it for micro-batch 0.
  void backward(int micro_batch, std::int64_t first_sample, const StepScalars* scalars, TensorRef loss_sum);

  /// Forward without gradients. Losses and hits are then on the host for `evaluation_losses()` and
  /// `evaluation_correct()`, one per row, until the next call.
  void evaluate();
  std::span<const float> evaluation_losses() const { return host_losses_; }
  std::span<const std::int32_t> evaluation_correct() const { return host_correct_; }

  /// Forward without gradients; the logits of row `row` (b * T + t) as fp32, vocabulary only.
  std::vector<float> logits(std::int64_t row);

 private:
  BlockContext context(int micro_batch, bool training, std::int64_t first_sample,
                       const StepScalars* scalars) const;
  void acquire(std::size_t block, Phase phase, int micro_batch);
  void release(std::size_t block, Phase phase);
  void run_forward(BlockContext& context, int micro_batch);
  void* at(std::size_t offset) const { return static_cast<std::byte*>(arena_.data()) + offset; }
  TensorRef stream(int slot, std::size_t block) const;

  ComputeBackend& backend_;
  GradientExchange& exchange_;
  ExecutorConfig config_;
  int micro_batches_;
  std::vector<std::unique_ptr<Block>> blocks_;
  ActivationPlan plan_;
  DeviceBuffer arena_;
  std::vector<std::vector<std::vector<void*>>> buffers_;  // by slot and block
  std::vector<std::vector<int>> block_units_;
  std::vector<UnitView> units_;          // of the block at work
  std::array<UploadBuffer, 2> uploads_;  // inputs and targets of a micro-batch, in turn
  std::size_t next_upload_ = 0;
  std::vector<float> host_losses_;
  std::vector<std::int32_t> host_correct_;
};

}  // namespace mylos
