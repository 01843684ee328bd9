// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/optimizer.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace mylos {

extern const OptimizerKind adamw_optimizer, sgd_optimizer, muon_optimizer;

std::span<const OptimizerKind* const> optimizers() {
  static constexpr const OptimizerKind* all[] = {&adamw_optimizer, &sgd_optimizer, &muon_optimizer};
  return all;
}

namespace {

constexpr auto float_bytes = static_cast<std::int64_t>(sizeof(float));

/// Memory whose values live within an update.
int add_values(Storages& storages, const std::string& name, std::int64_t elements, DType dtype) {
  // Messages without elements have addresses of their own too, by which they are awaited.
  const auto bytes = std::max<std::size_t>(static_cast<std::size_t>(elements) * size_of(dtype), 64);
  return storages.add(
      {.name = name, .kind = StorageKind::kept, .bytes = bytes, .category = MemoryCategory::activations});
}

}  // namespace

TensorRef MatrixScratch::tensor(const std::string& name, DType dtype, std::array<std::int64_t, 3> shape) {
  const std::string full = fmt::format("optimizer: {} {} x {} x {}", name, shape[0], shape[1], shape[2]);
  const std::int64_t elements = shape[0] * shape[1] * shape[2];
  auto known = known_.find(full);
  if (known == known_.end()) known = known_.emplace(full, add_values(storages_, full, elements, dtype)).first;
  return Storages::flat(known->second, 0, dtype, elements).reshaped({shape[0], shape[1], shape[2]});
}

Optimizer::Optimizer(const OptimizerConfig& config, const ParameterTable& table,
                     const Coordinates& coordinates, DType compute_type,
                     const std::vector<SteppedUnit>& units, Storages& storages)
    : config_(config) {
  std::int64_t total = 0;
  std::vector<std::int64_t> elements(kind().states.size());
  MatrixLoads loads;
  for (const SteppedUnit& unit : units) {
    Part& part = parts_.emplace_back();
    part.place = unit.part;
    part.offset = total;
    total += unit.part.count;
    if (kind().matrices != nullptr) part.matrices = exchange_matrices(table, unit, coordinates, loads);
    divide(part, table);
    for (Range& range : part.ranges) {
      const UnitPart place{unit.part.unit, unit.part.begin + range.begin, range.count};
      const std::vector<Segment> own = segments_of(table, place, config.seed);
      range.first_segment = segments_.size();
      range.num_segments = own.size();
      segments_.insert(segments_.end(), own.begin(), own.end());
      for (std::size_t state = 0; state < elements.size(); ++state) {
        const bool has_it = kind().has_state(range.matrix >= 0, state);
        range.places.push_back(has_it ? elements[state] : -1);
        // Each begins at a cache line.
        if (has_it) elements[state] += (range.count + 15) / 16 * 16;
      }
    }
  }
  const auto keep = [&](const std::string& name, std::size_t bytes, MemoryCategory category) {
    return storages.add({.name = "optimizer: " + name,
                         .kind = StorageKind::kept,
                         .bytes = bytes,
                         .persists = true,
                         .category = category});
  };
  if (compute_type != DType::fp32 && config.keeps_master)
    master_ = keep("master", static_cast<std::size_t>(total) * sizeof(float), MemoryCategory::optimizer);
  for (std::size_t state = 0; state < elements.size(); ++state) {
    states_.push_back(keep(kind().states[state], static_cast<std::size_t>(elements[state]) * sizeof(float),
                           MemoryCategory::optimizer));
  }
  segments_storage_ = keep("segments", segments_.size() * sizeof(Segment), MemoryCategory::workspace);
  if (kind().matrices == nullptr) return;
  scratch_ =
      std::make_unique<MatrixScratch>(storages, compute_type == DType::fp32 ? DType::fp32 : DType::bf16);
  for (Part& part : parts_) {
    const std::string& unit = table.unit(part.place.unit).name;
    if (part.matrices.group == AxisSet()) continue;
    const auto values = [&](const char* name, std::int64_t count) {
      return add_values(storages, fmt::format("{} of {}", name, unit), count, DType::fp32);
    };
    part.elements = values("directions", part.matrices.num_elements);
    part.stacks = values("matrices", part.matrices.num_owned);
    part.result = values("results", part.matrices.num_elements);
    part.collection =
        keep_messages(part.matrices.collection, part.matrices.collects, "directions of " + unit, storages);
    part.returned =
        keep_messages(part.matrices.result, part.matrices.returns, "results of " + unit, storages);
    if (part.matrices.shared.ranges.empty()) continue;
    part.shared = values("shared results", part.matrices.shared.count);
    part.shared_unpack = keep_blocks(part.matrices.shared.unpack);
  }
  blocks_storage_ = keep("blocks", std::max<std::size_t>(blocks_.size(), 1) * sizeof(CopiedBlock),
                         MemoryCategory::workspace);
}

