// SPDX-License-Identifier: BSD-3-Clause
// TrainingStep: executes the schedule of a step, and owns what the rank runs and keeps.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.hpp"
#include "core/layout/parameter_table.hpp"
#include "core/memory/device_buffer.hpp"
#include "core/memory/device_event.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/memory/transfer_buffer.hpp"
#include "core/ops/step_scalars.hpp"
#include "core/trace/trace.hpp"
#include "parallel/engine/model_executor.hpp"
#include "parallel/engine/rank_program.hpp"
#include "parallel/engine/rank_state.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

/// How the device spends the time of a step. Time that a pass or the update spends waiting for communication
/// counts as part of it; `communication` is all other communication.
enum class StepPhase : std::uint8_t { data, forward, backward, communication, optimizer };
inline constexpr int num_step_phases = 5;

constexpr std::string_view name_of(StepPhase phase) {
  constexpr std::array<std::string_view, num_step_phases> names = {"data", "forward", "backward",
                                                                   "communication", "optimizer"};
  return names[static_cast<std::size_t>(phase)];
}

/// Seconds, by phase.
using PhaseSeconds = std::array<double, num_step_phases>;

/// The scalars of a step from those of the parts of the model that an asynchronous pipeline updates one by
/// one: only one part adds to the loss, the squares of the norms add up, and a step of which a part was
/// skipped counts as skipped.
StepScalars merged(std::span<const StepScalars> parts);

/// The results of a step. In an asynchronous pipeline, those of the rank's part of the model.
struct StepResults {
  StepScalars scalars;
  GuardState guard;  ///< the guard's state after the step; nothing in an asynchronous pipeline
  /// Sums of RoutingStatistics over the rank's micro-batches; 0 for blocks of other ranks, and where another
  /// rank along the tensor axis has the same sums.
  std::vector<float> statistics;
  PhaseSeconds phase_seconds{};
  /// That passes waited for messages of other stages; part of their phases.
  double idle_seconds = 0.0;
  /// That passes and updates waited for calls in the groups of TrainingStep::wait_axes(), messages included;
  /// part of their phases.
  std::vector<double> wait_seconds;
  /// Wall time until the results of the step are read, from its start or, if later, from the reading of the
  /// previous results.
  double seconds = 0.0;
};

/// The caller of steps: supplies tokens, and may observe or intervene between actions.
class StepDriver {
 public:
  virtual ~StepDriver() = default;

  /// Fills `tokens` (B, T + 1) with samples `first`, `first` + 1, ... of the global batch of step `step`.
  virtual void read_samples(std::int64_t step, std::int64_t first, std::span<std::int32_t> tokens) = 0;
  virtual void before(const Action& /*action*/, std::int64_t /*step*/) {}
  /// `action` is queued; the device may still be executing it.
  virtual void after(const Action& /*action*/, std::int64_t /*step*/) {}
};

/// One rank's part of every step.
class TrainingStep final : private ActionObserver {
 public:
  /// Throws ExitCode::usage if graphs are requested and `backend` cannot record them. The first step needs
  /// weights: from `initialise`, or restored through `state`. `trace` records the step, its phases and its
  /// reading of samples. Collective: the programs of all ranks must fit each other (check_lists). All
  /// arguments must outlive the object.
  TrainingStep(ComputeBackend& backend, MemoryLedger& ledger, const ProcessGrid& grid,
               const RankProgram& program, Trace& trace);
  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  /// Sets the initial weights for the configuration's seed. Collective.
  void initialise();

  /// Queues step `step`, the successor of the previous one, and returns while the device may still be
  /// executing it; at most two steps may be unread. A schedule that overlaps steps also begins later steps,
  /// up to `last`. Evaluation, checkpoints and changes of weights are therefore possible only after a step
  /// that ran with `last` = `step`. Collective.
  void run(std::int64_t step, std::int64_t last, StepDriver& driver);
  /// Number of steps whose results have not been read.
  std::size_t num_unread() const { return num_run_ - num_read_; }
  /// How many steps to leave unread while there are more to run: 1 on a device, which then has work while the
  /// host processes the results of the previous step; 0 if the host itself computes.
  std::size_t num_to_leave_unread() const { return backend_.host_accessible() ? 0 : 1; }
  /// Waits until the device has finished the earliest unread step, and reads its results.
  void read_results();
  /// The results of the step that was read last.
  const StepResults& results() const { return results_; }
  /// The labels of the grid's groups of several ranks (ProcessGrid::label), the same on every rank.
  const std::vector<std::string>& wait_axes() const { return wait_axes_; }

