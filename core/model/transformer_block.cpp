// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/transformer_block.hpp"

#include <cmath>

#include "core/model/parameters.hpp"
#include "core/model/residual_stream.hpp"

namespace mylos {

// n is the number of the rank's rows of the residual stream, C its width. Products work on all B * T rows. H
// is the number of the rank's heads, D the width of a head, and F the rank's part of the inner width of the
// dense feed-forward layer.
struct TransformerBlock::Activations {
  TensorRef ln1;           // (n, C)
  TensorRef mean1, rstd1;  // (n) fp32
  TensorRef qkv;           // (B, T, 3, H, D)
  TensorRef attended;      // (B * T, H * D)
  TensorRef lse;           // (B, H, T) fp32
  TensorRef middle;        // (n, C): the residual stream between attention and feed-forward
  TensorRef ln2;           // (n, C)
  TensorRef mean2, rstd2;  // (n) fp32
  TensorRef up;            // (B * T, F): before the GELU
  TensorRef activated;     // (B * T, F): after the GELU
};

TransformerBlock::TransformerBlock(const ModelConfig& model, const ParameterTable& table, std::int64_t layer)
    : name_(block_name(layer)),
      width_(model.width),
      dropout_(model.dropout),
      ln1_gamma_(table.find(name_ + ".ln_1.weight")),
      ln1_beta_(table.find(name_ + ".ln_1.bias")),
      qkv_(table.find(name_ + ".attn.c_attn.weight")),
      qkv_bias_(table.find(name_ + ".attn.c_attn.bias")),
      proj_(table.find(name_ + ".attn.c_proj.weight")),
      proj_bias_(table.find(name_ + ".attn.c_proj.bias")),
      ln2_gamma_(table.find(name_ + ".ln_2.weight")),
      ln2_beta_(table.find(name_ + ".ln_2.bias")),
      heads_(proj_.box.count[0]),
      first_head_(proj_.box.start[0]),
      head_dim_(model.head_dim()),
      is_split_(heads_ < model.heads) {
  const bool has_experts = model.experts.are_in(layer);
  if (has_experts) experts_.emplace(model, table, layer);
  if (has_experts && !model.experts.has_shared) return;
  const Parameter& down = table.find(name_ + ".mlp.c_proj.weight");
  dense_.emplace(DenseLayer{.up = table.find(name_ + ".mlp.c_fc.weight"),
                            .up_bias = table.find(name_ + ".mlp.c_fc.bias"),
                            .down = down,
                            .down_bias = table.find(name_ + ".mlp.c_proj.bias"),
                            .inner = down.box.count[0]});
}

void TransformerBlock::declare(ParameterTable& table, const ModelConfig& model, std::int64_t layer) {
  const std::int64_t c = model.width;
  const Dimension width{"width", c};
  const bool has_experts = model.experts.are_in(layer);
  // Of the dense layer.
  const Dimension inner{"inner", has_experts ? model.experts.width : model.inner_width()};
  const Dimension heads{"heads", model.heads};
  const Dimension head{"head_dim", model.head_dim()};
  const Dimension qkv{"qkv", 3};
  const float residual = residual_stddev(model);
  const std::string h = fmt::format("h.{}.", layer);
  const auto matrix = [&](const char* name, std::vector<std::int64_t> shape, std::vector<Dimension> view,
                          float stddev, const char* split) -> Parameter& {
    Parameter& parameter =
        table.add(h + name, std::move(shape), std::move(view), Initialisation::normal, stddev);
    parameter.is_matrix = true;
    ParameterTable::split(parameter, Axis::tensor, split);
    return parameter;
  };
  const auto bias = [&](const char* name, std::int64_t extent, std::vector<Dimension> view) -> Parameter& {
    return table.add(h + name, {extent}, std::move(view), Initialisation::zeros);
  };
  if (has_experts) ExpertLayer::declare_router(table, model, layer);
  if (!has_experts || model.experts.has_shared) {
    matrix("mlp.c_proj.weight", {inner.extent, c}, {inner, width}, residual, "inner");
    bias("mlp.c_proj.bias", c, {width});
    matrix("mlp.c_fc.weight", {c, inner.extent}, {width, inner}, initial_stddev, "inner");
    ParameterTable::split(bias("mlp.c_fc.bias", inner.extent, {inner}), Axis::tensor, "inner");
  }
  add_norm(table, model, h + "ln_2");
  matrix("attn.c_proj.weight", {c, c}, {heads, head, width}, residual, "heads");
  bias("attn.c_proj.bias", c, {width});
  matrix("attn.c_attn.weight", {c, 3 * c}, {width, qkv, heads, head}, initial_stddev, "heads").stack =
      qkv.name;
  ParameterTable::split(bias("attn.c_attn.bias", 3 * c, {qkv, heads, head}), Axis::tensor, "heads");
  add_norm(table, model, h + "ln_1");
}

TransformerBlock::Activations TransformerBlock::activations(Recorder& run) const {
  const BatchShape& s = run.shape();
  const std::int64_t n = s.residual_rows();
  const std::int64_t all = s.rows();
  return {.ln1 = run.tensor("ln1", s.dtype, {n, width_}, Cost::cheap),
          .mean1 = run.tensor("mean1", DType::fp32, {n}),
          .rstd1 = run.tensor("rstd1", DType::fp32, {n}),
          .qkv = run.tensor("qkv", s.dtype, {s.batch, s.seq, 3, heads_, head_dim_}),
          .attended = run.tensor("attended", s.dtype, {all, heads_ * head_dim_}),
          .lse = run.tensor("lse", DType::fp32, {s.batch, heads_, s.seq}),
          .middle = run.tensor("middle", s.dtype, {n, width_}),
          .ln2 = run.tensor("ln2", s.dtype, {n, width_}, Cost::cheap),
          .mean2 = run.tensor("mean2", DType::fp32, {n}),
          .rstd2 = run.tensor("rstd2", DType::fp32, {n}),
          .up = dense_ ? run.tensor("up", s.dtype, {all, dense_->inner}) : TensorRef(),
          .activated =
              dense_ ? run.tensor("activated", s.dtype, {all, dense_->inner}, Cost::cheap) : TensorRef()};
}

Dropout TransformerBlock::dropout(const Recorder& run, const char* site) const {
  return run.dropout(dropout_, fmt::format("dropout.{}.{}", name_, site));
}

namespace {

/// Returns query (0), key (1) or value (2) of a packed (B, T, 3, H, D) tensor, as a strided (B, T, H, D)
/// view.
TensorRef packed_part(const TensorRef& qkv, std::int64_t part) {
  TensorRef view = qkv;
  view.data =
      static_cast<std::byte*>(qkv.data) + static_cast<std::size_t>(part * qkv.stride[2]) * size_of(qkv.dtype);
  view.rank = 4;
  view.shape = {qkv.shape[0], qkv.shape[1], qkv.shape[3], qkv.shape[4]};
  view.stride = {qkv.stride[0], qkv.stride[1], qkv.stride[3], qkv.stride[4]};
  return view;
}

LinearAddForward with_residual(const LinearForward& product, const TensorRef& residual, const TensorRef& y) {
  return {.x = product.x, .w = product.w, .bias = product.bias, .residual = residual, .y = y};
}

}  // namespace

void TransformerBlock::attend_to_cache(Recorder& run, const Activations& a) const {
  const AttentionForward plain = attention(run, a);
  const CacheAppend append{.key = plain.key,
                           .value = plain.value,
                           .rows = run.cache_rows(),
                           .positions = run.positions(),
                           .keys = run.cached("keys", heads_, head_dim_),
                           .values = run.cached("values", heads_, head_dim_)};
  run(append);
  run(CachedAttention{.query = plain.query,
                      .keys = append.keys,
                      .values = append.values,
                      .rows = append.rows,
                      .positions = append.positions,
                      .output = plain.output,
                      .scale = plain.scale});
}

AttentionForward TransformerBlock::attention(Recorder& run, const Activations& a) const {
  const BatchShape& s = run.shape();
  return {.query = packed_part(a.qkv, 0),
          .key = packed_part(a.qkv, 1),
          .value = packed_part(a.qkv, 2),
          .output = a.attended.reshaped({s.batch, s.seq, heads_, head_dim_}),
          .lse = a.lse,
          .scale = 1.0F / std::sqrt(static_cast<float>(head_dim_)),
          .dropout = dropout(run, "attention"),
          .place = {.first_head = first_head_, .positions = s.seq}};
}

void TransformerBlock::forward(Recorder& run, TensorRef input, TensorRef output) const {
  const Activations a = activations(run);
  const std::int64_t all = run.shape().rows();
  run(LayernormForward{.x = input,
                       .gamma = run.weight(ln1_gamma_),
                       .beta = run.weight(ln1_beta_),
                       .y = a.ln1,
                       .mean = a.mean1,
                       .rstd = a.rstd1});
  run(LinearForward{.x = all_rows(run, "ln1.all", a.ln1),
                    .w = run.weight(qkv_),
                    .bias = run.weight(qkv_bias_),
                    .y = a.qkv.reshaped({all, 3 * heads_ * head_dim_})});
  if (run.has_cache()) {
    attend_to_cache(run, a);
  } else {
    run(attention(run, a));
  }
  const LinearForward projection{
      .x = a.attended, .w = run.weight(proj_), .bias = bias_of_term(run, proj_bias_)};
  if (adds_in_products(run)) {
    run(with_residual(projection, input, a.middle));
    run(LayernormForward{.x = a.middle,
                         .gamma = run.weight(ln2_gamma_),
                         .beta = run.weight(ln2_beta_),
                         .y = a.ln2,
                         .mean = a.mean2,
                         .rstd = a.rstd2});
  } else {
    record(run, DropoutAddLayernorm{.x = sum_of(run, "projected", projection),
                                    .residual = input,
                                    .sum = a.middle,
                                    .gamma = run.weight(ln2_gamma_),
                                    .beta = run.weight(ln2_beta_),
                                    .y = a.ln2,
                                    .mean = a.mean2,
                                    .rstd = a.rstd2,
                                    .dropout = dropout(run, "attention.residual")});
  }
  forward_mlp(run, a, output);
}

LinearForward TransformerBlock::dense(Recorder& run, const Activations& a, const TensorRef& x) const {
  run(LinearGeluForward{.x = x,
                        .w = run.weight(dense_->up),
                        .bias = run.weight(dense_->up_bias),
                        .pre = a.up,
                        .y = a.activated});
  return {.x = a.activated, .w = run.weight(dense_->down), .bias = bias_of_term(run, dense_->down_bias)};
}

void TransformerBlock::forward_mlp(Recorder& run, const Activations& a, TensorRef output) const {
  const TensorRef x = all_rows(run, "ln2.all", a.ln2);
  TensorRef sum;
  if (!experts_) {
    const LinearForward down = dense(run, a, x);
    if (adds_in_products(run)) {
      run(with_residual(down, a.middle, output));
      return;
    }
    sum = sum_of(run, "down", down);
  } else {
    TensorRef shared;
    if (dense_) {
      LinearForward down = dense(run, a, x);
      shared = down.y = run.tensor("down", x.dtype, {run.shape().rows(), width_});
      run(down);
    }
    sum = sum_if_split(run, "experts.sum.all", experts_->forward(run, x, shared));
  }
  record(run,
         DropoutAdd{.x = sum, .residual = a.middle, .y = output, .dropout = dropout(run, "mlp.residual")});
}

bool TransformerBlock::adds_in_products(const Recorder& run) const {
  return !is_split_ && dropout(run, "mlp.residual").probability == 0.0F;
}

TensorRef TransformerBlock::bias_of_term(Recorder& run, const Parameter& bias) const {
  return first_head_ == 0 ? run.weight(bias) : TensorRef();
}

TensorRef TransformerBlock::sum_of(Recorder& run, const std::string& name, LinearForward product) const {
  product.y = run.tensor(name, product.x.dtype, {run.shape().rows(), width_});
  run(product);
  return sum_if_split(run, (name + ".sum").c_str(), product.y);
}

void TransformerBlock::backward(Recorder& run, TensorRef input, TensorRef output_gradient,
                                TensorRef input_gradient) const {
  const Activations a = activations(run);
  const TensorRef middle_gradient = run.tensor_like("d.middle", a.middle);
  backward_mlp(run, a, output_gradient, middle_gradient);
  backward_attention(run, a, middle_gradient, input, input_gradient);
}

TensorRef TransformerBlock::backpropagate_dropout(Recorder& run, const char* site, TensorRef gradient) const {
  const Dropout drop = dropout(run, site);
  if (drop.probability == 0.0F) return gradient;
  const TensorRef dropped = run.tensor_like(fmt::format("d.{}", site), gradient);
  record(run, DropoutAdd{.x = gradient, .y = dropped, .dropout = drop});
  return dropped;
}

TensorRef TransformerBlock::sum_if_split(Recorder& run, const char* name, TensorRef terms) const {
  return is_split_ ? sum_of_terms(run, name, terms) : terms;
}

TensorRef TransformerBlock::backward_columns(Recorder& run, const char* name,
                                             const LinearBackwardWeight& weight,
                                             const LinearBackwardInput& input) const {
  if (!is_split_) run(weight);
  run(input);
  const TensorRef gradient = sum_if_split(run, name, input.dx);
  if (is_split_) run(weight);
  return gradient;
}

void TransformerBlock::backward_mlp(Recorder& run, const Activations& a, TensorRef output_gradient,
                                    TensorRef middle_gradient) const {
  const TensorRef d_branch =
      all_rows(run, "d.mlp.all", backpropagate_dropout(run, "mlp.residual", output_gradient));
  const TensorRef ln2 = all_rows_again(run, "ln2.all", a.ln2);  // a gather overlaps with the first products
  TensorRef d_ln2;
  if (dense_) {
    const LinearGeluBackwardInput activation{
        .dy = d_branch, .w = run.weight(dense_->down), .pre = a.up, .dpre = run.tensor_like("d.up", a.up)};
    const LinearBackwardWeight down{.x = a.activated,
                                    .dy = d_branch,
                                    .dw = run.gradient(dense_->down),
                                    .dbias = run.gradient(dense_->down_bias)};
    const LinearBackwardWeight up{.x = ln2,
                                  .dy = activation.dpre,
                                  .dw = run.gradient(dense_->up),
                                  .dbias = run.gradient(dense_->up_bias)};
    const LinearBackwardInput input{
        .dy = activation.dpre, .w = run.weight(dense_->up), .dx = run.tensor_like("d.ln2", ln2)};
    if (experts_) {
      // The gradients of a unit are completed one after another: those of the experts come first.
      run(activation);
      run(input);
      d_ln2 = experts_->backward(run, ln2, d_branch, input.dx);
      run(down);
      run(up);
    } else {
      run(down);
      run(activation);
      d_ln2 = backward_columns(run, "d.ln2.sum", up, input);
    }
  } else {
    d_ln2 = experts_->backward(run, ln2, d_branch, {});
  }
  if (experts_) d_ln2 = sum_if_split(run, "d.ln2.sum", d_ln2);
  record(run, ln2_gamma_, ln2_beta_,
         {.dy = d_ln2,
          .x = a.middle,
          .mean = a.mean2,
          .rstd = a.rstd2,
          .residual = output_gradient,
          .dx = middle_gradient});
}

void TransformerBlock::backward_attention(Recorder& run, const Activations& a, TensorRef middle_gradient,
                                          TensorRef input, TensorRef input_gradient) const {
  const BatchShape& s = run.shape();
  const std::int64_t all = s.rows();
  const TensorRef d_branch =
      all_rows(run, "d.attention.all", backpropagate_dropout(run, "attention.residual", middle_gradient));
  const TensorRef ln1 = all_rows_again(run, "ln1.all", a.ln1);
  const TensorRef d_attended = run.tensor("d.attended", s.dtype, {s.batch, s.seq, heads_, head_dim_});
  const TensorRef d_qkv = run.tensor_like("d.qkv", a.qkv);
  run(LinearBackwardWeight{
      .x = a.attended, .dy = d_branch, .dw = run.gradient(proj_), .dbias = run.gradient(proj_bias_)});
  run(LinearBackwardInput{
      .dy = d_branch, .w = run.weight(proj_), .dx = d_attended.reshaped({all, heads_ * head_dim_})});
  run(AttentionBackward{.forward = attention(run, a),
                        .output_grad = d_attended,
                        .query_grad = packed_part(d_qkv, 0),
                        .key_grad = packed_part(d_qkv, 1),
                        .value_grad = packed_part(d_qkv, 2),
                        .delta = run.tensor("delta", DType::fp32, {s.batch, heads_, s.seq})});
  const TensorRef d_qkv_rows = d_qkv.reshaped({all, 3 * heads_ * head_dim_});
  const TensorRef d_ln1 = backward_columns(
      run, "d.ln1.sum",
      {.x = ln1, .dy = d_qkv_rows, .dw = run.gradient(qkv_), .dbias = run.gradient(qkv_bias_)},
      {.dy = d_qkv_rows, .w = run.weight(qkv_), .dx = run.tensor_like("d.ln1", ln1)});
  record(run, ln1_gamma_, ln1_beta_,
         {.dy = d_ln1,
          .x = input,
          .mean = a.mean1,
          .rstd = a.rstd1,
          .residual = middle_gradient,
          .dx = input_gradient});
}

}  // namespace mylos