std::size_t Optimizer::keep_blocks(const BlockCopy& copy) {
  const std::size_t first = blocks_.size();
  blocks_.insert(blocks_.end(), copy.blocks.begin(), copy.blocks.end());
  return first;
}

Optimizer::Part::Messages Optimizer::keep_messages(const MatrixMessages& messages, bool are_sent,
                                                   const std::string& name, Storages& storages) {
  Part::Messages kept;
  kept.pack = keep_blocks(messages.pack);
  kept.unpack = keep_blocks(messages.unpack);
  if (!are_sent) return kept;
  kept.sent = add_values(storages, "sent " + name, messages.num_sent, DType::fp32);
  kept.received = add_values(storages, "received " + name, messages.num_received, DType::fp32);
  kept.sent_counts = std::make_shared<const std::vector<std::int64_t>>(messages.sent);
  kept.received_counts = std::make_shared<const std::vector<std::int64_t>>(messages.received);
  return kept;
}

void Optimizer::divide(Part& part, const ParameterTable& table) {
  if (kind().matrices == nullptr) {
    part.ranges.push_back({.begin = 0, .count = part.place.count});
    return;
  }
  // Matrices without what pads them; everything else with its padding.
  std::int64_t end = 0;
  const auto add_others = [&](std::int64_t until) {
    if (until > end) part.ranges.push_back({.begin = end, .count = until - end});
  };
  for (int i = 0; i < std::ssize(part.matrices.pieces); ++i) {
    const MatrixPiece& piece = part.matrices.pieces[static_cast<std::size_t>(i)];
    add_others(piece.begin);
    part.ranges.push_back({.begin = piece.begin, .count = piece.count, .matrix = i});
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(piece.parameter)];
    const std::int64_t padded = parameter.offset + parameter.padded_size() - part.place.begin;
    end = std::min(std::max(padded, piece.begin + piece.count), part.place.count);
  }
  add_others(part.place.count);
}

TensorRef Optimizer::state(std::size_t state, std::size_t index, std::int64_t begin,
                           std::int64_t count) const {
  for (const Range& range : parts_[index].ranges) {
    if (begin < range.begin || begin + count > range.begin + range.count) continue;
    if (range.places[state] < 0) return {};
    return Storages::flat(states_[state], (range.places[state] + begin - range.begin) * float_bytes,
                          DType::fp32, count);
  }
  fail(ExitCode::internal, "elements {} to {} of a part have different states", begin, begin + count);
}

TensorRef Optimizer::master(std::size_t index, TensorRef weights) const {
  const Part& part = parts_[index];
  return master_ < 0 ? weights
                     : Storages::flat(master_, part.offset * float_bytes, DType::fp32, part.place.count);
}

