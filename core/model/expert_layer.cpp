// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/expert_layer.hpp"

#include <cmath>

#include "core/model/parameters.hpp"

namespace mylos {

// Names and shapes as in core/ops/expert_operations.hpp.

/// What the rows of a micro-batch choose.
struct ExpertLayer::Routing {
  TensorRef logits, noise_logits, scores;  // (B, T, E) fp32; the last two may be missing
  TensorRef choices, gates;                // (B, T, k)
  RouterNoise noise;
};

/// The packed rows of a slice of a micro-batch, and what is computed for them.
struct ExpertLayer::Rows {
  std::int64_t first, count;  // rows of the micro-batch
  std::int64_t samples;       // sequences whose pairs compete for places
  std::int64_t capacity;      // of an expert, pairs of a sequence; 0: no limit
  // Of the rows of this rank, by the part with their expert:
  TensorRef loads, places, pairs, offsets;  // int32
  TensorRef sent, returned;                 // (P, R, C)
  // Of the rows for its experts, by the part that sent them:
  TensorRef own_offsets;
  TensorRef x, up, activated, down;  // (P, R, C), (P, R, F), (P, R, F), (P, R, C)

  /// These rows of a tensor (B, T, ...), as (samples, tokens, ...).
  TensorRef of(const TensorRef& tensor) const {
    return tensor.reshaped({tensor.size() / tensor.shape[tensor.rank - 1], tensor.shape[tensor.rank - 1]})
        .rows(first, count)
        .reshaped({samples, count / samples, tensor.shape[tensor.rank - 1]});
  }
};

namespace {

std::string prefix(std::int64_t layer) {
  return fmt::format("h.{}.moe.", layer);
}

}  // namespace

ExpertLayer::ExpertLayer(const ModelConfig& model, const ParameterTable& table, std::int64_t layer)
    : name_(fmt::format("h.{}", layer)),
      config_(model.experts),
      statistics_(RoutingStatistics(model).experts(layer)),
      router_(table.find(prefix(layer) + "router.weight")),
      noise_(config_.noise == RouterNoise::Kind::learned ? &table.find(prefix(layer) + "noise.weight")
                                                         : nullptr),
      up_(table.find(prefix(layer) + "experts.c_fc.weight")),
      up_bias_(table.find(prefix(layer) + "experts.c_fc.bias")),
      down_(table.find(prefix(layer) + "experts.c_proj.weight")),
      down_bias_(table.find(prefix(layer) + "experts.c_proj.bias")),
      width_(model.width),
      inner_(down_.box.count[1]),
      own_(down_.box.count[0]),
      parts_(config_.count / own_),
      is_split_(inner_ < config_.width),
      is_first_(down_.box.start[1] == 0) {}

void ExpertLayer::declare_router(ParameterTable& table, const ModelConfig& model, std::int64_t layer) {
  const Dimension width{"width", model.width};
  const Dimension experts{"experts", model.experts.count};
  table.add(prefix(layer) + "router.weight", {model.width, model.experts.count}, {width, experts},
            Initialisation::normal, initial_stddev);
  if (model.experts.noise == RouterNoise::Kind::learned) {
    table.add(prefix(layer) + "noise.weight", {model.width, model.experts.count}, {width, experts},
              Initialisation::zeros);
  }
}

void ExpertLayer::declare_experts(ParameterTable& table, const ModelConfig& model, std::int64_t layer) {
  const std::int64_t c = model.width;
  const std::int64_t e = model.experts.count;
  const std::int64_t f = model.experts.width;
  const Dimension width{"width", c};
  const Dimension experts{"experts", e};
  const Dimension inner{"inner", f};
  const std::string name = prefix(layer) + "experts.";
  const auto matrix = [&](const char* part, std::vector<std::int64_t> shape, std::vector<Dimension> view,
                          float stddev) {
    Parameter& parameter =
        table.add(name + part, std::move(shape), std::move(view), Initialisation::normal, stddev);
    parameter.is_matrix = true;
    parameter.stack = experts.name;
    ParameterTable::split(parameter, Axis::tensor, "inner");
    ParameterTable::split(parameter, Axis::expert, "experts");
  };
  const auto bias = [&](const char* part, std::int64_t extent, const Dimension& dimension) -> Parameter& {
    Parameter& parameter = table.add(name + part, {e, extent}, {experts, dimension}, Initialisation::zeros);
    parameter.decay = false;
    ParameterTable::split(parameter, Axis::expert, "experts");
    return parameter;
  };
  matrix("c_proj.weight", {e, f, c}, {experts, inner, width}, residual_stddev(model));
  bias("c_proj.bias", c, width);
  matrix("c_fc.weight", {e, c, f}, {experts, width, inner}, initial_stddev);
  ParameterTable::split(bias("c_fc.bias", f, inner), Axis::tensor, "inner");
}

ExpertLayer::Routing ExpertLayer::routing(Recorder& run) const {
  const BatchShape& s = run.shape();
  const auto of_experts = [&](const char* name) {
    return run.tensor(name, DType::fp32, {s.batch, s.seq, config_.count});
  };
  const auto of_choices = [&](const char* name, DType dtype) {
    return run.tensor(name, dtype, {s.batch, s.seq, config_.per_token});
  };
  Routing r;
  r.noise = run.router_noise(config_.noise, "router." + name_);
  r.logits = of_experts("router.logits");
  if (r.noise.kind != RouterNoise::Kind::none) r.scores = of_experts("router.scores");
  if (r.noise.kind == RouterNoise::Kind::learned) r.noise_logits = of_experts("router.noise");
  r.choices = of_choices("router.choices", DType::int32);
  r.gates = of_choices("router.gates", DType::fp32);
  return r;
}

std::int64_t ExpertLayer::room(std::int64_t samples, std::int64_t tokens, std::int64_t capacity) const {
  const std::int64_t all = samples * tokens * std::min(config_.per_token, own_);
  return capacity == 0 ? all : std::min(all, own_ * samples * capacity);
}

/// Without drops there are more packed rows than training has with them; slices then bound the memory.
std::int64_t ExpertLayer::num_slices(const Recorder& run) const {
  const BatchShape& s = run.shape();
  if (run.is_training()) return 1;
  const std::int64_t all = room(s.batch, s.seq, 0);
  const std::int64_t trained = room(s.batch, run.trained_seq(), config_.places(run.trained_seq()));
  return std::min((all + trained - 1) / trained, s.rows());
}

ExpertLayer::Rows ExpertLayer::rows(Recorder& run, std::int64_t slice) const {
  const BatchShape& s = run.shape();
  const std::int64_t k = config_.per_token;
  const std::int64_t slices = num_slices(run);
  Rows rows{};
  rows.first = s.rows() * slice / slices;
  rows.count = s.rows() * (slice + 1) / slices - rows.first;
  rows.capacity = run.is_training() ? config_.places(s.seq) : 0;
  rows.samples = slices == 1 ? s.batch : 1;
  const std::int64_t tokens = rows.count / rows.samples;
  const std::int64_t most = room(rows.samples, tokens, rows.capacity);
  // Slices differ in size; without drops there is another number of rows than in training.
  const bool is_usual = run.is_training() || config_.places(s.seq) == 0;
  const std::string suffix = is_usual ? "" : fmt::format(".{}", rows.count);
  const auto tensor = [&](const char* name, DType dtype, std::initializer_list<std::int64_t> shape,
                          Cost cost = Cost::expensive) {
    return run.tensor(name + suffix, dtype, shape, cost);
  };
  const auto of_rows = [&](const char* name, std::int64_t columns, Cost cost = Cost::expensive) {
    return tensor(name, s.dtype, {parts_, most, columns}, cost);
  };
  rows.loads = tensor("experts.loads", DType::int32, {rows.samples, config_.count});
  rows.places = tensor("experts.places", DType::int32, {rows.samples, tokens, k});
  rows.pairs = tensor("experts.pairs", DType::int32, {parts_, most});
  rows.offsets = tensor("experts.offsets", DType::int32, {parts_, own_ + 1});
  rows.sent = of_rows("experts.rows", width_, parts_ == 1 ? Cost::cheap : Cost::expensive);
  rows.up = of_rows("experts.up", inner_);
  rows.activated = of_rows("experts.activated", inner_);
  rows.down = of_rows("experts.down", width_);
  rows.x = received(run, "experts.rows.own" + suffix, rows.sent);
  rows.own_offsets = received(run, "experts.offsets.own" + suffix, rows.offsets);
  rows.returned = received(run, "experts.down.returned" + suffix, rows.down);
  return rows;
}

TensorRef ExpertLayer::received(Recorder& run, const std::string& name, const TensorRef& parts) const {
  return parts_ == 1 ? parts : run.tensor_like(name, parts);
}

void ExpertLayer::exchange(Recorder& run, const TensorRef& parts, const TensorRef& received) const {
  if (parts_ > 1) run(AllToAllCall{.input = parts, .output = received, .group = {Axis::expert}});
}

void ExpertLayer::choose(Recorder& run, const TensorRef& x, const Routing& r) const {
  run(RouterForward{.x = x, .w = run.weight(router_), .logits = r.logits});
  if (r.noise_logits) run(RouterForward{.x = x, .w = run.weight(*noise_), .logits = r.noise_logits});
  run(RouterChoice{.logits = r.logits,
                   .noise_logits = r.noise_logits,
                   .scores = r.scores,
                   .choices = r.choices,
                   .gates = r.gates,
                   .kind = config_.router,
                   .noise = r.noise});
}

TensorRef ExpertLayer::forward(Recorder& run, const TensorRef& x_rows, const TensorRef& residual) const {
  const BatchShape& s = run.shape();
  const TensorRef x = x_rows.reshaped({s.batch, s.seq, width_});
  const TensorRef y = run.tensor("experts.sum", s.dtype, {s.rows(), width_});
  const Routing r = routing(run);
  choose(run, x, r);
  for (std::int64_t slice = 0; slice < num_slices(run); ++slice) {
    const Rows own = rows(run, slice);
    const std::int64_t active = own.count * config_.per_token;
    run(ExpertPlaces{.choices = own.of(r.choices),
                     .loads = own.loads,
                     .places = own.places,
                     .pairs = own.pairs,
                     .offsets = own.offsets,
                     .capacity = own.capacity,
                     .by_choice = config_.by_choice});
    run(GatherRows{.x = own.of(x),
                   .pairs = own.pairs,
                   .offsets = own.offsets,
                   .rows = own.sent,
                   .choices = config_.per_token});
    exchange(run, own.offsets, own.own_offsets);
    exchange(run, own.sent, own.x);
    run(GroupedLinearForward{.x = own.x,
                             .w = run.weight(up_),
                             .bias = run.weight(up_bias_),
                             .offsets = own.own_offsets,
                             .y = own.up,
                             .activated = own.activated,
                             .rows = active});
    run(GroupedLinearForward{.x = own.activated,
                             .w = run.weight(down_),
                             .bias = is_first_ ? run.weight(down_bias_) : TensorRef(),
                             .offsets = own.own_offsets,
                             .y = own.down,
                             .rows = active});
    exchange(run, own.down, own.returned);
    run(CombineRows{.rows = own.returned,
                    .places = own.places,
                    .gates = own.of(r.gates),
                    .residual = residual ? own.of(residual) : TensorRef(),
                    .y = own.of(y)});
  }
  return y;
}

TensorRef ExpertLayer::backward(Recorder& run, const TensorRef& x_rows, const TensorRef& output_gradient,
                                const TensorRef& residual) const {
  const BatchShape& s = run.shape();
  const TensorRef x = x_rows.reshaped({s.batch, s.seq, width_});
  const Routing r = routing(run);
  const TensorRef dx = run.tensor("d.experts.x", s.dtype, {s.rows(), width_});
  const Rows own = rows(run, 0);
  const std::int64_t active = own.count * config_.per_token;
  const TensorRef d_gates = run.tensor_like("d.router.gates", r.gates);
  const TensorRef d_returned = run.tensor_like("d.experts.returned", own.returned);
  const TensorRef d_down = received(run, "d.experts.down", d_returned);
  const TensorRef d_up = run.tensor_like("d.experts.up", own.up);
  const TensorRef d_rows = run.tensor_like("d.experts.rows", own.x);
  const TensorRef d_sent = received(run, "d.experts.sent", d_rows);
  run(CombineRowsBackward{.dy = own.of(output_gradient),
                          .rows = own.returned,
                          .places = own.places,
                          .gates = r.gates,
                          .drows = d_returned,
                          .dgates = d_gates});
  exchange(run, d_returned, d_down);
  if (is_split_) run(AllReduceCall{.buffer = d_gates.flat(), .group = {Axis::tensor}});
  run(GroupedLinearBackwardWeight{.x = own.activated,
                                  .dy = d_down,
                                  .offsets = own.own_offsets,
                                  .dw = run.gradient(down_),
                                  .dbias = run.gradient(down_bias_),
                                  .rows = active});
  run(GroupedLinearBackwardInput{.dy = d_down,
                                 .w = run.weight(down_),
                                 .offsets = own.own_offsets,
                                 .pre = own.up,
                                 .dx = d_up,
                                 .rows = active});
  const GroupedLinearBackwardWeight up{.x = own.x,
                                       .dy = d_up,
                                       .offsets = own.own_offsets,
                                       .dw = run.gradient(up_),
                                       .dbias = run.gradient(up_bias_),
                                       .rows = active};
  // The way back overlaps with the gradient of the weights.
  if (parts_ == 1) run(up);
  run(GroupedLinearBackwardInput{
      .dy = d_up, .w = run.weight(up_), .offsets = own.own_offsets, .dx = d_rows, .rows = active});
  exchange(run, d_rows, d_sent);
  if (parts_ > 1) run(up);
  run(CombineRows{.rows = d_sent,
                  .places = own.places,
                  .residual = residual ? own.of(residual) : TensorRef(),
                  .y = own.of(dx)});

  const TensorRef d_logits = run.tensor_like("d.router.logits", r.logits);
  const TensorRef d_noise = r.noise_logits ? run.tensor_like("d.router.noise", r.noise_logits) : TensorRef();
  run(RouterGradient{.logits = r.logits,
                     .noise_logits = r.noise_logits,
                     .scores = r.scores,
                     .choices = r.choices,
                     .gates = r.gates,
                     .dgates = d_gates,
                     .loads = own.loads,
                     .dlogits = d_logits,
                     .dnoise_logits = d_noise,
                     .kind = config_.router,
                     .noise = r.noise,
                     .balance_scale = config_.balance_loss * run.gradient_scale(),
                     .z_scale = config_.z_loss * run.gradient_scale(),
                     .scalars = run.scalars()});
  run(RouterStatistics{.logits = r.logits,
                       .scores = r.scores,
                       .loads = own.loads,
                       .sums = Recorder::statistics(statistics_),
                       .choices = config_.per_token,
                       .capacity = own.capacity});
  // All ranks along the tensor axis have the whole gradient of the logits; each adds its share to the sum.
  const auto through = [&](const Parameter& weight, const TensorRef& gradient, const TensorRef& sum,
                           const char* name) {
    const TensorRef y = run.tensor_like(name, sum);
    run(RouterBackwardWeight{.x = x, .dlogits = gradient, .dw = run.gradient(weight)});
    run(RouterBackwardInput{.dlogits = gradient,
                            .w = run.weight(weight),
                            .residual = own.of(sum),
                            .dx = own.of(y),
                            .scale = static_cast<float>(inner_) / static_cast<float>(config_.width)});
    return y;
  };
  const TensorRef sum = through(router_, d_logits, dx, "d.router.x");
  return d_noise ? through(*noise_, d_noise, sum, "d.noise.x") : sum;
}

}  // namespace mylos
