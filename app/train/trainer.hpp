// SPDX-License-Identifier: BSD-3-Clause
// Trainer: a run from its first step to its last, with data, checkpoints, metrics, evaluation and stop
// requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <ctime>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/deck/run_config.hpp"
#include "app/launch/run_directory.hpp"
#include "app/launch/session.hpp"
#include "app/launch/stop_signals.hpp"
#include "app/train/choice_evaluator.hpp"
#include "app/train/console.hpp"
#include "app/train/evaluator.hpp"
#include "app/train/fault.hpp"
#include "app/train/opened_model.hpp"
#include "app/train/read_totals.hpp"
#include "app/train/run_checkpoints.hpp"
#include "app/train/run_state.hpp"
#include "app/train/step_record.hpp"
#include "app/train/tensorboard.hpp"
#include "app/train/wall_clock_limit.hpp"
#include "core/base/clock.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/metrics/metrics.hpp"
#include "io/tokens/sample_stream.hpp"
#include "io/tokens/token_dataset.hpp"
#include "parallel/engine/list_check.hpp"
#include "parallel/engine/training_step.hpp"

namespace mylos {

/// How a run ended.
struct TrainResult {
  ExitCode code = ExitCode::done;
  std::string state;  ///< "done", "stopped", "preempted", "failed"
  std::string message;
  std::int64_t step = 0;
};

/// When a process was launched, by both clocks.
struct LaunchTime {
  Clock::time_point clock = Clock::now();
  double unix_seconds = static_cast<double>(std::time(nullptr));
};

/// The objects that a trainer uses; everything referred to must outlive the trainer.
struct TrainerContext {
  Session& session;
  IoThread& io;
  IoThread& checkpoint_io;  ///< a second thread, so that rows of metrics do not wait for checkpoints
  const RunConfig& config;
  const std::string& resolved_deck;
  std::span<const ParamSpec> specs;  ///< of the deck's keys
  const RunPaths& paths;
  Console& console;
  const Fault& fault;
  const StopSignals& signals;
  const LaunchTime& launched;
  double peak_tflops = 0.0;  ///< of one rank
  SampleStream& samples;     ///< to train on
  std::optional<TokenDataset> valid_data;
  TokenizerIdentity tokenizer;               ///< of both data sets; without a name if unknown
  double data_seconds = 0.0;                 ///< time taken to open the data
  std::atomic<std::int64_t>& step;           ///< the step queued last; the watchdog's thread reads it
  std::optional<ChoiceQuestions> choices{};  ///< of [eval] choices
  std::unique_ptr<OpenedModel> initial{};    ///< of [model] init, for a run without a checkpoint
};

class Trainer final : private StepDriver {
 public:
  explicit Trainer(TrainerContext context);

  /// Starts from initial weights, random or those of [model] init, or, if `restart` is given, from a
  /// checkpoint: "newest" means the newest undamaged one, "step_N" that of step N. With "newest", warns and
  /// uses initial weights if there are no checkpoints.
  void start(const std::optional<std::string>& restart);
  /// Trains until the last step, a stop request or a failure that the guard reports.
  TrainResult run();

 private:
  /// A step that is queued and whose results have not been read.
  struct QueuedStep {
    std::int64_t step = 0;
    std::int64_t sample = 0;  // running index of the next step's first sample
    // The traffic of queuing the step; once its results have been read, the traffic of the whole step.
    std::vector<TrafficRow> traffic;
  };

  /// A step whose results this rank has read; the measurements of all ranks are on their way.
  struct ReadStep {
    QueuedStep queued;
    StepScalars scalars;  // of this rank's stage, if stages do not wait for each other
    StepGather gather;
    std::vector<TrafficRow> before;  // all traffic until the results were read, without the step's
  };

  /// The stop request of the wall-clock limit; the other requests are signal numbers.
  static constexpr int wall_clock_request = -1;

  void restore_from(CheckpointReader& reader);
  void begin_with_initial_weights();
  /// Renames the traces of later steps: they belong to the history that this run gives up.
  void set_aside_traces();
  /// Warns of settings that change nothing in the steps that follow.
  void warn_of_idle_settings();
  bool evaluates_after(std::int64_t step) const;
  bool pauses_after(std::int64_t step) const;
  /// The last step of this launch, as far as is known.
  std::int64_t end_step() const { return std::min(last_step_, stop_step_); }
  /// The step up to which stages may begin steps while `step` is under way.
  std::int64_t last_to_begin(std::int64_t step) const;
  bool may_queue_step() const;
  /// Whether nothing is under way, on any stage, and the weights are those after `step_`.
  bool is_drained() const { return queued_.empty() && drains_; }
  bool must_await(std::int64_t step) const;
  /// Reads the results of the step queued first, and sends this rank's measurements of it to the others.
  void read_step();
  /// Decides, as all ranks do, what follows from a step. Returns how the run ended, if it did.
  std::optional<TrainResult> finish_step(ReadStep finished);
  TrainResult preempted();
  void queue_step();
  void read_samples(std::int64_t step, std::int64_t first, std::span<std::int32_t> tokens) override;
  void before(const Action& action, std::int64_t step) override;
  void after(const Action& action, std::int64_t step) override;
  void inject(const Action& action, std::int64_t step);
  /// Adds a row to the metrics, on rank 0.
  void append(const std::string& table, const MetricsRow& row);
  /// Returns this rank's stop request; 0 if there is none.
  int own_stop_request();
  void record(const QueuedStep& finished, const StepScalars& scalars, const StepObservation& seen);
  /// Returns a stop request that at least one rank has, the same on all ranks; 0 if none has one. Collective.
  int agree_on_stop();
  /// Returns false if the evaluation was interrupted.
  bool run_evaluation();
  void record(const EvalResult& result);
  void record(const ChoiceSummary& choices);
  void write_checkpoint(bool ends_run);
  /// Records a checkpoint that was written and read back.
  void note_written(const WrittenCheckpoint& written, double stall_seconds);
  void flush();
  void write_trace();
  RunState state() const;

  TrainerContext context_;
  Session& session_;
  const RunConfig& config_;
  Console& console_;

  ComputeBackend& backend_;
  CheckedProgram program_;
  TrainingStep training_;
  RunCheckpoints checkpoints_;
  std::unique_ptr<MetricsWriter> metrics_;    // on rank 0
  std::unique_ptr<TensorBoard> tensorboard_;  // likewise, if the deck asks for it

  WallClockLimit wall_clock_limit_;
  std::int64_t last_step_;           // `stop_step`, or the last step of the whole run
  std::atomic<std::int64_t>& step_;  // queued last
  std::int64_t sample_ = 0;          // running index of the next step's first sample
  ReadCounter read_;
  std::deque<QueuedStep> queued_;
  std::deque<ReadStep> read_steps_;
  const bool is_asynchronous_;  // stages do not wait for each other
  const std::int64_t lag_;      // steps from one whose measurements end the run to the last one
  bool drains_ = true;          // no stage has begun a step after the one that was queued last
  std::int64_t stop_step_ = std::numeric_limits<std::int64_t>::max();  // agreed
  std::optional<TrainResult> failure_;                                 // the run's end after that step
  GuardState guard_;                                                   // after the last finished step
  int stop_request_ = 0;         // a signal or `wall_clock_request`; 0 if there is none
  bool evaluation_due_ = false;  // an evaluation of the weights after `step_`
  std::optional<InitialWeights> initial_;
  bool checkpoint_due_ = false;
  double evaluation_seconds_ = 0.0;
};

}  // namespace mylos
