// SPDX-License-Identifier: BSD-3-Clause
#include "tests/parallel/mini_trainer.hpp"

#include <algorithm>

#include "app/model_state.hpp"
#include "core/rng.hpp"

namespace mylos {

RunConfig mini_config(const ModelConfig& model, std::int64_t global_batch, std::int64_t seq_len,
                      std::int64_t ranks, std::int64_t accumulation) {
  require(global_batch % (ranks * accumulation) == 0, "micro-batches of the same size");
  RunConfig config;
  config.model = model;
  config.train.global_batch = global_batch;
  config.train.micro_batch = global_batch / (ranks * accumulation);
  config.train.accumulation = accumulation;
  config.train.seq_len = seq_len;
  config.train.seed = 7;
  config.lr.decay = LrDecay::constant;
  config.lr.peak = 1e-3;
  config.parallel.data = ranks;
  config.parallel.exchange = "ddp";
  config.parallel.schedule = "accumulate";
  return config;
}

std::vector<std::int32_t> walk_tokens(const RunConfig& config, std::int64_t step) {
  const std::int64_t row = config.train.seq_len + 1;
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(config.train.global_batch * row));
  for (std::int64_t i = 0; i < config.train.global_batch; ++i) {
    std::int64_t token = 0;
    for (std::int64_t t = 0; t < row; ++t) {
      const PhiloxBlock noise = philox(stream_key(1, "tokens"), static_cast<std::uint32_t>(t),
                                       static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(step), 0);
      token = (t == 0 ? noise.x[0] : 3 * token + noise.x[0] % 8) % config.model.vocab;
      tokens[static_cast<std::size_t>(i * row + t)] = static_cast<std::int32_t>(token);
    }
  }
  return tokens;
}

MiniTrainer::MiniTrainer(ComputeBackend& backend, MemoryLedger& ledger, Communicator& world,
                         const RunConfig& config)
    : backend_(backend),
      config_(config),
      grid_(world, config.parallel.extents(), traffic_, nullptr, backend.host_accessible()),
      data_(grid_.group(data_axes)),
      table_(config.model),
      schedule_(make_schedule(config.parallel, config.train.accumulation)) {
  const TrainConfig& train = config.train;
  const float per_token = static_cast<float>(1.0 / static_cast<double>(train.global_batch * train.seq_len));
  const ExchangeTypes types{.compute = train.dtype, .gradient = train.grad_dtype};
  exchange_ = make_exchange(config.parallel, types, backend, ledger, table_, grid_);
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
  initialise_weights(backend, table_, train.seed, *exchange_, *optimizer_);
  const GuardState fresh;
  backend.copy_to_device({}, &fresh, guard_state_.data(), sizeof fresh);
  backend.synchronize({});
}

StepScalars MiniTrainer::step(std::span<const std::int32_t> tokens) {
  StepScalars scalars;
  scalars.step = ++step_;
  scalars.learning_rate = static_cast<float>(learning_rate(config_.lr, step_));
  backend_.copy_to_device({}, &scalars, scalars_.data(), sizeof scalars);
  for (const Action& action : schedule_.repeat) execute(action, tokens);
  backend_.copy_to_host({}, scalars_.data(), &scalars, sizeof scalars);
  backend_.synchronize({});
  return scalars;
}

void MiniTrainer::execute(const Action& action, std::span<const std::int32_t> tokens) {
  const auto* scalars = static_cast<const StepScalars*>(scalars_.data());
  const int m = action.micro_batch;
  switch (action.kind) {
    case ActionKind::forward:
      load(m, tokens);
      executor_->forward(m, first_sample(m), scalars);
      break;
    case ActionKind::backward:
      executor_->backward(m, first_sample(m), scalars, {guard_input_.data(), DType::fp32, {1}});
      break;
    case ActionKind::reduce:
      exchange_->reduce();
      break;
    case ActionKind::step:
      take_step();
      break;
  }
}

std::int64_t MiniTrainer::first_sample(int micro_batch) const {
  return (static_cast<std::int64_t>(micro_batch) * data_.size() + data_.rank()) * config_.train.micro_batch;
}

void MiniTrainer::load(int micro_batch, std::span<const std::int32_t> tokens) {
  const std::int64_t row = config_.train.seq_len + 1;
  executor_->load(micro_batch, tokens.subspan(static_cast<std::size_t>(first_sample(micro_batch) * row),
                                              static_cast<std::size_t>(config_.train.micro_batch * row)));
}

void MiniTrainer::take_step() {
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
}

UnitPart MiniTrainer::part_of(const Parameter& parameter) const {
  return {parameter.unit, parameter.offset, parameter.size()};
}

TensorRef MiniTrainer::master(const Parameter& parameter) const {
  const auto unit = static_cast<std::size_t>(parameter.unit);
  const UnitPart& whole = optimizer_->parts()[unit];
  return optimizer_->master(unit, exchange_->weights(whole)).flat(parameter.offset, parameter.size());
}

std::vector<float> MiniTrainer::to_host(const TensorRef& tensor) const {
  std::vector<std::byte> raw(tensor.bytes());
  backend_.copy_to_host({}, tensor.data, raw.data(), raw.size());
  backend_.synchronize({});
  std::vector<float> values(static_cast<std::size_t>(tensor.size()));
  dispatch_float(tensor.dtype, [&](auto element) {
    using T = decltype(element);
    const T* from = reinterpret_cast<const T*>(raw.data());
    std::transform(from, from + values.size(), values.begin(), [](T x) { return static_cast<float>(x); });
  });
  return values;
}

std::vector<float> MiniTrainer::weight(std::string_view name) const {
  return to_host(master(table_.find(name)));
}

void MiniTrainer::set_weight(std::string_view name, std::span<const float> values) {
  const Parameter& parameter = table_.find(name);
  const TensorRef to = master(parameter);
  require(static_cast<std::size_t>(to.size()) == values.size(), "a weight's size");
  backend_.copy_to_device({}, values.data(), to.data, to.bytes());
  const TensorRef compute = exchange_->weights(part_of(parameter));
  if (compute.data != to.data) backend_.tensor_ops().cast({}, to, compute);
  backend_.synchronize({});
  exchange_->publish();
}

std::vector<float> MiniTrainer::gradient(std::string_view name) const {
  return to_host(exchange_->gradient(part_of(table_.find(name))));
}

std::vector<float> MiniTrainer::whole_gradient() const {
  std::vector<float> all;
  for (const Parameter& parameter : table_.parameters()) {
    const std::vector<float> own = gradient(parameter.name);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace mylos
