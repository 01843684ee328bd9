// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/training_step.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "parallel/engine/initial_weights.hpp"
#include "parallel/engine/unit_events.hpp"

namespace mylos {

namespace {

/// The values of a step that the host reads.
struct StepOutputs {
  StepScalars scalars;
  GuardState guard;
};

}  // namespace

TrainingStep::Slot::Slot(ComputeBackend& backend) : outputs(backend, sizeof(StepOutputs)) {}

/// Assigns the work queued between construction and destruction to a phase.
class TrainingStep::PhaseScope {
 public:
  PhaseScope(TrainingStep& step, StepPhase phase)
      : event_(step.trace_.record(name_of(phase), TraceKind::phase)), span_(step.next_span()) {
    span_.phase = phase;
    span_.begin.record();
  }
  ~PhaseScope() { span_.end.record(); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Trace::Scope event_;
  PhaseSpan& span_;
};

TrainingStep::TrainingStep(ComputeBackend& backend, MemoryLedger& ledger, const ProcessGrid& grid,
                           const StepConfig& config, Trace& trace)
    : backend_(backend),
      grid_(grid),
      coordinates_(grid.coordinates()),
      world_(grid.group(all_axes)),
      config_(config),
      trace_(trace),
      graphs_(config.graphs.value_or(backend.can_capture())),
      table_(config.table(grid.coordinates())),
      schedule_(config.parallel.schedule->make(static_cast<int>(config.train.accumulation))),
      has_head_(schedule_.held_chunks().contains(schedule_.chunks - 1)),
      slots_{Slot(backend), Slot(backend)},
      inputs_{TransferBuffer(backend, sizeof(StepScalars)), TransferBuffer(backend, sizeof(StepScalars))} {
  if (graphs_ && !backend.can_capture())
    fail(ExitCode::usage, "[backend] graphs = true needs a GPU: {} cannot record graphs",
         backend.description());
  const TrainConfig& train = config.train;
  ModelPrograms programs = record_programs(config.model, table_, config.programs(schedule_, coordinates_));
  const ExchangeScope scope{.table = table_,
                            .coordinates = coordinates_,
                            .compute_type = train.dtype,
                            .gradient_type = train.grad_dtype,
                            .events = unit_events_of(schedule_, programs)};
  exchange_ = config.parallel.exchange->make(config.parallel.values, scope, backend, ledger, grid);
  optimizer_ = config.optimizer.kind->make(config.optimizer,
                                           {backend, ledger, table_, train.dtype, exchange_->owned()});
  executor_ = std::make_unique<ModelExecutor>(backend, ledger, grid, *exchange_, schedule_,
                                              std::move(programs), config.model, train.shape(), graphs_);

  tensor_terms_ = tensor_terms(table_, optimizer_->parts());
  find_norm_ranges();
  guard_config_ = config.guard;
  // Only the stage with the last chunk computes the loss. Of its ranks, those that differ only along axes
  // outside `loss_axes` compute the same terms.
  const int copies_of_loss = coordinates_.extent(all_axes.without(loss_axes).without({Axis::pipeline}));
  guard_config_.loss_factor = config.per_token() / static_cast<float>(copies_of_loss);

  const auto under_way = static_cast<std::size_t>(schedule_.ahead()) + 1;
  memory_ = DeviceBuffer(backend, ledger, MemoryCategory::workspace, under_way * sizeof(StepMemory),
                         "mylos::step_memory");
  guard_state_ =
      DeviceBuffer(backend, ledger, MemoryCategory::workspace, sizeof(GuardState), "mylos::guard_state");
  for (std::size_t i = 0; graphs_ && i < under_way; ++i)
    update_graphs_.push_back({DeviceGraph(backend), DeviceGraph(backend)});
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
  backend_.copy_to_device(&state, guard_state_.data(), sizeof state);
  for (std::int64_t step = 0; step <= schedule_.ahead(); ++step) {
    StepScalars scalars;
    scalars.loss_scale = state.loss_scale;
    backend_.copy_to_device(&scalars, &memory_of(step)->scalars, sizeof scalars);
    backend_.synchronize();
  }
}

TrainingStep::StepMemory* TrainingStep::memory_of(std::int64_t step) const {
  return static_cast<StepMemory*>(memory_.data()) + step % (schedule_.ahead() + 1);
}

void TrainingStep::begin(std::int64_t step) {
  TransferBuffer& upload = inputs_[static_cast<std::size_t>(step) % inputs_.size()];
  auto* inputs = static_cast<StepScalars*>(upload.data());
  inputs->step = step;
  inputs->learning_rate = static_cast<float>(learning_rate(config_.lr, step));
  StepScalars* scalars = &memory_of(step)->scalars;
  upload.upload(0, scalars, offsetof(StepScalars, loss_scale));
  if (schedule_.ahead() > 0) {
    const auto* guard = static_cast<const GuardState*>(guard_state_.data());
    backend_.copy(&guard->loss_scale, &scalars->loss_scale, sizeof(float));
  }
  // A rank without the head adds nothing to the loss.
  if (!has_head_)
    backend_.run(Fill{.y = {&memory_of(step)->guard_input.loss_sum, DType::fp32, {1}}, .value = 0.0F});
  begun_ = step;
}

void TrainingStep::run(std::int64_t step, std::int64_t last, StepDriver& driver) {
  require(num_unread() < slots_.size(), "at most two steps are unread");
  const Trace::Scope event = trace_.record(whole_step, TraceKind::phase);
  Slot& slot = slot_of(num_run_);
  slot.start = Clock::now();
  slot.num_spans = 0;
  const bool is_begun = schedule_.ahead() > 0 && begun_ >= step;
  if (!is_begun) begun_ = step - 1;
  executor_->begin_step();
  schedule_.for_each_action(step, is_begun, last, [&](const Occurrence& occurrence) {
    const Action& action = schedule_.actions[occurrence.index];
    if (occurrence.step > begun_) begin(occurrence.step);
    driver.before(action);
    execute(occurrence, driver);
    driver.after(action);
  });
  executor_->finish_messages();
  slot.outputs.download(&memory_of(step)->scalars, offsetof(StepOutputs, scalars), sizeof(StepScalars));
  slot.outputs.download(guard_state_.data(), offsetof(StepOutputs, guard), sizeof(GuardState));
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

void TrainingStep::run_pass(const Occurrence& occurrence, StepDriver& driver) {
  const Action& action = schedule_.actions[occurrence.index];
  const std::int64_t first = first_sample(action.micro_batch);
  if (!is_message(action.kind) && executor_->has_messages()) {
    const PhaseScope scope(*this, StepPhase::communication);
    executor_->finish_messages();
  }
  if (executor_->begin(occurrence)) {
    const PhaseScope scope(*this, StepPhase::data);
    {
      const Trace::Scope event = trace_.record("read_samples", TraceKind::data);
      driver.read_samples(occurrence.step, first, tokens_);
    }
    executor_->load(tokens_);
  }
  StepPhase phase = StepPhase::backward;
  if (action.kind == ActionKind::forward) phase = StepPhase::forward;
  if (is_message(action.kind)) phase = StepPhase::communication;
  const PhaseScope scope(*this, phase);
  StepMemory* memory = memory_of(occurrence.step);
  executor_->run(occurrence, {.first_sample = first,
                              .scalars = &memory->scalars,
                              .loss_sum = {&memory->guard_input.loss_sum, DType::fp32, {1}},
                              .as_graphs = as_graphs()});
}

void TrainingStep::execute(const Occurrence& occurrence, StepDriver& driver) {
  const Action& action = schedule_.actions[occurrence.index];
  switch (action.kind) {
    case ActionKind::forward:
    case ActionKind::backward:
    case ActionKind::backward_input:
    case ActionKind::backward_weight:
    case ActionKind::send_forward:
    case ActionKind::receive_forward:
    case ActionKind::send_backward:
    case ActionKind::receive_backward:
      run_pass(occurrence, driver);
      break;
    case ActionKind::reduce: {
      const PhaseScope scope(*this, StepPhase::communication);
      executor_->finish_messages();
      exchange_->reduce();
      sum_tensor_terms();
      break;
    }
    case ActionKind::step: {
      const PhaseScope scope(*this, StepPhase::optimizer);
      update(occurrence.step);
      break;
    }
  }
}

std::int64_t TrainingStep::first_sample(int micro_batch) const {
  const TrainConfig& train = config_.train;
  return micro_batch * train.sample_stride() + coordinates_.index(sample_axes) * train.micro_batch;
}

std::vector<TrainingStep::PartRange> TrainingStep::tensor_terms(const ParameterTable& table,
                                                                const std::vector<UnitPart>& owned) {
  std::vector<PartRange> ranges;
  for (std::size_t part = 0; part < owned.size(); ++part) {
    bool is_joined = false;
    for (const Piece& piece : pieces_of(table, owned[part])) {
      const bool has_terms = piece.parameter.along(Axis::tensor).kind == Placement::Kind::summed;
      if (has_terms && !is_joined) ranges.push_back({.part = part, .begin = piece.offset});
      if (has_terms) ranges.back().count = piece.offset + piece.count - ranges.back().begin;
      is_joined = has_terms;
    }
  }
  return ranges;
}

std::vector<PlannedCall> TrainingStep::tensor_calls(const ParameterTable& table,
                                                    const std::vector<UnitPart>& owned, DType gradient_type,
                                                    std::size_t before) {
  std::vector<PlannedCall> calls;
  const std::vector<PartRange> ranges = tensor_terms(table, owned);
  for (const PartRange& range : ranges)
    calls.push_back({.group = {Axis::tensor},
                     .count = range.count,
                     .dtype = gradient_type,
                     .until = before + ranges.size()});
  return calls;
}

void TrainingStep::sum_tensor_terms() {
  std::vector<Request> requests;
  for (const PartRange& range : tensor_terms_) {
    const TensorRef gradient = exchange_->gradient(optimizer_->parts()[range.part]);
    requests.push_back(
        grid_.group({Axis::tensor}).all_reduce(gradient.flat(range.begin, range.count), ReduceOp::sum));
  }
  for (Request& request : requests) request.wait();
}

void TrainingStep::find_norm_ranges() {
  const int owners = coordinates_.extent(exchange_->sharded_axes());
  for (std::size_t i = 0; i < optimizer_->parts().size(); ++i) {
    const UnitPart& part = optimizer_->parts()[i];
    const std::vector<Piece> pieces = pieces_of(table_, part);
    const auto copies_of = [&](const Piece& piece) { return piece.parameter.copies / owners; };
    norm_ranges_.push_back({.range = {.part = i, .begin = 0, .count = part.count},
                            .copies = pieces.empty() ? 1 : copies_of(pieces.front())});
    for (const Piece& piece : pieces) {
      PartRange& last = norm_ranges_.back().range;
      const int copies = copies_of(piece);
      if (norm_ranges_.back().copies == copies) continue;
      const std::int64_t end = last.begin + last.count;
      last.count = piece.offset - last.begin;  // the padding between parameters is zero
      norm_ranges_.push_back(
          {.range = {.part = i, .begin = piece.offset, .count = end - piece.offset}, .copies = copies});
    }
  }
}

void TrainingStep::update(std::int64_t step) {
  StepMemory* memory = memory_of(step);
  GuardInput* input = &memory->guard_input;
  const auto queue = [&](std::size_t part, const auto& work) {
    if (!as_graphs()) return work();
    update_graphs_[static_cast<std::size_t>(step % (schedule_.ahead() + 1))][part].queue(work);
  };
  const auto add_norm = [&] {
    bool accumulates = false;
    for (const auto& [range, copies] : norm_ranges_) {
      const TensorRef gradient = exchange_->gradient(optimizer_->parts()[range.part]);
      backend_.run(SumOfSquares{.x = gradient.flat(range.begin, range.count),
                                .out = {&input->norm_squared, DType::fp32, {1}},
                                .factor = 1.0F / static_cast<float>(copies),
                                .accumulate = std::exchange(accumulates, true)});
    }
  };
  const auto apply = [&] {
    backend_.run(GuardStep{.config = guard_config_,
                           .input = input,
                           .state = static_cast<GuardState*>(guard_state_.data()),
                           .scalars = &memory->scalars});
    const auto& parts = optimizer_->parts();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      optimizer_->step(i, exchange_->weights(parts[i]), exchange_->gradient(parts[i]), &memory->scalars);
      if (!as_graphs()) exchange_->publish(parts[i].unit);
    }
  };
  if (world_.size() == 1) {
    queue(0, [&] {
      add_norm();
      apply();
    });
  } else {
    queue(0, add_norm);
    world_.all_reduce({input, DType::fp32, {guard_call().count}}, ReduceOp::sum).wait();
    queue(1, apply);
  }
  if (as_graphs()) exchange_->publish_all();
}

}  // namespace mylos
