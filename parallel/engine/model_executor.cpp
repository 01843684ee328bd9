// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/model_executor.hpp"

#include <algorithm>

namespace mylos {

namespace {

std::size_t upload_bytes(const BatchShape& shape) {
  return 2 * static_cast<std::size_t>(shape.rows()) * sizeof(std::int32_t);
}

/// Of each slot, the places of its activations in `arena`.
std::vector<Binding> bindings_of(const ActivationPlan& plan, const Roots& roots, std::byte* arena) {
  std::vector<Binding> bindings(static_cast<std::size_t>(plan.num_slots()));
  for (int slot = 0; slot < plan.num_slots(); ++slot) {
    std::vector<Bound>& bound = bindings[static_cast<std::size_t>(slot)].roots;
    bound.resize(roots.all().size());
    for (int root = 0; root < std::ssize(bound); ++root) {
      if (plan.has(slot, root)) bound[static_cast<std::size_t>(root)].data = arena + plan.offset(slot, root);
    }
  }
  return bindings;
}

}  // namespace

ModelExecutor::ModelExecutor(ComputeBackend& backend, MemoryLedger& ledger, const ModelConfig& model,
                             const ParameterTable& table, GradientExchange& exchange,
                             const Schedule& schedule, const ProgramConfig& config)
    : backend_(backend),
      exchange_(exchange),
      model_(model),
      shape_(config.shape),
      micro_batches_(schedule.micro_batches),
      slot_of_(schedule.slots()),
      programs_(record_programs(model, table, config)),
      uploads_{UploadBuffer(backend, upload_bytes(config.shape)),
               UploadBuffer(backend, upload_bytes(config.shape))} {
  const ActivationPlan plan(programs_.roots, passages_of(schedule, programs_));
  arena_ = DeviceBuffer(backend, ledger, MemoryCategory::activations, plan.bytes(), "mylos::arena");
  bindings_ = bindings_of(plan, programs_.roots, static_cast<std::byte*>(arena_.data()));
  const auto rows = static_cast<std::size_t>(config.shape.rows());
  host_losses_.resize(rows);
  host_correct_.resize(rows);
}

Binding& ModelExecutor::binding_of(int micro_batch) {
  return bindings_[static_cast<std::size_t>(slot_of_[static_cast<std::size_t>(micro_batch)])];
}

std::byte* ModelExecutor::memory(std::string_view name, const Binding& binding) const {
  return binding.roots[static_cast<std::size_t>(programs_.roots.find(name))].data;
}

void ModelExecutor::load(int micro_batch, std::span<const std::int32_t> tokens) {
  const BatchShape& s = shape_;
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
  const Binding& binding = binding_of(micro_batch);
  const std::size_t bytes = upload_bytes(s) / 2;
  upload.upload({}, 0, memory("tokens", binding), bytes);
  upload.upload({}, bytes, memory("targets", binding), bytes);
}

void ModelExecutor::run_entry(const Entry& entry, Binding& binding, Phase phase, int micro_batch) {
  for (const int unit : entry.acquires) {
    const UnitView view = exchange_.acquire(unit, phase, micro_batch);
    const auto bound = [&](int root) -> Bound& { return binding.roots[static_cast<std::size_t>(root)]; };
    bound(Roots::weights_root(unit)) = {static_cast<std::byte*>(view.weights.data), view.weights.version};
    bound(Roots::gradients_root(unit)) = {static_cast<std::byte*>(view.gradients.data), 0};
  }
  run_bound(entry, binding, backend_);
  for (const GradientRange& range : entry.completes) {
    exchange_.gradient_ready(range.unit, range.begin, range.end, micro_batch,
                             micro_batch == micro_batches_ - 1);
  }
  for (const int unit : entry.releases) exchange_.release(unit, phase);
}

void ModelExecutor::replay(const Program& program, std::size_t count, Binding& binding, Phase phase,
                           int micro_batch) {
  for (std::size_t i = 0; i < count; ++i) run_entry(program.entries[i], binding, phase, micro_batch);
}

void ModelExecutor::forward(int micro_batch, std::int64_t first_sample, const StepScalars* scalars) {
  Binding& binding = binding_of(micro_batch);
  binding.first_sample = first_sample;
  binding.scalars = scalars;
  replay(programs_.forward, programs_.forward.entries.size(), binding, Phase::forward, micro_batch);
}

void ModelExecutor::backward(int micro_batch, std::int64_t first_sample, const StepScalars* scalars,
                             TensorRef loss_sum) {
  Binding& binding = binding_of(micro_batch);
  binding.first_sample = first_sample;
  binding.scalars = scalars;
  binding.accumulates = micro_batch > 0;
  binding.roots[Roots::loss_sum_root].data = static_cast<std::byte*>(loss_sum.data);
  replay(programs_.backward, programs_.backward.entries.size(), binding, Phase::backward, micro_batch);
}

void ModelExecutor::evaluate() {
  Binding& binding = bindings_[0];
  replay(programs_.evaluate, programs_.evaluate.entries.size(), binding, Phase::forward, 0);
  backend_.copy_to_host({}, memory("losses", binding), host_losses_.data(),
                        host_losses_.size() * sizeof(float));
  backend_.copy_to_host({}, memory("correct", binding), host_correct_.data(),
                        host_correct_.size() * sizeof(std::int32_t));
  backend_.synchronize({});
}

std::vector<float> ModelExecutor::logits(std::int64_t row) {
  Binding& binding = bindings_[0];
  const std::vector<Entry>& entries = programs_.generate.entries;
  replay(programs_.generate, entries.size() - 1, binding, Phase::forward, 0);
  // The product of row 0, moved to another row of its input.
  Entry product = entries.back();
  const auto element = static_cast<std::int64_t>(size_of(shape_.dtype));
  TensorRef& from = std::get<LinearForward>(product.operation).x;
  from.data = static_cast<std::byte*>(from.data) + row * model_.width * element;
  run_entry(product, binding, Phase::forward, 0);

  std::vector<std::byte> raw(static_cast<std::size_t>(model_.padded_vocab() * element));
  backend_.copy_to_host({}, memory("head.logits", binding), raw.data(), raw.size());
  backend_.synchronize({});
  std::vector<float> values(static_cast<std::size_t>(model_.vocab));
  dispatch_float(shape_.dtype, [&](auto type) {
    using T = decltype(type);
    const T* logits = reinterpret_cast<const T*>(raw.data());
    std::transform(logits, logits + values.size(), values.begin(), [](T x) { return static_cast<float>(x); });
  });
  return values;
}

}  // namespace mylos
