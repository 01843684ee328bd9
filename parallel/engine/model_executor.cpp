// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/model_executor.hpp"

#include <algorithm>

#include "core/model/lm_head.hpp"

namespace mylos {

namespace {

/// Hands completed gradients on to the exchange, with the micro-batch they belong to.
class ExchangeListener final : public GradientListener {
 public:
  ExchangeListener(GradientExchange& exchange, int micro_batch, bool last)
      : exchange_(exchange), micro_batch_(micro_batch), last_(last) {}
  void gradient_ready(int unit, std::int64_t begin, std::int64_t end) override {
    exchange_.gradient_ready(unit, begin, end, micro_batch_, last_);
  }

 private:
  GradientExchange& exchange_;
  int micro_batch_;
  bool last_;
};

std::size_t upload_bytes(const BatchShape& shape) {
  return 2 * static_cast<std::size_t>(shape.rows()) * sizeof(std::int32_t);
}

}  // namespace

ModelExecutor::ModelExecutor(ComputeBackend& backend, MemoryLedger& ledger, const ParameterTable& table,
                             GradientExchange& exchange, const Schedule& schedule,
                             const ExecutorConfig& config)
    : backend_(backend),
      exchange_(exchange),
      config_(config),
      micro_batches_(schedule.micro_batches),
      blocks_(make_gpt2(config.model, table, config.recompute)),
      plan_(blocks_, config.shape, config.model.width, schedule),
      arena_(backend, ledger, MemoryCategory::activations, plan_.bytes(), "mylos::arena"),
      uploads_{UploadBuffer(backend, upload_bytes(config.shape)),
               UploadBuffer(backend, upload_bytes(config.shape))} {
  const auto rows = static_cast<std::size_t>(config.shape.rows());
  host_losses_.resize(rows);
  host_correct_.resize(rows);
  for (const auto& block : blocks_) block_units_.push_back(block->units());
  units_.reserve(2);
  for (int slot = 0; slot < plan_.num_slots(); ++slot) {
    auto& of_slot = buffers_.emplace_back();
    for (std::size_t block = 0; block < blocks_.size(); ++block) {
      auto& of_block = of_slot.emplace_back();
      const std::size_t count = blocks_[block]->activations(config.shape).size();
      for (std::size_t i = 0; i < count; ++i) of_block.push_back(at(plan_.buffer(slot, block, i)));
    }
  }
}

void ModelExecutor::load(int micro_batch, std::span<const std::int32_t> tokens) {
  const BatchShape& s = config_.shape;
  const auto t = static_cast<std::size_t>(s.seq);
  require(tokens.size() == static_cast<std::size_t>(s.batch) * (t + 1),
          "a micro-batch is B rows of T + 1 tokens");
  UploadBuffer& upload = uploads_[next_upload_];
  next_upload_ = 1 - next_upload_;
  auto* inputs = static_cast<std::int32_t*>(upload.fill());
  auto* targets = inputs + s.rows();
  for (std::size_t b = 0; b < static_cast<std::size_t>(s.batch); ++b) {
    const std::int32_t* row = tokens.data() + b * (t + 1);
    std::transform(row, row + t, inputs + b * t, [](std::int32_t token) { return std::max(token, 0); });
    std::copy(row + 1, row + t + 1, targets + b * t);
  }
  const int slot = plan_.slot_of(micro_batch);
  const std::size_t bytes = upload_bytes(s) / 2;
  upload.upload({}, 0, at(plan_.tokens(slot)), bytes);
  upload.upload({}, bytes, at(plan_.targets(slot)), bytes);
}

BlockContext ModelExecutor::context(int micro_batch, bool training, std::int64_t first_sample,
                                    const StepScalars* scalars) const {
  const BatchShape& s = config_.shape;
  const int slot = plan_.slot_of(micro_batch);
  BlockContext context;
  context.backend = &backend_;
  context.shape = s;
  context.tokens = {at(plan_.tokens(slot)), DType::int32, {s.batch, s.seq}};
  context.targets = {at(plan_.targets(slot)), DType::int32, {s.batch, s.seq}};
  context.training = training;
  context.first_sample = first_sample;
  context.seed = config_.seed;
  context.scalars = scalars;
  context.gradient_scale = config_.gradient_scale;
  context.losses = {at(plan_.losses(slot)), DType::fp32, {s.rows()}};
  context.correct = {at(plan_.correct(slot)), DType::int32, {s.rows()}};
  return context;
}

TensorRef ModelExecutor::stream(int slot, std::size_t block) const {
  const BatchShape& s = config_.shape;
  return {at(plan_.stream(slot, block)), s.dtype, {s.batch, s.seq, config_.model.width}};
}

void ModelExecutor::acquire(std::size_t block, Phase phase, int micro_batch) {
  units_.clear();
  for (const int unit : block_units_[block]) units_.push_back(exchange_.acquire(unit, phase, micro_batch));
}

void ModelExecutor::release(std::size_t block, Phase phase) {
  for (const int unit : block_units_[block]) exchange_.release(unit, phase);
}

void ModelExecutor::run_forward(BlockContext& context, int micro_batch) {
  const int slot = plan_.slot_of(micro_batch);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    acquire(i, Phase::forward, micro_batch);
    context.units = units_;
    context.buffers = buffers_[static_cast<std::size_t>(slot)][i];
    blocks_[i]->forward(context, i == 0 ? TensorRef() : stream(slot, i - 1), stream(slot, i));
    release(i, Phase::forward);
  }
}

