// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/training_step.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace mylos {

namespace {

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

StepScalars merged(std::span<const StepScalars> parts) {
  StepScalars all = parts.front();
  double squares = 0.0;
  all.loss = 0.0F;
  for (const StepScalars& part : parts) {
    all.loss += part.loss;
    squares += static_cast<double>(part.gradient_norm) * part.gradient_norm;
    all.skip |= part.skip;
  }
  all.gradient_norm = parts.size() == 1 ? all.gradient_norm : static_cast<float>(std::sqrt(squares));
  return all;
}

TrainingStep::Slot::Slot(ComputeBackend& backend, std::size_t updates, std::size_t statistics)
    : outputs(backend, sizeof(GuardState) + updates * (sizeof(StepScalars) + statistics * sizeof(float))) {}

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
      slots_{Slot(backend, num_updates(), program.num_statistics()),
             Slot(backend, num_updates(), program.num_statistics())},
      inputs_{TransferBuffer(backend, sizeof(StepScalars)), TransferBuffer(backend, sizeof(StepScalars))},
      used_axes_(grid.coordinates().used_axes()) {
  for (const AxisSet axes : grid.groups()) {
    if (axes == AxisSet()) continue;
    wait_groups_.push_back(axes);
    wait_axes_.push_back(ProcessGrid::label(grid.coordinates(), axes));
  }
  results_.wait_seconds.resize(wait_axes_.size());
  GuardState guard;
  guard.loss_scale = config_.train.loss_scale;
  set_guard(guard);
  tokens_.resize(static_cast<std::size_t>(config_.train.micro_batch * (config_.train.seq_len + 1)));
}

void TrainingStep::initialise() {
  state_.initialise(backend_, config_.train.seed);
}

GuardState* TrainingStep::guard_state(int update) const {
  return static_cast<GuardState*>(executor_.memory_of(program_.guard_state())) + update;
}

void TrainingStep::set_guard(const GuardState& state) {
  require(num_unread() == 0, "the guard is not set while steps are under way");
  results_.guard = state;
  for (int update = 0; update < program_.num_updates(); ++update) {
    backend_.copy_to_device(&state, guard_state(update), sizeof state);
    for (std::int64_t step = 0; step <= program_.schedule().ahead(); ++step) {
      std::vector<std::byte> memory(program_.step_memory_bytes());
      StepScalars scalars;
      scalars.loss_scale = state.loss_scale;
      std::memcpy(memory.data(), &scalars, sizeof scalars);
      backend_.copy_to_device(memory.data(), memory_of(step, update), memory.size());
      backend_.synchronize();
    }
  }
}

void TrainingStep::continue_after(std::int64_t step, std::int64_t oldest) {
  executor_.set_version(step);
  oldest_ = oldest;
}

StepMemory* TrainingStep::memory_of(std::int64_t step, int update) const {
  const std::int64_t number = step % (program_.schedule().ahead() + 1) * program_.num_updates() + update;
  return reinterpret_cast<StepMemory*>(static_cast<std::byte*>(executor_.memory_of(program_.step_memory())) +
                                       static_cast<std::size_t>(number) * program_.step_memory_bytes());
}

void TrainingStep::begin(std::int64_t step) {
  TransferBuffer& upload = inputs_[static_cast<std::size_t>(step) % inputs_.size()];
  auto* inputs = static_cast<StepScalars*>(upload.data());
  inputs->step = step;
  inputs->learning_rate = static_cast<float>(learning_rate(config_.lr, step));
  for (int update = 0; update < program_.num_updates(); ++update) {
    StepScalars* scalars = &memory_of(step, update)->scalars;
    upload.upload(0, scalars, offsetof(StepScalars, loss_scale));
    if (program_.schedule().ahead() > 0)
      backend_.copy(&guard_state(update)->loss_scale, &scalars->loss_scale, sizeof(float));
  }
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
  occurrences_.clear();
  program_.schedule().for_each_action(
      step, is_begun, last, [&](const Occurrence& occurrence) { occurrences_.push_back(occurrence); });
  for (std::size_t i = 0; i < occurrences_.size(); ++i) {
    const Occurrence& occurrence = occurrences_[i];
    const Action& action = program_.schedule().actions[occurrence.index];
    if (occurrence.step > begun_) begin(occurrence.step);
    driver.before(action, occurrence.step);
    execute(i, driver);
    driver.after(action, occurrence.step);
  }
  // What is under way would be awaited by passes that may never come.
  if (program_.schedule().ahead() > 0 && step == last) executor_.settle();
  slot.outputs.download(guard_state(), 0, sizeof(GuardState));
  const std::size_t sums = program_.num_statistics() * sizeof(float);
  for (std::size_t update = 0; update < num_updates(); ++update) {
    const StepMemory* memory = memory_of(step, static_cast<int>(update));
    slot.outputs.download(&memory->scalars, sizeof(GuardState) + update * sizeof(StepScalars),
                          sizeof(StepScalars));
    if (sums > 0)
      slot.outputs.download(memory + 1,
                            sizeof(GuardState) + num_updates() * sizeof(StepScalars) + update * sums, sums);
  }
  ++num_run_;
}

void TrainingStep::read_results() {
  require(num_unread() > 0, "there is an unread step");
  const Slot& slot = slot_of(num_read_);
  const auto* guard = static_cast<const GuardState*>(slot.outputs.data());
  const auto* parts = reinterpret_cast<const StepScalars*>(guard + 1);
  ++num_read_;
  const auto now = Clock::now();
  results_.seconds = in_seconds(now - std::max(slot.start, last_read_));
  last_read_ = now;
  results_.scalars = merged({parts, num_updates()});
  // Blocks belong to one update each; of others they have sums of 0.
  const auto* sums = reinterpret_cast<const float*>(parts + num_updates());
  results_.statistics.assign(program_.num_statistics(), 0.0F);
  const bool counts = program_.coordinates().index(same_loss_axes) == 0;
  for (std::size_t i = 0; counts && i < num_updates() * results_.statistics.size(); ++i)
    results_.statistics[i % results_.statistics.size()] += sums[i];
  if (program_.schedule().rules.empty()) results_.guard = *guard;
  results_.phase_seconds.fill(0.0);
  results_.idle_seconds = 0.0;
  std::ranges::fill(results_.wait_seconds, 0.0);
  for (std::size_t i = 0; i < slot.num_spans; ++i) {
    const Span& span = slot.spans[i];
    const double seconds = span.end.seconds_since(span.begin);
    if (span.phase) {
      results_.phase_seconds[static_cast<std::size_t>(*span.phase)] += seconds;
      continue;
    }
    results_.wait_seconds[span.axes] += seconds;
    if (span.is_message) results_.idle_seconds += seconds;
  }
}

TrainingStep::Span& TrainingStep::next_span(std::optional<StepPhase> phase) {
  Slot& slot = slot_of(num_run_);
  if (slot.num_spans == slot.spans.size())
    slot.spans.push_back({{}, 0, false, DeviceEvent(backend_), DeviceEvent(backend_)});
  Span& span = slot.spans[slot.num_spans++];
  span.phase = phase;
  return span;
}

void TrainingStep::begin_wait(AxisSet group, bool is_message) {
  wait_ = slot_of(num_run_).num_spans;
  Span& span = next_span({});
  const auto found = std::ranges::find(wait_groups_, group.common(used_axes_));
  span.axes = static_cast<std::size_t>(found - wait_groups_.begin());
  span.is_message = is_message;
  span.begin.record();
}

void TrainingStep::end_wait() {
  slot_of(num_run_).spans[wait_].end.record();
}

void TrainingStep::execute(std::size_t number, StepDriver& driver) {
  const Occurrence& occurrence = occurrences_[number];
  const Action& action = program_.schedule().actions[occurrence.index];
  // Messages that follow one another are posted together, where none between them is left out.
  const auto is_message_at = [&](std::size_t at) {
    return at < occurrences_.size() && is_message(program_.schedule().actions[occurrences_[at].index].kind);
  };
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
  if (is_pass) trace_.set_pass(action.micro_batch, action.chunk);
  const PhaseScope scope(*this, phase_of(action.kind), event_name(action.kind));
  StepMemory* memory =
      memory_of(occurrence.step, is_message(action.kind) ? 0 : program_.update_of(action.chunk));
  executor_.run(occurrence, {.first_sample = first,
                             .scalars = &memory->scalars,
                             .guard_input = &memory->guard_input,
                             .version = version_of(action, occurrence.step),
                             .begins_messages = !is_message_at(number - 1),
                             .ends_messages = !is_message_at(number + 1),
                             .as_graphs = as_graphs(),
                             .observer = this});
  trace_.set_pass(-1, -1);
}

std::int64_t TrainingStep::version_of(const Action& action, std::int64_t step) const {
  const Schedule& schedule = program_.schedule();
  if (action.kind == ActionKind::step) return step;
  if (schedule.rules.empty() || !is_of_micro_batch(action.kind)) return step - 1;
  const std::int64_t number = (step - 1) * schedule.micro_batches + action.micro_batch;
  return std::max(oldest_, schedule.rules[static_cast<std::size_t>(action.chunk)].version_of(number));
}

std::int64_t TrainingStep::first_sample(int micro_batch) const {
  const TrainConfig& train = config_.train;
  // The lists of an asynchronous pipeline number the micro-batches of all replicas.
  if (!program_.schedule().rules.empty()) return micro_batch * train.micro_batch;
  return micro_batch * train.sample_stride() + program_.coordinates().index(sample_axes) * train.micro_batch;
}

}  // namespace mylos