  /// Sets the guard's state; no step may be unread.
  void set_guard(const GuardState& state);
  /// The weights that are set from outside next are those after step `step`. Older versions are kept from
  /// `oldest` on: micro-batches that would use older ones use that one.
  void continue_after(std::int64_t step, std::int64_t oldest);
  std::int64_t oldest_version() const { return oldest_; }

  /// The version of the weights that an action of a step reads or makes.
  std::int64_t version_of(const Action& action, std::int64_t step) const;

  const RankProgram& program() const { return program_; }
  const ParameterTable& table() const { return program_.table(); }
  RankState& state() { return state_; }
  ModelExecutor& executor() { return executor_; }

 private:
  class PhaseScope;
  /// The work that a phase queued, or a wait (no phase), between two events.
  struct Span {
    std::optional<StepPhase> phase;
    std::size_t axes = 0;     // of a wait: the place of its group's label in `wait_axes`
    bool is_message = false;  // of a wait
    DeviceEvent begin, end;
  };

  /// The data that a step exchanges with the host. Two slots alternate: while one step is queued, the results
  /// of the other are read.
  struct Slot {
    Slot(ComputeBackend& backend, std::size_t updates, std::size_t statistics);
    TransferBuffer outputs;  // the guard's state, then StepScalars and then statistics of each update
    std::vector<Span> spans;
    std::size_t num_spans = 0;  // used by this step so far
    Clock::time_point start;
  };

  /// Executes an action of `occurrences_`.
  void execute(std::size_t number, StepDriver& driver);
  /// The first step does not use graphs, because libraries choose algorithms and allocate memory when they
  /// first see an operation. Nor does a traced step, because a trace shows each operation separately.
  bool as_graphs() const { return graphs_ && num_run_ > 0 && !trace_.on(); }
  /// Sends a step's number and learning rate to the device, and copies the loss scale if steps overlap.
  void begin(std::int64_t step);
  StepMemory* memory_of(std::int64_t step, int update = 0) const;
  std::size_t num_updates() const { return static_cast<std::size_t>(program_.num_updates()); }
  GuardState* guard_state(int update = 0) const;
  Slot& slot_of(std::size_t run) { return slots_[run % slots_.size()]; }
  Span& next_span(std::optional<StepPhase> phase);
  void at_entry(const Entry& entry) override { trace_.set_entry(&entry); }
  void begin_wait(AxisSet group, bool is_message) override;
  void end_wait() override;
  std::int64_t first_sample(int micro_batch) const;

  ComputeBackend& backend_;
  const StepConfig& config_;
  Trace& trace_;
  const bool graphs_;
  const RankProgram& program_;
  ModelExecutor executor_;
  RankState state_{program_, executor_};
  std::vector<std::int32_t> tokens_;  // a micro-batch (B, T + 1)
  std::array<Slot, 2> slots_;
  std::array<TransferBuffer, 2> inputs_;  // StepScalars of the steps that begin, used alternately
  std::vector<Occurrence> occurrences_;   // of the step that runs
  std::int64_t begun_ = 0;                // the last step that was begun
  std::int64_t oldest_ = 0;               // version of the weights
  std::size_t num_run_ = 0;               // number of steps so far
  std::size_t num_read_ = 0;
  const AxisSet used_axes_;
  std::vector<AxisSet> wait_groups_;  // of several ranks, by used axes
  std::vector<std::string> wait_axes_;
  std::size_t wait_ = 0;  // the span of the wait that has begun
  StepResults results_;
  Clock::time_point last_read_;
};

}  // namespace mylos
