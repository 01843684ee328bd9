// SPDX-License-Identifier: BSD-3-Clause
#include "tests/parallel/mini_trainer.hpp"

#include <algorithm>

#include "core/base/kinds.hpp"
#include "core/base/rng.hpp"

namespace mylos {

namespace {

/// Reads samples from a global batch (global_batch, T + 1).
class GivenTokens final : public StepDriver {
 public:
  GivenTokens(std::span<const std::int32_t> tokens, std::int64_t row) : tokens_(tokens), row_(row) {}
  void read_samples(std::int64_t /*step*/, std::int64_t first, std::span<std::int32_t> tokens) override {
    std::ranges::copy(tokens_.subspan(static_cast<std::size_t>(first * row_), tokens.size()), tokens.begin());
  }

 private:
  std::span<const std::int32_t> tokens_;
  std::int64_t row_;
};

auto& at(auto& values, std::int64_t index) {
  return values[static_cast<std::size_t>(index)];
}

/// Calls visit(whole, local) for each element of a piece, with its index in the whole parameter and its index
/// in the piece.
template <class Visit>
void for_each_element(const Piece& piece, const Visit& visit) {
  const std::vector<std::int64_t>& shape = piece.parameter.shape;
  for (const PlacedBox& placed : piece.boxes()) {
    const Box& box = placed.box;
    for (std::int64_t i = 0; i < box.size(); ++i) {
      std::int64_t whole = 0;
      std::int64_t local = placed.offset - piece.offset;
      std::int64_t pitch = 1;
      std::int64_t rest = i;
      for (std::size_t d = shape.size(); d-- > 0; pitch *= shape[d]) {
        const std::int64_t index = rest % box.count[d];
        rest /= box.count[d];
        whole += (box.start[d] + index) * pitch;
        local += index * placed.stride[d];
      }
      visit(whole, local);
    }
  }
}

}  // namespace

OptimizerConfig optimizer_config(std::string_view name) {
  OptimizerConfig config;
  config.kind = &find_kind(optimizers(), name);
  DeckErrors errors;
  std::vector<ParamSpec> params;  // of all kinds, since one may step some weights as another does
  for (const OptimizerKind* kind : optimizers())
    params.insert(params.end(), kind->params.begin(), kind->params.end());
  config.values = resolve_deck(Deck(), params, {}, errors);
  config.values.set("optim.lr", 1e-3);
  return config;
}

void set_ddp(RunConfig& config, std::string_view mode, double bucket_mb) {
  config.parallel.values.set("parallel.ddp_mode", std::string(mode));
  config.parallel.values.set("parallel.bucket_mb", bucket_mb);
}

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
  config.optimizer = optimizer_config("adamw");
  config.parallel.data = ranks;
  config.parallel.exchange = exchanges().front();
  config.parallel.schedule = schedules().front();
  DeckErrors errors;
  std::vector<ParamSpec> params;
  for (const ExchangeKind* kind : exchanges())
    params.insert(params.end(), kind->params.begin(), kind->params.end());
  config.parallel.values = resolve_deck(Deck(), params, {}, errors);
  return config;
}

void set_exchange(RunConfig& config, std::string_view name, std::int64_t shard) {
  config.parallel.exchange = &find_kind(exchanges(), name);
  config.parallel.shard = shard;
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

std::vector<float> floats_on_host(ComputeBackend& backend, const TensorRef& tensor) {
  std::vector<std::byte> raw(tensor.bytes());
  backend.copy_to_host(tensor.data, raw.data(), raw.size());
  backend.synchronize();
  std::vector<float> values(static_cast<std::size_t>(tensor.size()));
  dispatch_float(tensor.dtype, [&](auto element) {
    using T = decltype(element);
    const T* from = reinterpret_cast<const T*>(raw.data());
    std::transform(from, from + values.size(), values.begin(), [](T x) { return static_cast<float>(x); });
  });
  return values;
}

MiniTrainer::MiniTrainer(ComputeBackend& backend, MemoryLedger& ledger, Communicator& world,
                         const RunConfig& config)
    : backend_(backend),
      config_(config),
      trace_(backend),
      traced_(backend, trace_),
      grid_(world, config.parallel.extents(), config.groups(), traffic_, nullptr, backend.host_accessible(),
            &trace_),
      program_(config_, grid_.coordinates()),
      training_(traced_, ledger, grid_, program_, trace_) {
  training_.initialise();
}

StepScalars MiniTrainer::step(std::span<const std::int32_t> tokens) {
  run(tokens);
  return read().scalars;
}

void MiniTrainer::run(std::span<const std::int32_t> tokens) {
  GivenTokens driver(tokens, config_.train.seq_len + 1);
  ++step_;
  training_.run(step_, step_, driver);
}

const StepResults& MiniTrainer::read() {
  training_.read_results();
  return training_.results();
}

template <class Visit>
void MiniTrainer::for_each_owned(const Parameter& parameter, const Visit& visit) {
  const std::vector<UnitPart>& parts = training_.state().owned();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (const Piece& piece : pieces_of(table(), parts[i])) {
      if (&piece.parameter == &parameter) visit(i, piece);
    }
  }
}

