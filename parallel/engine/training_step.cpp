// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/training_step.hpp"

#include <algorithm>
#include <cstddef>

#include "parallel/engine/initial_weights.hpp"

namespace mylos {

namespace {

/// What the host reads of a step.
struct StepOutputs {
  StepScalars scalars;
  GuardState guard;
};

}  // namespace

TrainingStep::Slot::Slot(ComputeBackend& backend)
    : inputs(backend, sizeof(StepScalars)), outputs(backend, sizeof(StepOutputs)) {}

/// What is queued between construction and destruction belongs to a phase.
class TrainingStep::PhaseScope {
 public:
  PhaseScope(TrainingStep& step, StepPhase phase)
      : event_(step.trace_.record(name_of(phase), {}, TraceKind::phase)), span_(step.next_span()) {
    span_.phase = phase;
    span_.begin.record({});
  }
  ~PhaseScope() { span_.end.record({}); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Trace::Scope event_;
  PhaseSpan& span_;
};

TrainingStep::TrainingStep(ComputeBackend& backend, MemoryLedger& ledger, const ProcessGrid& grid,
                           const StepConfig& config, Trace& trace)
    : backend_(backend),
      coordinates_(grid.coordinates()),
      world_(grid.group(all_axes)),
      config_(config),
      trace_(trace),
      table_(ParameterTable(config.model).local(grid.coordinates())),
      schedule_(make_schedule(config.parallel, config.train.accumulation)),
      slots_{Slot(backend), Slot(backend)} {
  if (config.graphs) {
    if (!backend.can_capture()) {
      fail(ExitCode::usage, "[backend] graphs = true needs a GPU: {} records no work", backend.description());
    }
    for (std::size_t i = 0; i < schedule_.repeat.size(); ++i) graphs_.emplace_back(backend);
  }
  const TrainConfig& train = config.train;
  const ExchangeTypes types{.compute = train.dtype, .gradient = train.grad_dtype};
  exchange_ = make_exchange(config.parallel, types, backend, ledger, table_, grid);
  optimizer_ =
      std::make_unique<AdamW>(backend, ledger, table_, config.adamw, train.dtype, exchange_->owned());
  executor_ = std::make_unique<ModelExecutor>(backend, ledger, config.model, table_, *exchange_, schedule_,
                                              config.programs());

  find_norm_ranges();
  guard_config_ = config.guard;
  // Stages before the last have no loss; ranks along the other axes all have the same.
  const int copies_of_loss = coordinates_.extent(all_axes.without(loss_axes).without({Axis::pipeline}));
  guard_config_.loss_factor = config.per_token() / static_cast<float>(copies_of_loss);

  const auto small = [&](std::size_t bytes, const char* label) {
    return DeviceBuffer(backend, ledger, MemoryCategory::workspace, bytes, label);
  };
  scalars_ = small(sizeof(StepScalars), "mylos::step_scalars");
  guard_input_ = small(sizeof(GuardInput), "mylos::guard_input");
  guard_state_ = small(sizeof(GuardState), "mylos::guard_state");
  GuardState guard;
  guard.loss_scale = train.loss_scale;
  set_guard(guard);
  tokens_.resize(static_cast<std::size_t>(train.micro_batch * (train.seq_len + 1)));
}

void TrainingStep::initialise() {
  initialise_weights(backend_, table_, config_.train.seed, *exchange_, *optimizer_);
}

void TrainingStep::set_guard(const GuardState& state) {
  require(num_unread() == 0, "the guard is not set while steps are under way");
  results_.guard = state;
  StepScalars scalars;
  scalars.loss_scale = state.loss_scale;
  backend_.copy_to_device({}, &state, guard_state_.data(), sizeof state);
  backend_.copy_to_device({}, &scalars, scalars_.data(), sizeof scalars);
  backend_.synchronize({});
}

void TrainingStep::run(std::int64_t step, StepDriver& driver) {
  require(num_unread() < slots_.size(), "at most two steps are unread");
  const Trace::Scope event = trace_.record(whole_step, {}, TraceKind::phase);
  Slot& slot = slot_of(num_run_);
  slot.start = std::chrono::steady_clock::now();
  slot.num_spans = 0;
  auto* inputs = static_cast<StepScalars*>(slot.inputs.fill());
  inputs->step = step;
  inputs->learning_rate = static_cast<float>(learning_rate(config_.lr, step));
  slot.inputs.upload({}, 0, scalars_.data(), offsetof(StepScalars, loss_scale));
  for (std::size_t i = 0; i < schedule_.repeat.size(); ++i) {
    driver.before(schedule_.repeat[i]);
    execute(i, driver);
    driver.after(schedule_.repeat[i]);
  }
  slot.outputs.download({}, scalars_.data(), offsetof(StepOutputs, scalars), sizeof(StepScalars));
  slot.outputs.download({}, guard_state_.data(), offsetof(StepOutputs, guard), sizeof(GuardState));
  ++num_run_;
}

void TrainingStep::read_results() {
  require(num_unread() > 0, "a step was run");
  const Slot& slot = slot_of(num_read_);
  const auto& outputs = *static_cast<const StepOutputs*>(slot.outputs.read());
  ++num_read_;
  const auto now = std::chrono::steady_clock::now();
  results_.seconds = std::chrono::duration<double>(now - std::max(slot.start, last_read_)).count();
  last_read_ = now;
  results_.scalars = outputs.scalars;
  results_.guard = outputs.guard;
  results_.phase_seconds.fill(0.0);
  for (std::size_t i = 0; i < slot.num_spans; ++i) {
    const PhaseSpan& span = slot.spans[i];
    results_.phase_seconds[static_cast<std::size_t>(span.phase)] += span.end.seconds_since(span.begin);
  }
}

TrainingStep::PhaseSpan& TrainingStep::next_span() {
  Slot& slot = slot_of(num_run_);
  if (slot.num_spans == slot.spans.size())
    slot.spans.push_back({{}, DeviceEvent(backend_), DeviceEvent(backend_)});
  return slot.spans[slot.num_spans++];
}

template <class Work>
void TrainingStep::queue(std::size_t index, const Work& work) {
  const Action& action = schedule_.repeat[index];
  const bool is_first = num_run_ == 0;
  const bool is_last = action.micro_batch == schedule_.micro_batches - 1;
  const bool communicates =
      exchange_->communicates(action.kind, is_last) || (action.kind == ActionKind::step && world_.size() > 1);
  if (graphs_.empty() || is_first || trace_.on() || communicates) return work();
  graphs_[index].queue({}, work);
}

void TrainingStep::execute(std::size_t index, StepDriver& driver) {
  const Action& action = schedule_.repeat[index];
  const auto timed = [&](StepPhase phase) { return PhaseScope(*this, phase); };
  const auto* scalars = static_cast<const StepScalars*>(scalars_.data());
  const int m = action.micro_batch;
  switch (action.kind) {
    case ActionKind::forward: {
      {
        const PhaseScope scope = timed(StepPhase::data);
        {
          const Trace::Scope event = trace_.record("read_samples", {}, TraceKind::data);
          driver.read_samples(first_sample(m), tokens_);
        }
        executor_->load(m, tokens_);
      }
      const PhaseScope scope = timed(StepPhase::forward);
      queue(index, [&] { executor_->forward(m, first_sample(m), scalars); });
      break;
    }
    case ActionKind::backward: {
      const PhaseScope scope = timed(StepPhase::backward);
      queue(index, [&] {
        executor_->backward(m, first_sample(m), scalars, {guard_input_.data(), DType::fp32, {1}});
      });
      break;
    }
    case ActionKind::reduce: {
      const PhaseScope scope = timed(StepPhase::communication);
      exchange_->reduce();
      break;
    }
    case ActionKind::step: {
      const PhaseScope scope = timed(StepPhase::optimizer);
      queue(index, [&] { update(); });
      exchange_->publish();
      break;
    }
  }
}

std::int64_t TrainingStep::first_sample(int micro_batch) const {
  const std::int64_t ranks = coordinates_.extent(sample_axes);
  return (micro_batch * ranks + coordinates_.index(sample_axes)) * config_.train.micro_batch;
}

void TrainingStep::find_norm_ranges() {
  const int owners = coordinates_.extent(exchange_->sharded_axes());
  for (std::size_t i = 0; i < optimizer_->parts().size(); ++i) {
    const UnitPart& part = optimizer_->parts()[i];
    const std::vector<Piece> pieces = pieces_of(table_, part);
    const auto copies_of = [&](const Piece& piece) { return piece.parameter.copies / owners; };
    norm_ranges_.push_back({.part = i,
                            .begin = 0,
                            .count = part.count,
                            .copies = pieces.empty() ? 1 : copies_of(pieces.front())});
    for (const Piece& piece : pieces) {
      NormRange& last = norm_ranges_.back();
      const int copies = copies_of(piece);
      if (last.copies == copies) continue;
      const std::int64_t end = last.begin + last.count;
      last.count = piece.offset - last.begin;  // what lies between parameters is zero
      norm_ranges_.push_back(
          {.part = i, .begin = piece.offset, .count = end - piece.offset, .copies = copies});
    }
  }
}

void TrainingStep::update() {
  auto* input = static_cast<GuardInput*>(guard_input_.data());
  const TensorRef norm_squared(&input->norm_squared, DType::fp32, {1});
  bool accumulates = false;
  for (const NormRange& range : norm_ranges_) {
    const TensorRef gradient = exchange_->gradient(optimizer_->parts()[range.part]);
    backend_.run(SumOfSquares{.x = gradient.flat(range.begin, range.count),
                              .out = norm_squared,
                              .factor = 1.0F / static_cast<float>(range.copies),
                              .accumulate = accumulates});
    accumulates = true;
  }
  if (world_.size() > 1) {
    constexpr std::int64_t fields = sizeof(GuardInput) / sizeof(float);
    world_.all_reduce({}, {input, DType::fp32, {fields}}, ReduceOp::sum).wait({});
  }
  auto* scalars = static_cast<StepScalars*>(scalars_.data());
  backend_.run(GuardStep{.config = guard_config_,
                         .input = input,
                         .state = static_cast<GuardState*>(guard_state_.data()),
                         .scalars = scalars});
  exchange_->apply(*optimizer_, scalars);
}

}  // namespace mylos
