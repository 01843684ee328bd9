// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/transformer_block.hpp"

#include <cmath>

namespace mylos {

/// In the order of `activations()`.
struct TransformerBlock::Activations {
  TensorRef ln1;           // (B * T, C)
  TensorRef mean1, rstd1;  // (B * T) fp32
  TensorRef qkv;           // (B, T, 3, H, D)
  TensorRef attended;      // (B * T, C)
  TensorRef lse;           // (B, H, T) fp32
  TensorRef middle;        // (B, T, C): the residual stream between attention and feed-forward
  TensorRef ln2;           // (B * T, C)
  TensorRef mean2, rstd2;  // (B * T) fp32
  TensorRef up;            // (B * T, 4C): before the GELU
  TensorRef activated;     // (B * T, 4C): after it
  // gradients, in backward only
  TensorRef wide_gradient;  // (B * T, 4C): of up, later (B, T, 3, H, D) of qkv
  TensorRef gradient;       // (B * T, C): of a layernorm's output or of attended
  TensorRef dropped;        // (B, T, C): the stream's gradient behind a dropout; empty without dropout
  TensorRef delta;          // (B, H, T) fp32
};

TransformerBlock::TransformerBlock(const ModelConfig& model, const ParameterTable& table, std::int64_t layer,
                                   Recompute recompute)
    : layer_(layer),
      width_(model.width),
      heads_(model.heads),
      dropout_(model.dropout),
      recompute_(recompute) {
  const auto slot = [&](const char* name) {
    return WeightSlot(table.find(fmt::format("h.{}.{}", layer, name)));
  };
  unit_ = table.find(fmt::format("h.{}.ln_1.weight", layer)).unit;
  ln1_gamma_ = slot("ln_1.weight");
  ln1_beta_ = slot("ln_1.bias");
  qkv_ = slot("attn.c_attn.weight");
  qkv_bias_ = slot("attn.c_attn.bias");
  proj_ = slot("attn.c_proj.weight");
  proj_bias_ = slot("attn.c_proj.bias");
  ln2_gamma_ = slot("ln_2.weight");
  ln2_beta_ = slot("ln_2.bias");
  up_ = slot("mlp.c_fc.weight");
  up_bias_ = slot("mlp.c_fc.bias");
  down_ = slot("mlp.c_proj.weight");
  down_bias_ = slot("mlp.c_proj.bias");
}

std::vector<ActivationSpec> TransformerBlock::activations(const BatchShape& shape) const {
  const auto element = static_cast<std::int64_t>(size_of(shape.dtype));
  const std::int64_t stream = shape.rows() * width_ * element;
  const std::int64_t statistics = shape.rows() * 4;
  const std::int64_t lse = shape.batch * heads_ * shape.seq * 4;
  const Lifetime kept = recompute_ == Recompute::block ? Lifetime::both : Lifetime::saved;
  const Lifetime cheap = recompute_ == Recompute::none ? Lifetime::saved : Lifetime::both;
  return {
      {stream, cheap},                                     // ln1
      {statistics, kept},                                  // mean1
      {statistics, kept},                                  // rstd1
      {3 * stream, kept},                                  // qkv
      {stream, kept},                                      // attended
      {lse, kept},                                         // lse
      {stream, kept},                                      // middle
      {stream, cheap},                                     // ln2
      {statistics, kept},                                  // mean2
      {statistics, kept},                                  // rstd2
      {4 * stream, kept},                                  // up
      {4 * stream, cheap},                                 // activated
      {4 * stream, Lifetime::backward},                    // wide_gradient
      {stream, Lifetime::backward},                        // gradient
      {dropout_ > 0.0F ? stream : 0, Lifetime::backward},  // dropped
      {lse, Lifetime::backward},                           // delta
  };
}

TransformerBlock::Activations TransformerBlock::tensors(const BlockContext& context) const {
  const BatchShape& s = context.shape;
  const auto& b = context.buffers;
  const std::int64_t n = s.rows();
  return {.ln1 = {b[0], s.dtype, {n, width_}},
          .mean1 = {b[1], DType::fp32, {n}},
          .rstd1 = {b[2], DType::fp32, {n}},
          .qkv = {b[3], s.dtype, {s.batch, s.seq, 3, heads_, width_ / heads_}},
          .attended = {b[4], s.dtype, {n, width_}},
          .lse = {b[5], DType::fp32, {s.batch, heads_, s.seq}},
          .middle = {b[6], s.dtype, {s.batch, s.seq, width_}},
          .ln2 = {b[7], s.dtype, {n, width_}},
          .mean2 = {b[8], DType::fp32, {n}},
          .rstd2 = {b[9], DType::fp32, {n}},
          .up = {b[10], s.dtype, {n, 4 * width_}},
          .activated = {b[11], s.dtype, {n, 4 * width_}},
          .wide_gradient = {b[12], s.dtype, {n, 4 * width_}},
          .gradient = {b[13], s.dtype, {n, width_}},
          .dropped = {b[14], s.dtype, {s.batch, s.seq, width_}},
          .delta = {b[15], DType::fp32, {s.batch, heads_, s.seq}}};
}

Dropout TransformerBlock::dropout(const BlockContext& context, const char* site) const {
  Dropout drop;
  if (!context.training || dropout_ == 0.0F) return drop;
  char purpose[64];
  const auto end = fmt::format_to_n(purpose, sizeof purpose, "dropout.h.{}.{}", layer_, site);
  drop.probability = dropout_;
  drop.key = stream_key(context.seed, std::string_view(purpose, end.size));
  drop.first_sample = context.first_sample;
  drop.scalars = context.scalars;
  return drop;
}

namespace {

/// Query (0), key (1) or value (2) of a packed (B, T, 3, H, D) tensor, as a strided (B, T, H, D).
TensorRef packed_part(const TensorRef& qkv, std::int64_t part) {
  TensorRef view = qkv;
  view.data =
      static_cast<std::byte*>(qkv.data) + static_cast<std::size_t>(part * qkv.stride[2]) * size_of(qkv.dtype);
  view.rank = 4;
  view.shape = {qkv.shape[0], qkv.shape[1], qkv.shape[3], qkv.shape[4]};
  view.stride = {qkv.stride[0], qkv.stride[1], qkv.stride[3], qkv.stride[4]};
  return view;
}

TensorRef as_matrix(const TensorRef& stream) {
  return stream.reshaped({stream.shape[0] * stream.shape[1], stream.shape[2]});
}

}  // namespace

AttentionForward TransformerBlock::attention(const BlockContext& context, const Activations& a) const {
  const BatchShape& s = context.shape;
  const std::int64_t head_dim = width_ / heads_;
  return {.query = packed_part(a.qkv, 0),
          .key = packed_part(a.qkv, 1),
          .value = packed_part(a.qkv, 2),
          .output = a.attended.reshaped({s.batch, s.seq, heads_, head_dim}),
          .lse = a.lse,
          .query_offset = 0,
          .scale = 1.0F / std::sqrt(static_cast<float>(head_dim)),
          .dropout = dropout(context, "attention"),
          .place = {.positions = s.seq}};
}

void TransformerBlock::forward_inner(const BlockContext& context, const Activations& a,
                                     TensorRef input) const {
  const TensorRef& w = context.units[0].weights;
  context.run(LayernormForward{.x = as_matrix(input),
                               .gamma = ln1_gamma_.in(w),
                               .beta = ln1_beta_.in(w),
                               .y = a.ln1,
                               .mean = a.mean1,
                               .rstd = a.rstd1});
  context.run(LinearForward{.x = a.ln1,
                            .w = qkv_.in(w),
                            .bias = qkv_bias_.in(w),
                            .y = a.qkv.reshaped({context.shape.rows(), 3 * width_})});
  context.run(attention(context, a));
  context.run(
      LinearForward{.x = a.attended, .w = proj_.in(w), .bias = proj_bias_.in(w), .y = as_matrix(a.middle)});
  context.run(DropoutAddLayernorm{.x = a.middle,
                                  .residual = input,
                                  .sum = a.middle,
                                  .gamma = ln2_gamma_.in(w),
                                  .beta = ln2_beta_.in(w),
                                  .y = a.ln2,
                                  .mean = a.mean2,
                                  .rstd = a.rstd2,
                                  .dropout = dropout(context, "attention.residual")});
  context.run(
      LinearGeluForward{.x = a.ln2, .w = up_.in(w), .bias = up_bias_.in(w), .pre = a.up, .y = a.activated});
}

void TransformerBlock::forward(const BlockContext& context, TensorRef input, TensorRef output) const {
  const Activations a = tensors(context);
  const TensorRef& w = context.units[0].weights;
  forward_inner(context, a, input);
  context.run(
      LinearForward{.x = a.activated, .w = down_.in(w), .bias = down_bias_.in(w), .y = as_matrix(output)});
  context.run(DropoutAdd{
      .x = output, .residual = a.middle, .y = output, .dropout = dropout(context, "mlp.residual")});
}

void TransformerBlock::backward(const BlockContext& context, TensorRef input, TensorRef gradient) const {
  const Activations a = tensors(context);
  const TensorRef& w = context.units[0].weights;
  if (recompute_ == Recompute::block) forward_inner(context, a, input);
  if (recompute_ == Recompute::selective) {
    context.run(LayernormForward{.x = as_matrix(input),
                                 .gamma = ln1_gamma_.in(w),
                                 .beta = ln1_beta_.in(w),
                                 .y = a.ln1,
                                 .mean = a.mean1,
                                 .rstd = a.rstd1});
    context.run(LayernormForward{.x = as_matrix(a.middle),
                                 .gamma = ln2_gamma_.in(w),
                                 .beta = ln2_beta_.in(w),
                                 .y = a.ln2,
                                 .mean = a.mean2,
                                 .rstd = a.rstd2});
    context.run(GeluForward{.x = a.up, .y = a.activated});
  }
  backward_mlp(context, a, gradient);
  backward_attention(context, a, input, gradient);
}

void TransformerBlock::backward_mlp(const BlockContext& context, const Activations& a,
                                    TensorRef gradient) const {
  const UnitView& unit = context.units[0];
  const TensorRef& w = unit.weights;
  const TensorRef& g = unit.gradients;
  const bool add = unit.accumulate;

  TensorRef branch = gradient;
  if (const Dropout drop = dropout(context, "mlp.residual"); drop.probability > 0.0F) {
    context.run(DropoutAdd{.x = gradient, .y = a.dropped, .dropout = drop});
    branch = a.dropped;
  }
  branch = as_matrix(branch);
  context.run(LinearBackwardWeight{
      .x = a.activated, .dy = branch, .dw = down_.in(g), .dbias = down_bias_.in(g), .accumulate = add});
  context.listener->gradient_ready(unit_, down_.begin(), down_bias_.end());
  context.run(LinearGeluBackwardInput{.dy = branch, .w = down_.in(w), .pre = a.up, .dpre = a.wide_gradient});
  context.run(LinearBackwardWeight{
      .x = a.ln2, .dy = a.wide_gradient, .dw = up_.in(g), .dbias = up_bias_.in(g), .accumulate = add});
  context.listener->gradient_ready(unit_, up_.begin(), up_bias_.end());
  context.run(LinearBackwardInput{.dy = a.wide_gradient, .w = up_.in(w), .dx = a.gradient});
  const TensorRef middle = as_matrix(a.middle);
  context.run(LayernormBackwardWeight{.dy = a.gradient,
                                      .x = middle,
                                      .mean = a.mean2,
                                      .rstd = a.rstd2,
                                      .dgamma = ln2_gamma_.in(g),
                                      .dbeta = ln2_beta_.in(g),
                                      .accumulate = add});
  context.listener->gradient_ready(unit_, ln2_gamma_.begin(), ln2_beta_.end());
  context.run(LayernormBackwardInput{.dy = a.gradient,
                                     .x = middle,
                                     .gamma = ln2_gamma_.in(w),
                                     .mean = a.mean2,
                                     .rstd = a.rstd2,
                                     .residual = as_matrix(gradient),
                                     .dx = as_matrix(gradient)});
}

void TransformerBlock::backward_attention(const BlockContext& context, const Activations& a, TensorRef input,
                                          TensorRef gradient) const {
  const UnitView& unit = context.units[0];
  const TensorRef& w = unit.weights;
  const TensorRef& g = unit.gradients;
  const bool add = unit.accumulate;
  const std::int64_t n = context.shape.rows();

  TensorRef branch = gradient;
  if (const Dropout drop = dropout(context, "attention.residual"); drop.probability > 0.0F) {
    context.run(DropoutAdd{.x = gradient, .y = a.dropped, .dropout = drop});
    branch = a.dropped;
  }
  branch = as_matrix(branch);
  context.run(LinearBackwardWeight{
      .x = a.attended, .dy = branch, .dw = proj_.in(g), .dbias = proj_bias_.in(g), .accumulate = add});
  context.listener->gradient_ready(unit_, proj_.begin(), proj_bias_.end());
  context.run(LinearBackwardInput{.dy = branch, .w = proj_.in(w), .dx = a.gradient});

  const TensorRef qkv_gradient(a.wide_gradient.data, a.qkv.dtype,
                               {a.qkv.shape[0], a.qkv.shape[1], 3, heads_, width_ / heads_});
  context.run(AttentionBackward{
      .forward = attention(context, a),
      .output_grad = a.gradient.reshaped({a.qkv.shape[0], a.qkv.shape[1], heads_, width_ / heads_}),
      .query_grad = packed_part(qkv_gradient, 0),
      .key_grad = packed_part(qkv_gradient, 1),
      .value_grad = packed_part(qkv_gradient, 2),
      .delta = a.delta});

  const TensorRef qkv_rows = qkv_gradient.reshaped({n, 3 * width_});
  context.run(LinearBackwardWeight{
      .x = a.ln1, .dy = qkv_rows, .dw = qkv_.in(g), .dbias = qkv_bias_.in(g), .accumulate = add});
  context.listener->gradient_ready(unit_, qkv_.begin(), qkv_bias_.end());
  context.run(LinearBackwardInput{.dy = qkv_rows, .w = qkv_.in(w), .dx = a.gradient});
  const TensorRef x = as_matrix(input);
  context.run(LayernormBackwardWeight{.dy = a.gradient,
                                      .x = x,
                                      .mean = a.mean1,
                                      .rstd = a.rstd1,
                                      .dgamma = ln1_gamma_.in(g),
                                      .dbeta = ln1_beta_.in(g),
                                      .accumulate = add});
  context.listener->gradient_ready(unit_, ln1_gamma_.begin(), g.size());
  context.run(LayernormBackwardInput{.dy = a.gradient,
                                     .x = x,
                                     .gamma = ln1_gamma_.in(w),
                                     .mean = a.mean1,
                                     .rstd = a.rstd1,
                                     .residual = as_matrix(gradient),
                                     .dx = as_matrix(gradient)});
}

}  // namespace mylos
