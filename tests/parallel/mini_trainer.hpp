// SPDX-License-Identifier: BSD-3-Clause
// MiniTrainer: training steps on given tokens, with access to every tensor by name.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/deck/run_config.hpp"
#include "core/communication/communicator.hpp"
#include "core/trace/traced_backend.hpp"
#include "parallel/engine/training_step.hpp"

namespace mylos {

/// The complete configuration of `ranks` data-parallel ranks: constant learning rate, DDP, AdamW, and
/// defaults.
RunConfig mini_config(const ModelConfig& model, std::int64_t global_batch, std::int64_t seq_len,
                      std::int64_t ranks = 1, std::int64_t accumulation = 1);

/// An optimizer with its default parameters.
OptimizerConfig optimizer_config(std::string_view name);

/// Sets the exchange and the size of the groups over which it shards: `shard` ranks.
void set_exchange(RunConfig& config, std::string_view name, std::int64_t shard);

/// Sets how DDP reduces: see the deck's parallel.ddp_mode and parallel.bucket_mb.
void set_ddp(RunConfig& config, std::string_view mode, double bucket_mb = 25.0);

/// The tokens of step `step` (1 for the first), (global_batch, T + 1): noisy affine walks that can be learnt.
std::vector<std::int32_t> walk_tokens(const RunConfig& config, std::int64_t step);

/// A copy of a backend's floats on the host; waits for the backend.
std::vector<float> floats_on_host(ComputeBackend& backend, const TensorRef& tensor);

/// One rank of a run. It begins with the initial weights of the configuration's seed.
class MiniTrainer {
 public:
  /// Splits `world` as the configuration says. Collective. All arguments except the last must outlive the
  /// trainer.
  MiniTrainer(ComputeBackend& backend, MemoryLedger& ledger, Communicator& world, const RunConfig& config);
  MiniTrainer(const MiniTrainer&) = delete;
  MiniTrainer& operator=(const MiniTrainer&) = delete;

  const ParameterTable& table() const { return training_.table(); }
  ModelExecutor& executor() { return training_.executor(); }
  const RankProgram& program() const { return training_.program(); }
  RankState& state() { return training_.state(); }
  const ProcessGrid& grid() const { return grid_; }
  const std::vector<std::string>& wait_axes() const { return training_.wait_axes(); }
  /// The trace of the steps: off until it is started.
  Trace& trace() { return trace_; }
  /// The traffic by axis.
  TrafficCounter& traffic() { return traffic_; }

  /// One step on a global batch (global_batch, T + 1), of which this rank takes its share.
  StepScalars step(std::span<const std::int32_t> tokens);
  /// The two halves of `step`: `run` queues a step, `read` reads the results of the earliest unread one.
  void run(std::span<const std::int32_t> tokens);
  const StepResults& read();

  /// The next four functions are collective. Weights as fp32, from the master if there is one; without
  /// padding.
  std::vector<float> weight(std::string_view name);
  void set_weight(std::string_view name, std::span<const float> values);
  /// The gradient of the last step, before clipping; without padding.
  std::vector<float> gradient(std::string_view name);
  /// All gradients, one after the other, in the order of the table.
  std::vector<float> whole_gradient();

 private:
  /// Calls visit(part, piece) for each piece of a parameter that this rank owns.
  template <class Visit>
  void for_each_owned(const Parameter& parameter, const Visit& visit);
  /// Joins the elements of a parameter from the ranks that own them; `of` gives the tensor of a part of the
  /// optimizer. Collective.
  template <class Of>
  std::vector<float> joined_values(const Parameter& parameter, const Of& of);

  ComputeBackend& backend_;
  RunConfig config_;
  Trace trace_;
  TracedBackend traced_;
  TrafficCounter traffic_;
  ProcessGrid grid_;
  RankProgram program_;
  TrainingStep training_;
  std::int64_t step_ = 0;
};

}  // namespace mylos
