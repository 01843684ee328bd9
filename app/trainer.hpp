// SPDX-License-Identifier: BSD-3-Clause
// Trainer: executes the schedule. Knows no strategy and no device by name.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/console.hpp"
#include "app/evaluator.hpp"
#include "app/fault.hpp"
#include "app/model_executor.hpp"
#include "app/run_config.hpp"
#include "app/run_directory.hpp"
#include "app/session.hpp"
#include "app/stop_signals.hpp"
#include "io/checkpoint.hpp"
#include "io/metrics.hpp"
#include "io/token_dataset.hpp"

namespace mylos {

/// How a run ended.
struct TrainResult {
  ExitCode code = ExitCode::done;
  std::string state;  ///< "done", "stopped", "preempted", "failed"
  std::string message;
  std::int64_t step = 0;
};

/// Where a step's time goes.
enum class StepPhase : std::uint8_t { data, forward, backward, communication, optimizer };
inline constexpr int num_step_phases = 5;

/// What a trainer works with; all of it outlives the trainer.
struct TrainerContext {
  Session& session;
  IoThread& io;
  const RunConfig& config;
  const std::string& resolved_deck;
  const RunPaths& paths;
  Console& console;
  const Fault& fault;
  const StopSignals& signals;
  std::chrono::steady_clock::time_point launched;
  double peak_tflops = 0.0;                ///< of one rank
  std::optional<TokenDataset> train_data;  ///< required
  std::optional<TokenDataset> valid_data;
  std::atomic<std::int64_t>& step;  ///< the step under way or finished last; the watchdog's thread reads it
};

class Trainer {
 public:
  explicit Trainer(TrainerContext context);
  ~Trainer();

  /// Starts from initial weights, or from a checkpoint: where `restart` is given the newest whole one, or
  /// step_N.
  void start(const std::optional<std::string>& restart);
  /// Runs until the last step, a stop request or a failure that the guard reports.
  TrainResult run();

 private:
  using Clock = std::chrono::steady_clock;

  /// What all ranks know of a finished step.
  struct Observation {
    double step_seconds_min = 0.0, step_seconds_median = 0.0, step_seconds_max = 0.0;
    double phase_seconds[num_step_phases] = {};  // maximum over ranks
    double memory_min = 0.0, memory_median = 0.0, memory_max = 0.0;
    int stop_request = 0;  // a signal number, or wall_clock_request
  };
  static constexpr int wall_clock_request = -1;

  void restore_from(CheckpointReader& reader);
  void train_step();
  void execute(const Action& action);
  void load_micro_batch(int micro_batch);
  void take_step();
  Observation observe(double step_seconds);
  void record(const Observation& seen);
  void run_evaluation();
  void write_checkpoint();
  void check_replicas();
  bool wall_clock_is_near() const;
  std::int64_t first_sample(int micro_batch) const;
  std::string state_json() const;
  void inject(std::string_view phase);

  Session& session_;
  IoThread& io_;
  const RunConfig& config_;
  const std::string& resolved_deck_;
  RunPaths paths_;
  Console& console_;
  const Fault& fault_;
  const StopSignals& signals_;
  Clock::time_point launched_;
  double peak_tflops_;

  ComputeBackend& backend_;
  Communicator& data_;  // the ranks along the data axis
  ParameterTable table_;
  Schedule schedule_;
  std::unique_ptr<GradientExchange> exchange_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<ModelExecutor> executor_;
  TokenDataset train_data_;
  std::optional<TokenDataset> valid_data_;
  CheckpointStore checkpoints_;
  std::unique_ptr<MetricsWriter> metrics_;  // on rank 0

  DeviceBuffer scalars_;       // StepScalars
  DeviceBuffer guard_input_;   // GuardInput
  DeviceBuffer guard_state_;   // GuardState
  DeviceBuffer observations_;  // int64, own and every rank's
  StepScalars host_scalars_;
  GuardState host_guard_;
  GuardConfig guard_config_;

  std::atomic<std::int64_t>& step_;
  std::int64_t sample_ = 0;  // running index of the next step's first sample
  std::int64_t saved_step_ = -1;
  bool checkpoint_due_ = false;
  double slowest_step_ = 0.0;  // seconds
  double slowest_checkpoint_ = 0.0;
  double checkpoint_seconds_ = 0.0;  // since the last row of metrics
  double evaluation_seconds_ = 0.0;
  double slowest_evaluation_ = 0.0;
  TrafficTotals traffic_before_;  // at the start of the step
  std::array<double, num_step_phases> phase_seconds_{};
  std::vector<std::int32_t> tokens_;  // a micro-batch
};

}  // namespace mylos