OptimizerPart Optimizer::of_range(const UpdatedPart& updated, const Range& range,
                                  StepScalars* scalars) const {
  const auto section = [&](const TensorRef& tensor) {
    return tensor ? tensor.flat(range.begin, range.count) : tensor;
  };
  const TensorRef truth = master(updated.index, updated.weights);
  OptimizerPart part{
      .weights = section(updated.weights),
      .gradient = section(updated.gradient),
      .master = truth.dtype == DType::fp32 ? section(truth) : TensorRef(),
      .previous = section(updated.previous),
      .states = {},
      .segments = static_cast<const Segment*>(address_of(segments_storage_)) + range.first_segment,
      .num_segments = static_cast<int>(range.num_segments),
      .scalars = scalars};
  for (std::size_t s = 0; s < states_.size(); ++s) {
    if (range.places[s] < 0) continue;
    part.states.push_back(
        Storages::flat(states_[s], range.places[s] * float_bytes, DType::fp32, range.count));
  }
  return part;
}

void Optimizer::record(std::span<const UpdatedPart> parts, StepScalars* scalars, UpdateRecorder& run,
                       const std::function<void(std::size_t index)>& updated) {
  if (kind().matrices == nullptr) {
    for (const UpdatedPart& part : parts) {
      record_elements(part, scalars, run);
      updated(part.index);
    }
    return;
  }
  // A part's matrices are collected while those of the part before it are computed with, returned while those
  // of the next are, and broadcast to copies while those of the one after that are.
  const auto collect = [&](std::size_t i) {
    if (i < parts.size()) record_collection(parts[i], scalars, run);
  };
  const auto finish = [&](std::size_t i) {
    record_elements(parts[i], scalars, run);
    record_steps(parts[i], scalars, run);
    updated(parts[i].index);
  };
  collect(0);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    collect(i + 1);
    record_matrices(parts[i], run);
    if (i > 1) finish(i - 2);
    if (i > 0) record_sharing(parts[i - 1], run);
  }
  if (parts.size() > 1) finish(parts.size() - 2);
  if (parts.empty()) return;
  record_sharing(parts.back(), run);
  finish(parts.size() - 1);
}

void Optimizer::record_elements(const UpdatedPart& updated, StepScalars* scalars, UpdateRecorder& run) const {
  for (const Range& range : parts_[updated.index].ranges) {
    if (range.matrix < 0) kind().record(config_, of_range(updated, range, scalars), run);
  }
}

void Optimizer::record_copy(const BlockCopy& copy, std::size_t first, TensorRef from, TensorRef other,
                            TensorRef to, UpdateRecorder& run) const {
  if (copy.blocks.empty()) return;
  run(CopyBlocks{.from = from,
                 .other = other,
                 .to = to,
                 .blocks = static_cast<const CopiedBlock*>(address_of(blocks_storage_)) + first,
                 .num_blocks = static_cast<int>(copy.blocks.size()),
                 .num_rows = copy.num_rows});
}

namespace {

TensorRef all_of(int storage, std::int64_t elements) {
  return elements == 0 ? TensorRef() : Storages::flat(storage, 0, DType::fp32, elements);
}

}  // namespace

void Optimizer::send(const Part::Messages& kept, const MatrixMessages& messages, TensorRef from,
                     AxisSet group, UpdateRecorder& run) const {
  const TensorRef sent = Storages::flat(kept.sent, 0, DType::fp32, messages.num_sent);
  // What sends nothing has a buffer too, by which the call is awaited.
  if (messages.num_sent == 0) run(Fill{.y = sent, .value = 0.0F});
  record_copy(messages.pack, kept.pack, from, {}, sent, run);
  run(AllToAllVCall{.input = sent,
                    .output = Storages::flat(kept.received, 0, DType::fp32, messages.num_received),
                    .group = group,
                    .send_counts = kept.sent_counts,
                    .receive_counts = kept.received_counts});
}

void Optimizer::receive(const Part::Messages& kept, const MatrixMessages& messages, UpdateRecorder& run) {
  run(Await{.input = Storages::flat(kept.sent, 0, DType::fp32, messages.num_sent),
            .output = Storages::flat(kept.received, 0, DType::fp32, messages.num_received)});
}

