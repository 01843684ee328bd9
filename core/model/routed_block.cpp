// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/routed_block.hpp"

#include "core/model/parameters.hpp"
#include "core/model/routing_statistics.hpp"

namespace mylos {

/// Shapes as in core/ops/depth_operations.hpp.
struct RoutedBlock::Taken {
  TensorRef scores;                  // (B, T, 1) fp32: r
  TensorRef places, pairs, offsets;  // int32
  TensorRef input, change;           // (1, B K, C): u and block(u) - u
};

struct RoutedBlock::Prediction {
  TensorRef up, activated;  // (B T, C / 8)
  TensorRef logits;         // (B T, 1)
};

namespace {

std::string prefix(std::int64_t layer) {
  return fmt::format("h.{}.depth.", layer);
}

TensorRef as_rows(const TensorRef& tensor) {
  return tensor.reshaped({tensor.size() / tensor.shape[tensor.rank - 1], tensor.shape[tensor.rank - 1]});
}

/// (B T, C) as (B, T, C).
TensorRef as_sequences(const Recorder& run, const TensorRef& rows) {
  return rows.reshaped({run.shape().batch, run.shape().seq, rows.shape[1]});
}

}  // namespace

RoutedBlock::RoutedBlock(const ModelConfig& model, const ParameterTable& table, std::int64_t layer)
    : block_(model, table, layer),
      width_(model.width),
      depths_(model.depths),
      statistics_(RoutingStatistics(model).depths(layer)),
      router_(table.find(prefix(layer) + "router.weight")),
      up_(table.find(prefix(layer) + "predictor.c_fc.weight")),
      up_bias_(table.find(prefix(layer) + "predictor.c_fc.bias")),
      down_(table.find(prefix(layer) + "predictor.c_proj.weight")),
      down_bias_(table.find(prefix(layer) + "predictor.c_proj.bias")) {}

void RoutedBlock::declare_routers(ParameterTable& table, const ModelConfig& model, std::int64_t layer) {
  const std::int64_t c = model.width;
  const std::int64_t f = model.width / 8;
  const Dimension width{"width", c};
  const Dimension inner{"predictor", f};
  const Dimension one{"one", 1};
  const auto add = [&](const char* name, std::vector<std::int64_t> shape, std::vector<Dimension> view,
                       Initialisation initialisation, float stddev = 0.0F) {
    table.add(prefix(layer) + name, std::move(shape), std::move(view), initialisation, stddev);
  };
  add("predictor.c_proj.weight", {f, 1}, {inner, one}, Initialisation::normal, residual_stddev(model));
  add("predictor.c_proj.bias", {1}, {one}, Initialisation::zeros);
  add("predictor.c_fc.weight", {c, f}, {width, inner}, Initialisation::normal, initial_stddev);
  add("predictor.c_fc.bias", {f}, {inner}, Initialisation::zeros);
  add("router.weight", {c, 1}, {width, one}, Initialisation::normal, initial_stddev);
}

Recorder RoutedBlock::packed(Recorder& run) const {
  const BatchShape& s = run.shape();
  const std::int64_t trained = depths_.tokens(s.seq);
  if (run.has_cache())
    return run.packed(s.seq, trained, "", run.tensor("depth.positions", DType::int32, {s.batch}));
  if (run.is_training()) return run.packed(trained, trained, "");
  return run.packed(s.seq, trained, "evaluated ");  // tensors of other sizes than in training
}

RoutedBlock::Taken RoutedBlock::taken(Recorder& run, const Recorder& packed) const {
  const BatchShape& s = run.shape();
  const std::int64_t rows = packed.shape().rows();
  Recorder of_packed = packed;
  return {.scores = run.tensor("depth.scores", DType::fp32, {s.batch, s.seq, 1}),
          .places = run.tensor("depth.places", DType::int32, {s.batch, s.seq, 1}),
          .pairs = of_packed.tensor("depth.pairs", DType::int32, {1, rows}),
          .offsets = run.tensor("depth.offsets", DType::int32, {1, 2}),
          .input = of_packed.tensor("depth.input", s.dtype, {1, rows, width_}, Cost::cheap),
          .change = of_packed.tensor("depth.change", s.dtype, {1, rows, width_})};
}

RoutedBlock::Prediction RoutedBlock::predict(Recorder& run, const TensorRef& x) const {
  const std::int64_t rows = run.shape().rows();
  const std::int64_t inner = down_.box.count[0];
  const Prediction p = {.up = run.tensor("predictor.up", x.dtype, {rows, inner}),
                        .activated = run.tensor("predictor.activated", x.dtype, {rows, inner}),
                        .logits = run.tensor("predictor.logits", x.dtype, {rows, 1})};
  run(LinearGeluForward{
      .x = x, .w = run.weight(up_), .bias = run.weight(up_bias_), .pre = p.up, .y = p.activated});
  run(LinearForward{.x = p.activated, .w = run.weight(down_), .bias = run.weight(down_bias_), .y = p.logits});
  return p;
}

void RoutedBlock::choose(Recorder& run, const TensorRef& x, const Taken& t) const {
  run(RouterForward{.x = x, .w = run.weight(router_), .logits = t.scores});
  if (run.is_training()) {
    run(TopTokens{.scores = t.scores, .places = t.places, .pairs = t.pairs, .offsets = t.offsets});
    return;
  }
  PositiveTokens op{.scores = predict(run, as_rows(x)).logits.reshaped({x.shape[0], x.shape[1], 1}),
                    .places = t.places,
                    .pairs = t.pairs,
                    .offsets = t.offsets};
  if (run.has_cache()) {
    op.rows = run.cache_rows();
    op.positions = run.positions();
    op.taken = run.cached_counts("depth.taken");
    op.own_positions = packed(run).positions();
  }
  run(op);
}

void RoutedBlock::forward(Recorder& run, TensorRef input, TensorRef output) const {
  require(run.shape().residual_parts == 1, "a routed block has all rows");
  Recorder inner = packed(run);
  const Taken t = taken(run, inner);
  const TensorRef x = as_sequences(run, input);
  choose(run, x, t);
  run(GatherRows{.x = x, .pairs = t.pairs, .offsets = t.offsets, .rows = t.input});
  const TensorRef block_output = inner.tensor_like("depth.output", as_rows(t.input));
  block_.forward(inner, as_rows(t.input), block_output);
  run(Subtract{.a = block_output, .b = t.input, .y = t.change});
  run(CombineRows{.rows = t.change,
                  .places = t.places,
                  .gates = t.scores,
                  .residual = x,
                  .y = as_sequences(run, output)});
}

void RoutedBlock::learn_to_predict(Recorder& run, const TensorRef& x, const TensorRef& places) const {
  const Prediction p = predict(run, x);
  const TensorRef d_logits = run.tensor_like("d.predictor.logits", p.logits);
  const TensorRef d_up = run.tensor_like("d.predictor.up", p.up);
  run(DepthPredictorLoss{.logits = p.logits,
                         .places = places,
                         .dlogits = d_logits,
                         .sums = Recorder::statistics(statistics_),
                         .scale = run.gradient_scale(),
                         .scalars = run.scalars()});
  run(LinearBackwardWeight{
      .x = p.activated, .dy = d_logits, .dw = run.gradient(down_), .dbias = run.gradient(down_bias_)});
  run(LinearGeluBackwardInput{.dy = d_logits, .w = run.weight(down_), .pre = p.up, .dpre = d_up});
  run(LinearBackwardWeight{.x = x, .dy = d_up, .dw = run.gradient(up_), .dbias = run.gradient(up_bias_)});
}

void RoutedBlock::backward(Recorder& run, TensorRef input, TensorRef output_gradient,
                           TensorRef input_gradient) const {
  Recorder inner = packed(run);
  const Taken t = taken(run, inner);
  const TensorRef x = as_sequences(run, input);
  const TensorRef d_scores = run.tensor_like("d.depth.scores", t.scores);
  const TensorRef d_output = inner.tensor_like("d.depth.output", t.change);
  const TensorRef d_input = inner.tensor_like("d.depth.input", t.input);
  run(CombineRowsBackward{.dy = as_sequences(run, output_gradient),
                          .rows = t.change,
                          .places = t.places,
                          .gates = t.scores,
                          .drows = d_output,
                          .dgates = d_scores});
  block_.backward(inner, as_rows(t.input), as_rows(d_output), as_rows(d_input));
  const TensorRef d_change = inner.tensor_like("d.depth.change", d_input);
  run(Subtract{.a = d_input, .b = d_output, .y = d_change});
  const TensorRef sum = run.tensor_like("d.depth.sum", x);
  run(CombineRows{
      .rows = d_change, .places = t.places, .residual = as_sequences(run, output_gradient), .y = sum});
  run(RouterBackwardInput{.dlogits = d_scores,
                          .w = run.weight(router_),
                          .residual = sum,
                          .dx = as_sequences(run, input_gradient)});
  learn_to_predict(run, input, t.places);
  run(RouterBackwardWeight{.x = x, .dlogits = d_scores, .dw = run.gradient(router_)});
}

}  // namespace mylos
