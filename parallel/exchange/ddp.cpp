// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/exchange/ddp.hpp"

namespace mylos {

std::vector<UnitPart> stored_parts(const ParameterTable& table, int ranks, int rank) {
  std::vector<UnitPart> parts;
  for (int unit = 0; unit < table.num_units(); ++unit) {
    const auto cut = [&](int place) { return (table.unit(unit).size * place + ranks - 1) / ranks; };
    if (cut(rank) < cut(rank + 1)) parts.push_back({unit, cut(rank), cut(rank + 1) - cut(rank)});
  }
  return parts;
}

Ddp::Ddp(ComputeBackend& backend, MemoryLedger& ledger, const ParameterTable& table, const DdpConfig& config,
         Communicator& replicas)
    : table_(table), config_(config), replicas_(replicas), size_(table.padded_size()) {
  offsets_.resize(table.units().size());
  std::int64_t next = 0;
  for (int unit = table.num_units() - 1; unit >= 0; --unit) {
    offsets_[static_cast<std::size_t>(unit)] = next;
    next += unit_size(unit);
  }
  const auto bytes = [&](DType type) { return static_cast<std::size_t>(size_) * size_of(type); };
  weights_ = DeviceBuffer(backend, ledger, MemoryCategory::parameters, bytes(config.compute_type),
                          "mylos::ddp::weights");
  backend.run(Fill{.y = flat(weights_, config.compute_type), .value = 0.0F});
  if (config.gradients) {
    gradients_ = DeviceBuffer(backend, ledger, MemoryCategory::gradients, bytes(config.gradient_type),
                              "mylos::ddp::gradients", replicas);
    backend.run(Fill{.y = flat(gradients_, config.gradient_type), .value = 0.0F});
  }
  requests_.reserve(table.parameters().size());
}

TensorRef Ddp::flat(const DeviceBuffer& buffer, DType type) const {
  return {buffer.data(), type, {size_}};
}

TensorRef Ddp::weights(const UnitPart& part) const {
  TensorRef view = flat(weights_, config_.compute_type).flat(offset(part.unit) + part.begin, part.count);
  view.version = version_;
  return view;
}

TensorRef Ddp::gradient(const UnitPart& part) const {
  return flat(gradients_, config_.gradient_type).flat(offset(part.unit) + part.begin, part.count);
}

UnitView Ddp::acquire(int unit, Phase phase, int /*micro_batch*/) {
  const UnitPart whole{unit, 0, unit_size(unit)};
  UnitView view;
  view.weights = weights(whole);
  if (phase == Phase::backward) view.gradients = gradient(whole);
  return view;
}

void Ddp::release(int /*unit*/, Phase /*phase*/) {
  if (!requests_.empty()) replicas_.progress();
}

void Ddp::gradient_ready(int unit, std::int64_t begin, std::int64_t end, int /*micro_batch*/, bool last) {
  if (!last || replicas_.size() == 1) return;
  require(offset(unit) + begin >= complete_, "gradients complete in the order of the buffer");
  complete_ = offset(unit) + end;
  const std::int64_t pending =
      (complete_ - started_) * static_cast<std::int64_t>(size_of(config_.gradient_type));
  if (config_.mode == DdpMode::overlapped) start_parameters(unit, begin, end);
  if (config_.mode == DdpMode::bucketed && pending >= config_.bucket_bytes) start(started_, complete_);
}

void Ddp::start_parameters(int unit, std::int64_t begin, std::int64_t end) {
  for (const int index : table_.units()[static_cast<std::size_t>(unit)].parameters) {
    const Parameter& parameter = table_.parameters()[static_cast<std::size_t>(index)];
    if (parameter.offset < begin || parameter.offset >= end) continue;
    const std::int64_t first = offset(unit) + parameter.offset;
    start(first, first + parameter.padded_size());
  }
}

void Ddp::start(std::int64_t begin, std::int64_t end) {
  started_ = end;
  if (begin == end) return;
  requests_.push_back(replicas_.all_reduce(
      {}, flat(gradients_, config_.gradient_type).flat(begin, end - begin), ReduceOp::sum));
}

void Ddp::reduce() {
  if (replicas_.size() == 1) return;
  require(complete_ == size_, "every gradient is complete before the reduction");
  if (config_.mode == DdpMode::per_parameter) {
    for (int unit = table_.num_units() - 1; unit >= 0; --unit) start_parameters(unit, 0, unit_size(unit));
  } else if (config_.mode != DdpMode::overlapped) {
    start(started_, complete_);
  }
  for (Request& request : requests_) request.wait({});
  requests_.clear();
  complete_ = 0;
  started_ = 0;
}

bool Ddp::communicates(ActionKind action, bool last_micro_batch) const {
  return action == ActionKind::backward && last_micro_batch && replicas_.size() > 1;
}

std::vector<UnitPart> Ddp::owned() const {
  std::vector<UnitPart> parts;
  parts.reserve(table_.units().size());
  for (int unit = 0; unit < table_.num_units(); ++unit) parts.push_back({unit, 0, unit_size(unit)});
  return parts;
}

std::vector<UnitPart> Ddp::stored() const {
  return stored_parts(table_, replicas_.size(), replicas_.rank());
}

void Ddp::apply(AdamW& optimizer, const StepScalars* scalars) {
  const auto& parts = optimizer.parts();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    optimizer.step(i, weights(parts[i]), gradient(parts[i]), scalars);
  }
}

}  // namespace mylos
