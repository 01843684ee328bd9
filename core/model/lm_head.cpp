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
  context.run(LayernormForward{.x = input.reshaped({n, width_}),
                               .gamma = gamma_.in(w),
                               .beta = beta_.in(w),
                               .y = normed,
                               .mean = mean,
                               .rstd = rstd});
  if (!context.losses) return;
  const TensorRef matrix = matrix_in(context.units.back().weights);
  const TensorRef targets = context.targets.flat();
  const std::int64_t step = slice_rows(s);
  for (std::int64_t row = 0; row < n; row += step) {
    const std::int64_t rows = std::min(step, n - row);
    const TensorRef logits(context.buffers[3], s.dtype, {rows, padded_vocab_});
    context.run(LinearForward{.x = normed.rows(row, rows), .w = matrix, .y = logits});
    context.run(CrossEntropy{.logits = logits,
                             .targets = targets.rows(row, rows),
                             .losses = context.losses.rows(row, rows),
                             .correct = context.correct.rows(row, rows),
                             .vocab = vocab_,
                             .gradient_scale = 0.0F});
  }
}

void LmHead::backward(const BlockContext& context, TensorRef input, TensorRef gradient) const {
  const BatchShape& s = context.shape;
  const std::int64_t n = s.rows();
  const UnitView& own = context.units[0];
  const UnitView& matrix_unit = context.units.back();
  const TensorRef x = input.reshaped({n, width_});
  const TensorRef dx = gradient.reshaped({n, width_});
  const TensorRef normed(context.buffers[0], s.dtype, {n, width_});
  const TensorRef mean(context.buffers[1], DType::fp32, {n});
  const TensorRef rstd(context.buffers[2], DType::fp32, {n});
  context.run(LayernormForward{.x = x,
                               .gamma = gamma_.in(own.weights),
                               .beta = beta_.in(own.weights),
                               .y = normed,
                               .mean = mean,
                               .rstd = rstd});

  const TensorRef matrix = matrix_in(matrix_unit.weights);
  const TensorRef matrix_gradient = matrix_in(matrix_unit.gradients);
  const TensorRef targets = context.targets.flat();
  const std::int64_t step = slice_rows(s);
  for (std::int64_t row = 0; row < n; row += step) {
    const std::int64_t rows = std::min(step, n - row);
    const TensorRef logits(context.buffers[3], s.dtype, {rows, padded_vocab_});
    context.run(LinearForward{.x = normed.rows(row, rows), .w = matrix, .y = logits});
    context.run(CrossEntropy{.logits = logits,
                             .targets = targets.rows(row, rows),
                             .losses = context.losses.rows(row, rows),
                             .vocab = vocab_,
                             .gradient_scale = context.gradient_scale,
                             .scalars = context.scalars});
    context.run(LinearBackwardWeight{.x = normed.rows(row, rows),
                                     .dy = logits,
                                     .dw = matrix_gradient,
                                     .accumulate = matrix_unit.accumulate || row > 0});
    context.run(LinearBackwardInput{.dy = logits, .w = matrix, .dx = dx.rows(row, rows)});
  }
  if (!tied_) context.listener->gradient_ready(unit_, matrix_.begin(), matrix_.end());
  context.run(LayernormBackwardWeight{.dy = dx,
                                      .x = x,
                                      .mean = mean,
                                      .rstd = rstd,
                                      .dgamma = gamma_.in(own.gradients),
                                      .dbeta = beta_.in(own.gradients),
                                      .accumulate = own.accumulate});
  context.listener->gradient_ready(unit_, gamma_.begin(), own.gradients.size());
  context.run(LayernormBackwardInput{
      .dy = dx, .x = x, .gamma = gamma_.in(own.weights), .mean = mean, .rstd = rstd, .dx = dx});
}

void LmHead::logits_of_row(const BlockContext& context, std::int64_t row, TensorRef logits) const {
  const TensorRef normed(context.buffers[0], context.shape.dtype, {context.shape.rows(), width_});
  context.run(
      LinearForward{.x = normed.rows(row, 1), .w = matrix_in(context.units.back().weights), .y = logits});
}

}  // namespace mylos
