// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/adamw.hpp"

#include <algorithm>

namespace mylos {

AdamW::AdamW(ComputeBackend& backend, MemoryLedger& ledger, const ParameterTable& table,
             const AdamWConfig& config, DType compute_type, std::vector<UnitPart> parts)
    : backend_(backend), config_(config), parts_(std::move(parts)) {
  std::int64_t total = 0;
  std::vector<Segment> segments;
  for (const UnitPart& part : parts_) {
    offsets_.push_back(total);
    total += part.count;
    const std::vector<Segment> own = segments_of(table, part);
    segments.insert(segments.end(), own.begin(), own.end());
    num_segments_.push_back(static_cast<int>(own.size()));
  }
  const auto state = [&](const char* label) {
    DeviceBuffer buffer(backend, ledger, MemoryCategory::optimizer, static_cast<std::size_t>(total) * 4,
                        label);
    backend.run(Fill{.y = TensorRef(buffer.data(), DType::fp32, {total}), .value = 0.0F});
    return buffer;
  };
  if (compute_type != DType::fp32 && config.keeps_master) master_ = state("mylos::optimizer::master");
  first_moment_ = state("mylos::optimizer::first_moment");
  second_moment_ = state("mylos::optimizer::second_moment");

  const std::size_t segment_bytes = segments.size() * sizeof(Segment);
  segments_ =
      DeviceBuffer(backend, ledger, MemoryCategory::workspace, segment_bytes, "mylos::optimizer::segments");
  backend.copy_to_device({}, segments.data(), segments_.data(), segment_bytes);
  backend.synchronize({});
  const Segment* next = static_cast<const Segment*>(segments_.data());
  for (const int count : num_segments_) {
    part_segments_.push_back(next);
    next += count;
  }
}

std::vector<Segment> AdamW::segments_of(const ParameterTable& table, const UnitPart& part) const {
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
                        .rounding = {stream_key(config_.seed, "rounding." + parameter.name), index}});
  }
  return segments;
}

void AdamW::step(std::size_t index, TensorRef weights, TensorRef gradient, const StepScalars* scalars) {
  const TensorRef truth = master(index, weights);
  backend_.run(AdamWStep{.weights = weights,
                         .gradient = gradient,
                         .master = truth.dtype == DType::fp32 ? truth : TensorRef(),
                         .first_moment = first_moment(index),
                         .second_moment = second_moment(index),
                         .segments = part_segments_[index],
                         .num_segments = num_segments_[index],
                         .beta1 = config_.beta1,
                         .beta2 = config_.beta2,
                         .epsilon = config_.epsilon,
                         .weight_decay = config_.weight_decay,
                         .scalars = scalars});
}

TensorRef AdamW::master(std::size_t index, TensorRef weights) const {
  return master_.data() == nullptr ? weights : slice(master_, index);
}

TensorRef AdamW::slice(const DeviceBuffer& buffer, std::size_t index) const {
  return {static_cast<float*>(buffer.data()) + offsets_[index], DType::fp32, {parts_[index].count}};
}

}  // namespace mylos