template <class Of>
std::vector<float> MiniTrainer::joined_values(const Parameter& parameter, const Of& of) {
  std::vector<float> values(static_cast<std::size_t>(product(parameter.shape)));
  const auto part_of_whole = [&](std::size_t part, const Piece& piece) {
    if (!parameter.is_split(Axis::tensor) && grid_.coordinates().index(Axis::tensor) > 0) return;
    const std::vector<float> own = floats_on_host(backend_, of(part).flat(piece.offset, piece.count));
    for_each_element(piece,
                     [&](std::int64_t whole, std::int64_t local) { at(values, whole) = at(own, local); });
  };
  for_each_owned(parameter, part_of_whole);
  const auto unit = static_cast<std::size_t>(parameter.unit);
  AxisSet sharded = training_.state().holding().units[unit].divided_axes.with({Axis::tensor});
  if (parameter.is_split(Axis::expert)) sharded = sharded.with({Axis::expert});
  if (grid_.coordinates().extent(sharded) == 1) return values;
  MemoryLedger ledger;
  const DeviceBuffer buffer(backend_, ledger, MemoryCategory::communication, values.size() * sizeof(float),
                            "mylos::tests::values");
  const TensorRef all(buffer.data(), DType::fp32, {std::ssize(values)});
  backend_.copy_to_device(values.data(), all.data, all.bytes());
  for (const Axis axis : {Axis::expert, Axis::shard, Axis::tensor}) {
    if (sharded.contains(axis) && grid_.coordinates().extent(axis) > 1)
      grid_.group({axis}).all_reduce(all, ReduceOp::sum).wait();
  }
  return floats_on_host(backend_, all);
}

std::vector<float> MiniTrainer::weight(std::string_view name) {
  return joined_values(table().find(name), [&](std::size_t part) { return training_.state().master(part); });
}

void MiniTrainer::set_weight(std::string_view name, std::span<const float> values) {
  training_.state().settle();
  const Parameter& parameter = table().find(name);
  require(product(parameter.shape) == std::ssize(values), "a weight's size");
  for_each_owned(parameter, [&](std::size_t part, const Piece& piece) {
    const TensorRef to = training_.state().master(part).flat(piece.offset, piece.count);
    std::vector<float> own(static_cast<std::size_t>(piece.count));
    for_each_element(piece,
                     [&](std::int64_t whole, std::int64_t local) { at(own, local) = at(values, whole); });
    dispatch_float(to.dtype, [&](auto element) {
      using T = decltype(element);
      std::vector<T> rounded(own.size());
      std::ranges::transform(own, rounded.begin(), [](float x) { return T(x); });
      backend_.copy_to_device(rounded.data(), to.data, to.bytes());
      backend_.synchronize();
    });
    const TensorRef compute =
        training_.state().weights(training_.state().owned()[part]).flat(piece.offset, piece.count);
    if (compute.data != to.data) backend_.run(Cast{.x = to, .y = compute});
    backend_.synchronize();
  });
  training_.state().publish();
}

std::vector<float> MiniTrainer::gradient(std::string_view name) {
  return joined_values(table().find(name), [&](std::size_t part) {
    return training_.state().gradient(training_.state().owned()[part]);
  });
}

std::vector<float> MiniTrainer::whole_gradient() {
  std::vector<float> all;
  for (const Parameter& parameter : table().parameters()) {
    const std::vector<float> own = gradient(parameter.name);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace mylos
