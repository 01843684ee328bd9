// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/training_step.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string_view>

namespace mylos {

namespace {

/// The values of a step that the host reads.
struct StepOutputs {
  StepScalars scalars;
  GuardState guard;
};

StepPhase phase_of(ActionKind kind) {
  if (kind == ActionKind::forward) return StepPhase::forward;
  if (is_backward(kind)) return StepPhase::backward;
  return kind == ActionKind::step ? StepPhase::optimizer : StepPhase::communication;
}

/// How a trace names an action.
std::string_view event_name(ActionKind kind) {
  return kind == ActionKind::forward || is_backward(kind) ? name_of(kind) : name_of(phase_of(kind));
}

}  // namespace

TrainingStep::Slot::Slot(ComputeBackend& backend) : outputs(backend, sizeof(StepOutputs)) {}

/// Assigns the work queued between construction and destruction to a phase; its event in a trace has `name`,
/// a literal.
class TrainingStep::PhaseScope {
 public:
  PhaseScope(TrainingStep& step, StepPhase phase, std::string_view name)
      : event_(step.trace_.record(name, TraceKind::phase)),
        slot_(step.slot_of(step.num_run_)),
        number_(slot_.num_spans) {
    step.next_span(phase).begin.record();
  }
  ~PhaseScope() { slot_.spans[number_].end.record(); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Trace::Scope event_;
  Slot& slot_;
  std::size_t number_;  // of the span: waits within the phase add others
};

TrainingStep::TrainingStep(ComputeBackend& backend, MemoryLedger& ledger, const ProcessGrid& grid,
                           const RankProgram& program, Trace& trace)
    : backend_(backend),
      config_(program.config()),
      trace_(trace),
      graphs_(has_graphs(program.config(), backend)),
      program_(program),
      executor_(backend, ledger, grid, program_, graphs_),
      slots_{Slot(backend), Slot(backend)},
      inputs_{TransferBuffer(backend, sizeof(StepScalars)), TransferBuffer(backend, sizeof(StepScalars))} {
  GuardState guard;
  guard.loss_scale = config_.train.loss_scale;
  set_guard(guard);
  tokens_.resize(static_cast<std::size_t>(config_.train.micro_batch * (config_.train.seq_len + 1)));
}

void TrainingStep::initialise() {
  state_.initialise(backend_, config_.train.seed);
}

GuardState* TrainingStep::guard_state() const {
  return static_cast<GuardState*>(executor_.memory_of(program_.guard_state()));
}

void TrainingStep::set_guard(const GuardState& state) {
  require(num_unread() == 0, "the guard is not set while steps are under way");
  results_.guard = state;
  backend_.copy_to_device(&state, guard_state(), sizeof state);
  for (std::int64_t step = 0; step <= program_.schedule().ahead(); ++step) {
    StepScalars scalars;
    scalars.loss_scale = state.loss_scale;
    backend_.copy_to_device(&scalars, &memory_of(step)->scalars, sizeof scalars);
    backend_.synchronize();
  }
}

StepMemory* TrainingStep::memory_of(std::int64_t step) const {
  return static_cast<StepMemory*>(executor_.memory_of(program_.step_memory())) +
         step % (program_.schedule().ahead() + 1);
}

void TrainingStep::begin(std::int64_t step) {
  TransferBuffer& upload = inputs_[static_cast<std::size_t>(step) % inputs_.size()];
  auto* inputs = static_cast<StepScalars*>(upload.data());
  inputs->step = step;
  inputs->learning_rate = static_cast<float>(learning_rate(config_.lr, step));
  StepScalars* scalars = &memory_of(step)->scalars;
  upload.upload(0, scalars, offsetof(StepScalars, loss_scale));
  if (program_.schedule().ahead() > 0)
    backend_.copy(&guard_state()->loss_scale, &scalars->loss_scale, sizeof(float));
  begun_ = step;
}

void TrainingStep::run(std::int64_t step, std::int64_t last, StepDriver& driver) {
  require(num_unread() < slots_.size(), "at most two steps are unread");
  const Trace::Scope event = trace_.record(whole_step, TraceKind::phase);
  Slot& slot = slot_of(num_run_);
  slot.start = Clock::now();
  slot.num_spans = 0;
  const bool is_begun = program_.schedule().ahead() > 0 && begun_ >= step;
  if (!is_begun) begun_ = step - 1;
  program_.schedule().for_each_action(step, is_begun, last, [&](const Occurrence& occurrence) {
    const Action& action = program_.schedule().actions[occurrence.index];
    if (occurrence.step > begun_) begin(occurrence.step);
    driver.before(action);
    execute(occurrence, driver);
    driver.after(action);
  });
  slot.outputs.download(&memory_of(step)->scalars, offsetof(StepOutputs, scalars), sizeof(StepScalars));
  slot.outputs.download(guard_state(), offsetof(StepOutputs, guard), sizeof(GuardState));
  ++num_run_;
}

void TrainingStep::read_results() {
  require(num_unread() > 0, "there is an unread step");
  const Slot& slot = slot_of(num_read_);
  const auto& outputs = *static_cast<const StepOutputs*>(slot.outputs.data());
  ++num_read_;
  const auto now = Clock::now();
  results_.seconds = std::chrono::duration<double>(now - std::max(slot.start, last_read_)).count();
  last_read_ = now;
  results_.scalars = outputs.scalars;
  results_.guard = outputs.guard;
  results_.phase_seconds.fill(0.0);
  results_.idle_seconds = 0.0;
  for (std::size_t i = 0; i < slot.num_spans; ++i) {
    const Span& span = slot.spans[i];
    double& seconds =
        span.phase ? results_.phase_seconds[static_cast<std::size_t>(*span.phase)] : results_.idle_seconds;
    seconds += span.end.seconds_since(span.begin);
  }
}

TrainingStep::Span& TrainingStep::next_span(std::optional<StepPhase> phase) {
  Slot& slot = slot_of(num_run_);
  if (slot.num_spans == slot.spans.size())
    slot.spans.push_back({{}, DeviceEvent(backend_), DeviceEvent(backend_)});
  Span& span = slot.spans[slot.num_spans++];
  span.phase = phase;
  return span;
}

void TrainingStep::begin_wait() {
  wait_ = slot_of(num_run_).num_spans;
  next_span({}).begin.record();
}

void TrainingStep::end_wait() {
  slot_of(num_run_).spans[wait_].end.record();
}

void TrainingStep::execute(const Occurrence& occurrence, StepDriver& driver) {
  const Action& action = program_.schedule().actions[occurrence.index];
  const bool is_pass = is_of_micro_batch(action.kind);
  const std::int64_t first = is_pass ? first_sample(action.micro_batch) : 0;
  if (is_pass && executor_.begin(occurrence) && executor_.needs_tokens()) {
    const PhaseScope scope(*this, StepPhase::data, name_of(StepPhase::data));
    {
      const Trace::Scope event = trace_.record("read_samples", TraceKind::data);
      driver.read_samples(occurrence.step, first, tokens_);
    }
    executor_.load(tokens_);
  }
  // The versions of the weights take turns.
  const int read = executor_.current_weights();
  const int written = (read + 1) % program_.num_versions();
  if (is_pass) trace_.set_pass(action.micro_batch, action.chunk);
  const PhaseScope scope(*this, phase_of(action.kind), event_name(action.kind));
  StepMemory* memory = memory_of(occurrence.step);
  executor_.run(occurrence, {.first_sample = first,
                             .scalars = &memory->scalars,
                             .guard_input = &memory->guard_input,
                             .weights = action.kind == ActionKind::step ? written : read,
                             .previous_weights = read,
                             .as_graphs = as_graphs(),
                             .observer = this});
  trace_.set_pass(-1, -1);
}

std::int64_t TrainingStep::first_sample(int micro_batch) const {
  const TrainConfig& train = config_.train;
  return micro_batch * train.sample_stride() + program_.coordinates().index(sample_axes) * train.micro_batch;
}

}  // namespace mylos
