// SPDX-License-Identifier: BSD-3-Clause
// ModelExecutor: runs micro-batches through the blocks, with weights from the exchange and activations in the
// arena.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/memory/device_buffer.hpp"
#include "core/memory/upload_buffer.hpp"
#include "core/model/model_programs.hpp"
#include "parallel/engine/activation_plan.hpp"
#include "parallel/exchange/gradient_exchange.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

class ModelExecutor {
 public:
  ModelExecutor(ComputeBackend& backend, MemoryLedger& ledger, const ModelConfig& model,
                const ParameterTable& table, GradientExchange& exchange, const Schedule& schedule,
                const ProgramConfig& config);

  const BatchShape& shape() const { return shape_; }
  std::size_t activation_bytes() const { return arena_.bytes(); }

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
  Binding& binding_of(int micro_batch);
  /// Runs the first `count` operations of a program.
  void replay(const Program& program, std::size_t count, Binding& binding, Phase phase, int micro_batch);
  void run_entry(const Entry& entry, Binding& binding, Phase phase, int micro_batch);
  /// Memory of the activation of this name.
  std::byte* memory(std::string_view name, const Binding& binding) const;

  ComputeBackend& backend_;
  GradientExchange& exchange_;
  ModelConfig model_;
  BatchShape shape_;
  int micro_batches_;
  std::vector<int> slot_of_;  // by micro-batch
  ModelPrograms programs_;
  DeviceBuffer arena_;
  std::vector<Binding> bindings_;        // by slot
  std::array<UploadBuffer, 2> uploads_;  // inputs and targets of a micro-batch, in turn
  std::size_t next_upload_ = 0;
  std::vector<float> host_losses_;
  std::vector<std::int32_t> host_correct_;
};

}  // namespace mylos
