// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/optimizer.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace mylos {

extern const OptimizerKind adamw_optimizer, sgd_optimizer;

std::span<const OptimizerKind* const> optimizers() {
  static constexpr const OptimizerKind* all[] = {&adamw_optimizer, &sgd_optimizer};
  return all;
}

Optimizer::Optimizer(const OptimizerConfig& config, const ParameterTable& table, DType compute_type,
                     std::vector<UnitPart> parts, Storages& storages)
    : config_(config), parts_(std::move(parts)) {
  std::int64_t total = 0;
  for (const UnitPart& part : parts_) {
    offsets_.push_back(total);
    total += part.count;
    first_segments_.push_back(segments_.size());
    const std::vector<Segment> own = segments_of(table, part, config.seed);
    segments_.insert(segments_.end(), own.begin(), own.end());
  }
  first_segments_.push_back(segments_.size());
  const auto add = [&](const std::string& name, std::size_t bytes, MemoryCategory category) {
    return storages.add(
        {.name = name, .kind = StorageKind::kept, .bytes = bytes, .persists = true, .category = category});
  };
  const auto values = [&](const std::string& name) {
    return add("optimizer: " + name, static_cast<std::size_t>(total) * sizeof(float),
               MemoryCategory::optimizer);
  };
  if (compute_type != DType::fp32 && config.keeps_master) master_ = values("master");
  for (const char* state : kind().states) states_.push_back(values(state));
  segments_storage_ =
      add("optimizer: segments", segments_.size() * sizeof(Segment), MemoryCategory::workspace);
}

void Optimizer::record(std::size_t index, TensorRef weights, TensorRef previous, TensorRef gradient,
                       StepScalars* scalars, UpdateRecorder& run) const {
  const TensorRef truth = master(index, weights);
  const std::size_t first = first_segments_[index];
  OptimizerPart part{.weights = weights,
                     .gradient = gradient,
                     .master = truth.dtype == DType::fp32 ? truth : TensorRef(),
                     .previous = previous,
                     .states = {},
                     .segments = static_cast<const Segment*>(address_of(segments_storage_)) + first,
                     .num_segments = static_cast<int>(first_segments_[index + 1] - first),
                     .scalars = scalars};
  for (std::size_t s = 0; s < states_.size(); ++s) part.states.push_back(state(s, index));
  kind().record(config_, part, run);
}

std::vector<Segment> segments_of(const ParameterTable& table, const UnitPart& part, std::uint64_t seed) {
  std::vector<Segment> segments;
  const std::int64_t part_end = part.begin + part.count;
  const Unit& unit = table.unit(part.unit);
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const auto parameter_at = [&](std::size_t place) -> const Parameter& {
      return table.parameters()[static_cast<std::size_t>(unit.parameters[place])];
    };
    const Parameter& parameter = parameter_at(i);
    const std::int64_t next = i + 1 < unit.parameters.size() ? parameter_at(i + 1).offset : unit.size;
    const std::int64_t begin = std::max(parameter.offset, part.begin);
    const std::int64_t end = std::min(next, part_end);
    if (begin >= end) continue;
    GlobalIndex index = parameter.global_index();
    index.begin = begin - parameter.offset;
    segments.push_back({.begin = begin - part.begin,
                        .end = end - part.begin,
                        .decay = parameter.decay ? 1.0F : 0.0F,
                        .rounding = {stream_key(seed, "rounding." + parameter.name), index}});
  }
  return segments;
}

TensorRef Optimizer::master(std::size_t index, TensorRef weights) const {
  return master_ < 0 ? weights : slice(master_, index);
}

TensorRef Optimizer::slice(int storage, std::size_t index) const {
  return Storages::flat(storage, offsets_[index] * static_cast<std::int64_t>(sizeof(float)), DType::fp32,
                        parts_[index].count);
}

}  // namespace mylos
