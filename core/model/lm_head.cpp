// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/lm_head.hpp"

#include <algorithm>

namespace mylos {

namespace {
// Large enough for the matrix products' full speed, small beside the model.
constexpr std::int64_t slice_bytes = std::int64_t{128} << 20;
constexpr std::int64_t slice_multiple = 64;
// Every slice reads and writes the gradient of the whole matrix.
constexpr std::int64_t most_slices = 8;
}  // namespace

LmHead::LmHead(const ModelConfig& model, const ParameterTable& table)
    : unit_(table.find("ln_f.weight").unit),
      embedding_unit_(table.find("wte.weight").unit),
      tied_(model.tied),
      width_(model.width),
      vocab_(model.vocab),
      padded_vocab_(model.padded_vocab()),
      matrix_(table.find(model.tied ? "wte.weight" : "lm_head.weight")),
      gamma_(table.find("ln_f.weight")),
      beta_(table.find("ln_f.bias")) {}

std::vector<int> LmHead::units() const {
  return tied_ ? std::vector<int>{unit_, embedding_unit_} : std::vector<int>{unit_};
}

std::int64_t LmHead::slice_rows(const BatchShape& shape) const {
  const std::int64_t row_bytes = padded_vocab_ * static_cast<std::int64_t>(size_of(shape.dtype));
  const std::int64_t share = (shape.rows() + most_slices - 1) / most_slices;
  const std::int64_t most = std::max({slice_bytes / row_bytes, slice_multiple, share});
  const std::int64_t slices = (shape.rows() + most - 1) / most;
  const std::int64_t even = (shape.rows() + slices - 1) / slices;
  return std::min(shape.rows(), (even + slice_multiple - 1) / slice_multiple * slice_multiple);
}

std::vector<ActivationSpec> LmHead::activations(const BatchShape& shape) const {
  const auto element = static_cast<std::int64_t>(size_of(shape.dtype));
  return {
      {shape.rows() * width_ * element, Lifetime::both},              // normed
      {shape.rows() * 4, Lifetime::both},                             // mean
      {shape.rows() * 4, Lifetime::both},                             // rstd
      {slice_rows(shape) * padded_vocab_ * element, Lifetime::both},  // logits of a slice
  };
}

TensorRef LmHead::matrix_in(const TensorRef& flat) const {
  TensorRef matrix = matrix_.in(flat);
  std::swap(matrix.shape[0], matrix.shape[1]);
  std::swap(matrix.stride[0], matrix.stride[1]);
  return matrix;
}

void LmHead::forward(const BlockContext& context, TensorRef input, TensorRef /*output*/) const {
  if (context.training) return;
  const BatchShape& s = context.shape;
  const std::int64_t n = s.rows();
  const TensorRef& w = context.units[0].weights;
  const TensorRef normed(context.buffers[0], s.dtype, {n, width_});
  const TensorRef mean(context.buffers[1], DType::fp32, {n});
  const TensorRef rstd(context.buffers[2], DType::fp32, {n});
  context.ops().layernorm_forward(context.stream, input.reshaped({n, width_}), gamma_.in(w), beta_.in(w),
                                  normed, mean, rstd);
  if (!context.losses) return;
  const TensorRef matrix = matrix_in(context.units.back().weights);
  const TensorRef targets = context.targets.flat();
  const std::int64_t step = slice_rows(s);
  for (std::int64_t row = 0; row < n; row += step) {
    const std::int64_t rows = std::min(step, n - row);
    const TensorRef logits(context.buffers[3], s.dtype, {rows, padded_vocab_});
    context.ops().linear_forward(context.stream, normed.rows(row, rows), matrix, {}, logits);
    context.ops().cross_entropy(context.stream, logits, targets.rows(row, rows), vocab_, 0.0F, nullptr,
                                context.losses.rows(row, rows), context.correct.rows(row, rows));
  }
}

void LmHead::backward(const BlockContext& context, TensorRef input, TensorRef gradient) const {
  const BatchShape& s = context.shape;
  const std::int64_t n = s.rows();
  TransformerOps& ops = context.ops();
  const UnitView& own = context.units[0];
  const UnitView& matrix_unit = context.units.back();
  const TensorRef x = input.reshaped({n, width_});
  const TensorRef dx = gradient.reshaped({n, width_});
  const TensorRef normed(context.buffers[0], s.dtype, {n, width_});
  const TensorRef mean(context.buffers[1], DType::fp32, {n});
  const TensorRef rstd(context.buffers[2], DType::fp32, {n});
  ops.layernorm_forward(context.stream, x, gamma_.in(own.weights), beta_.in(own.weights), normed, mean, rstd);

  const TensorRef matrix = matrix_in(matrix_unit.weights);
  const TensorRef matrix_gradient = matrix_in(matrix_unit.gradients);
  const TensorRef targets = context.targets.flat();
  const std::int64_t step = slice_rows(s);
  for (std::int64_t row = 0; row < n; row += step) {
    const std::int64_t rows = std::min(step, n - row);
    const TensorRef logits(context.buffers[3], s.dtype, {rows, padded_vocab_});
    ops.linear_forward(context.stream, normed.rows(row, rows), matrix, {}, logits);
    ops.cross_entropy(context.stream, logits, targets.rows(row, rows), vocab_, context.gradient_scale,
                      context.scalars, context.losses.rows(row, rows), {});
    ops.linear_backward_weight(context.stream, normed.rows(row, rows), logits, matrix_gradient, {},
                               matrix_unit.accumulate || row > 0);
    ops.linear_backward_input(context.stream, logits, matrix, dx.rows(row, rows));
  }
  if (!tied_) context.listener->gradient_ready(unit_, matrix_.begin(), matrix_.end());
  ops.layernorm_backward_weight(context.stream, dx, x, mean, rstd, gamma_.in(own.gradients),
                                beta_.in(own.gradients), own.accumulate);
  context.listener->gradient_ready(unit_, gamma_.begin(), own.gradients.size());
  ops.layernorm_backward_input(context.stream, dx, x, gamma_.in(own.weights), mean, rstd, {}, dx);
}

void LmHead::logits_of_row(const BlockContext& context, std::int64_t row, TensorRef logits) const {
  const TensorRef normed(context.buffers[0], context.shape.dtype, {context.shape.rows(), width_});
  context.ops().linear_forward(context.stream, normed.rows(row, 1), matrix_in(context.units.back().weights),
                               {}, logits);
}

}  // namespace mylos
