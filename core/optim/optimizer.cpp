// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/optimizer.hpp"

#include <algorithm>
#include <string>

namespace mylos {

extern const OptimizerKind adamw_optimizer, sgd_optimizer;

std::span<const OptimizerKind* const> optimizers() {
  static constexpr const OptimizerKind* all[] = {&adamw_optimizer, &sgd_optimizer};
  return all;
}

Optimizer::Optimizer(const OptimizerConfig& config, const OptimizerPlace& place)
    : backend_(place.backend), config_(config), parts_(place.parts) {
  std::int64_t total = 0;
  std::vector<Segment> segments;
  for (const UnitPart& part : parts_) {
    offsets_.push_back(total);
    total += part.count;
    const std::vector<Segment> own = segments_of(place.table, part, config.seed);
    segments.insert(segments.end(), own.begin(), own.end());
    num_segments_.push_back(static_cast<int>(own.size()));
  }
  const auto values = [&](const std::string& label) {
    DeviceBuffer buffer(backend_, place.ledger, MemoryCategory::optimizer,
                        static_cast<std::size_t>(total) * 4, ("mylos::optimizer::" + label).c_str());
    backend_.run(Fill{.y = TensorRef(buffer.data(), DType::fp32, {total}), .value = 0.0F});
    return buffer;
  };
  if (place.compute_type != DType::fp32 && config.keeps_master) master_ = values("master");
  for (const char* state : kind().states) states_.push_back(values(state));

  const std::size_t segment_bytes = segments.size() * sizeof(Segment);
  segments_ = DeviceBuffer(backend_, place.ledger, MemoryCategory::workspace, segment_bytes,
                           "mylos::optimizer::segments");
  backend_.copy_to_device(segments.data(), segments_.data(), segment_bytes);
  backend_.synchronize();
  const Segment* next = static_cast<const Segment*>(segments_.data());
  for (const int count : num_segments_) {
    part_segments_.push_back(next);
    next += count;
  }
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
  return master_.data() == nullptr ? weights : slice(master_, index);
}

TensorRef Optimizer::slice(const DeviceBuffer& buffer, std::size_t index) const {
  return {static_cast<float*>(buffer.data()) + offsets_[index], DType::fp32, {parts_[index].count}};
}

}  // namespace mylos
