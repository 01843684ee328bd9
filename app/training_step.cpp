// SPDX-License-Identifier: BSD-3-Clause
#include "app/training_step.hpp"

#include <cstddef>

#include "app/model_state.hpp"

namespace mylos {

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

TrainingStep::TrainingStep(ComputeBackend& backend, MemoryLedger& ledger, ProcessGrid& grid,
                           const RunConfig& config, Trace& trace)
    : backend_(backend),
      data_(grid.group(data_axes)),
      config_(config),
      trace_(trace),
      table_(config.model),
      schedule_(make_schedule(config.parallel, config.train.accumulation)) {
  const TrainConfig& train = config.train;
  const auto per_token = static_cast<float>(1.0 / static_cast<double>(train.global_batch * train.seq_len));
  const ExchangeTypes types{.compute = train.dtype, .gradient = train.grad_dtype};
  exchange_ = make_exchange(config.parallel, types, backend, ledger, table_, grid);
  optimizer_ =
      std::make_unique<AdamW>(backend, ledger, table_, config.adamw, train.dtype, exchange_->owned());
  ExecutorConfig executor;
  executor.model = config.model;
  executor.shape = {.batch = train.micro_batch, .seq = train.seq_len, .dtype = train.dtype};
  executor.recompute = train.recompute;
  executor.seed = train.seed;
  executor.gradient_scale = per_token;
  executor_ = std::make_unique<ModelExecutor>(backend, ledger, table_, *exchange_, schedule_, executor);

  guard_config_ = config.guard.device;
  guard_config_.loss_factor = per_token;
  guard_config_.norm_factor =
      exchange_->owns_disjoint_parts() ? 1.0F : 1.0F / static_cast<float>(data_.size());

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
  host_guard_ = state;
  host_scalars_.loss_scale = state.loss_scale;
  backend_.copy_to_device({}, &host_guard_, guard_state_.data(), sizeof host_guard_);
  backend_.copy_to_device({}, &host_scalars_, scalars_.data(), sizeof host_scalars_);
  backend_.synchronize({});
}

void TrainingStep::run(std::int64_t step, StepDriver& driver) {
  const Trace::Scope event = trace_.record(whole_step, {}, TraceKind::phase);
  num_spans_ = 0;
  host_scalars_.step = step;
  host_scalars_.learning_rate = static_cast<float>(learning_rate(config_.lr, step));
  backend_.copy_to_device({}, &host_scalars_, scalars_.data(), offsetof(StepScalars, loss_scale));
  for (const Action& action : schedule_.repeat) {
    driver.before(action);
    execute(action, driver);
    driver.after(action);
  }
  backend_.synchronize({});
  add_up_phases();
}

TrainingStep::PhaseSpan& TrainingStep::next_span() {
  if (num_spans_ == spans_.size()) spans_.push_back({{}, DeviceEvent(backend_), DeviceEvent(backend_)});
  return spans_[num_spans_++];
}

void TrainingStep::add_up_phases() {
  phase_seconds_.fill(0.0);
  for (std::size_t i = 0; i < num_spans_; ++i) {
    phase_seconds_[static_cast<std::size_t>(spans_[i].phase)] += spans_[i].end.seconds_since(spans_[i].begin);
  }
}

void TrainingStep::execute(const Action& action, StepDriver& driver) {
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
      executor_->forward(m, first_sample(m), scalars);
      break;
    }
    case ActionKind::backward: {
      const PhaseScope scope = timed(StepPhase::backward);
      executor_->backward(m, first_sample(m), scalars, {guard_input_.data(), DType::fp32, {1}});
      break;
    }
    case ActionKind::reduce: {
      const PhaseScope scope = timed(StepPhase::communication);
      exchange_->reduce();
      break;
    }
    case ActionKind::step: {
      const PhaseScope scope = timed(StepPhase::optimizer);
      update();
      break;
    }
  }
}

std::int64_t TrainingStep::first_sample(int micro_batch) const {
  return (static_cast<std::int64_t>(micro_batch) * data_.size() + data_.rank()) * config_.train.micro_batch;
}

void TrainingStep::update() {
  auto* input = static_cast<GuardInput*>(guard_input_.data());
  const TensorRef norm_squared(&input->norm_squared, DType::fp32, {1});
  bool accumulates = false;
  for (const UnitPart& part : optimizer_->parts()) {
    backend_.tensor_ops().sum_of_squares({}, exchange_->gradient(part), norm_squared, accumulates);
    accumulates = true;
  }
  if (data_.size() > 1) {
    constexpr std::int64_t fields = sizeof(GuardInput) / sizeof(float);
    data_.all_reduce({}, {input, DType::fp32, {fields}}, ReduceOp::sum).wait({});
  }
  auto* scalars = static_cast<StepScalars*>(scalars_.data());
  backend_.optimizer_ops().guard_step({}, guard_config_, input, static_cast<GuardState*>(guard_state_.data()),
                                      scalars);
  exchange_->apply(*optimizer_, scalars);
  backend_.copy_to_host({}, scalars, &host_scalars_, sizeof host_scalars_);
  backend_.copy_to_host({}, guard_state_.data(), &host_guard_, sizeof host_guard_);
}

}  // namespace mylos
