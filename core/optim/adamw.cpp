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
    const Unit& unit = table.units()[static_cast<std::size_t>(part.unit)];
    rounding_keys_.push_back(stream_key(config.seed, "rounding." + unit.name));
    offsets_.push_back(total);
    total += part.count;
    const std::size_t before = segments.size();
    for (const Segment& s : unit.segments) {
      const std::int64_t begin = std::max(s.begin, part.begin);
      const std::int64_t end = std::min(s.end, part.begin + part.count);
      if (begin < end) segments.push_back({begin - part.begin, end - part.begin, s.decay});
    }
    num_segments_.push_back(static_cast<int>(segments.size() - before));
  }
  const auto state = [&](const char* label) {
    DeviceBuffer buffer(backend, ledger, MemoryCategory::optimizer, static_cast<std::size_t>(total) * 4,
                        label);
    backend.tensor_ops().fill({}, TensorRef(buffer.data(), DType::fp32, {total}), 0.0F);
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

void AdamW::step(Stream stream, std::size_t index, TensorRef weights, TensorRef gradient,
                 const StepScalars* scalars) {
  AdamWArgs args;
  args.weights = weights;
  args.gradient = gradient;
  if (const TensorRef truth = master(index, weights); truth.dtype == DType::fp32) args.master = truth;
  args.first_moment = first_moment(index);
  args.second_moment = second_moment(index);
  args.segments = part_segments_[index];
  args.num_segments = num_segments_[index];
  args.beta1 = config_.beta1;
  args.beta2 = config_.beta2;
  args.epsilon = config_.epsilon;
  args.weight_decay = config_.weight_decay;
  args.rounding = {rounding_keys_[index], parts_[index].begin};
  args.scalars = scalars;
  backend_.optimizer_ops().adamw(stream, args);
}

TensorRef AdamW::master(std::size_t index, TensorRef weights) const {
  return master_.data() == nullptr ? weights : slice(master_, index);
}

TensorRef AdamW::slice(const DeviceBuffer& buffer, std::size_t index) const {
  return {static_cast<float*>(buffer.data()) + offsets_[index], DType::fp32, {parts_[index].count}};
}

}  // namespace mylos