void Optimizer::record_collection(const UpdatedPart& updated, StepScalars* scalars,
                                  UpdateRecorder& run) const {
  const Part& part = parts_[updated.index];
  const MatrixExchange& matrices = part.matrices;
  if (matrices.group == AxisSet()) return;
  for (const Range& range : part.ranges) {
    if (range.matrix < 0) continue;
    const MatrixPiece& piece = matrices.pieces[static_cast<std::size_t>(range.matrix)];
    kind().matrices->direct(
        config_, of_range(updated, range, scalars),
        Storages::flat(part.elements, piece.place * float_bytes, DType::fp32, piece.count), run);
  }
  if (!matrices.collects) return;
  const MatrixMessages& messages = matrices.collection;
  send(part.collection, messages, all_of(part.elements, matrices.num_elements), matrices.divided, run);
}

void Optimizer::record_matrices(const UpdatedPart& updated, UpdateRecorder& run) {
  const Part& part = parts_[updated.index];
  const MatrixExchange& matrices = part.matrices;
  if (matrices.group == AxisSet()) return;
  if (matrices.collects) receive(part.collection, matrices.collection, run);
  const TensorRef stacks = all_of(part.stacks, matrices.num_owned);
  record_copy(matrices.collection.unpack, part.collection.unpack,
              all_of(part.elements, matrices.num_elements),
              all_of(part.collection.received, matrices.collection.num_received), stacks, run);
  for (const MatrixStack& stack : matrices.stacks) {
    const std::int64_t size = stack.count * stack.rows * stack.columns;
    kind().matrices->transform(
        stacks.flat(stack.begin, size).reshaped({stack.count, stack.rows, stack.columns}), *scratch_, run);
  }
  if (!matrices.returns) return;
  send(part.returned, matrices.result, stacks, matrices.divided, run);
}

void Optimizer::record_sharing(const UpdatedPart& updated, UpdateRecorder& run) const {
  const Part& part = parts_[updated.index];
  const MatrixExchange& matrices = part.matrices;
  if (matrices.group == AxisSet()) return;
  if (matrices.returns) receive(part.returned, matrices.result, run);
  const bool is_shared = matrices.shared.count > 0;
  const TensorRef to =
      is_shared ? all_of(part.shared, matrices.shared.count) : all_of(part.result, matrices.num_elements);
  // What broadcasts nothing receives into memory that has a value too.
  if (is_shared && matrices.result.unpack.blocks.empty()) run(Fill{.y = to, .value = 0.0F});
  record_copy(matrices.result.unpack, part.returned.unpack, all_of(part.stacks, matrices.num_owned),
              all_of(part.returned.received, matrices.result.num_received), to, run);
  for (const SharedResults::Range& range : matrices.shared.ranges) {
    run(BroadcastCall{
        .buffer = to.flat(range.begin, range.count), .group = matrices.copies, .peer = range.root});
  }
}

void Optimizer::record_steps(const UpdatedPart& updated, StepScalars* scalars, UpdateRecorder& run) const {
  const Part& part = parts_[updated.index];
  const MatrixExchange& matrices = part.matrices;
  if (matrices.group == AxisSet()) return;
  const TensorRef shared = all_of(part.shared, matrices.shared.count);
  for (const SharedResults::Range& range : matrices.shared.ranges) {
    const TensorRef own = shared.flat(range.begin, range.count);
    run(Await{.input = own, .output = own});
  }
  record_copy(matrices.shared.unpack, part.shared_unpack, shared, {},
              all_of(part.result, matrices.num_elements), run);
  for (const Range& range : part.ranges) {
    if (range.matrix < 0) continue;
    const MatrixPiece& piece = matrices.pieces[static_cast<std::size_t>(range.matrix)];
    OptimizerPart step = of_range(updated, range, scalars);
    step.gradient = Storages::flat(part.result, piece.place * float_bytes, DType::fp32, piece.count);
    kind().matrices->step(config_, step, piece.rows, piece.columns, run);
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

}  // namespace mylos