void ModelExecutor::forward(int micro_batch, std::int64_t first_sample, const StepScalars* scalars) {
  BlockContext run = context(micro_batch, true, first_sample, scalars);
  run_forward(run, micro_batch);
}

void ModelExecutor::backward(int micro_batch, std::int64_t first_sample, const StepScalars* scalars,
                             TensorRef loss_sum) {
  const BatchShape& s = config_.shape;
  const int slot = plan_.slot_of(micro_batch);
  ExchangeListener listener(exchange_, micro_batch, micro_batch == micro_batches_ - 1);
  BlockContext run = context(micro_batch, true, first_sample, scalars);
  run.listener = &listener;
  const TensorRef gradient(at(plan_.gradient(slot)), s.dtype, {s.batch, s.seq, config_.model.width});
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    acquire(i, Phase::backward, micro_batch);
    run.units = units_;
    run.buffers = buffers_[static_cast<std::size_t>(slot)][i];
    blocks_[i]->backward(run, i == 0 ? TensorRef() : stream(slot, i - 1), gradient);
    release(i, Phase::backward);
  }
  backend_.run(Sum{.x = run.losses, .out = loss_sum, .accumulate = micro_batch > 0});
}

void ModelExecutor::evaluate() {
  BlockContext run = context(0, false, 0, nullptr);
  run_forward(run, 0);
  backend_.copy_to_host({}, run.losses.data, host_losses_.data(), run.losses.bytes());
  backend_.copy_to_host({}, run.correct.data, host_correct_.data(), run.correct.bytes());
  backend_.synchronize({});
}

std::vector<float> ModelExecutor::logits(std::int64_t row) {
  BlockContext run = context(0, false, 0, nullptr);
  run.losses = {};
  run_forward(run, 0);
  const auto& head = static_cast<const LmHead&>(*blocks_.back());
  acquire(blocks_.size() - 1, Phase::forward, 0);
  run.units = units_;
  run.buffers = buffers_[static_cast<std::size_t>(plan_.slot_of(0))].back();
  const std::int64_t padded = config_.model.padded_vocab();
  const TensorRef logits(run.buffers[3], config_.shape.dtype, {1, padded});
  head.logits_of_row(run, row, logits);
  release(blocks_.size() - 1, Phase::forward);

  std::vector<std::byte> raw(logits.bytes());
  backend_.copy_to_host({}, logits.data, raw.data(), raw.size());
  backend_.synchronize({});
  std::vector<float> values(static_cast<std::size_t>(config_.model.vocab));
  dispatch_float(config_.shape.dtype, [&](auto element) {
    using T = decltype(element);
    const T* from = reinterpret_cast<const T*>(raw.data());
    std::transform(from, from + values.size(), values.begin(), [](T x) { return static_cast<float>(x); });
  });
  return values;
}

}  // namespace mylos
