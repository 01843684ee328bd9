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

/// The vocabulary matrix (Vp, C) as the weight (C, Vp) of a linear layer.
TensorRef transposed(TensorRef matrix) {
  std::swap(matrix.shape[0], matrix.shape[1]);
  std::swap(matrix.stride[0], matrix.stride[1]);
  return matrix;
}

}  // namespace

LmHead::LmHead(const ModelConfig& model, const ParameterTable& table)
    : width_(model.width),
      vocab_(model.vocab),
      padded_vocab_(model.padded_vocab()),
      matrix_(table.find(model.tied ? "wte.weight" : "lm_head.weight")),
      gamma_(table.find("ln_f.weight")),
      beta_(table.find("ln_f.bias")) {}

std::int64_t LmHead::slice_rows(const BatchShape& shape) const {
  const std::int64_t row_bytes = padded_vocab_ * static_cast<std::int64_t>(size_of(shape.dtype));
  const std::int64_t share = (shape.rows() + most_slices - 1) / most_slices;
  const std::int64_t most = std::max({slice_bytes / row_bytes, slice_multiple, share});
  const std::int64_t slices = (shape.rows() + most - 1) / most;
  const std::int64_t even = (shape.rows() + slices - 1) / slices;
  return std::min(shape.rows(), (even + slice_multiple - 1) / slice_multiple * slice_multiple);
}

LmHead::Normed LmHead::normalise(Recorder& run, TensorRef input) const {
  const std::int64_t n = run.shape().rows();
  const Normed normed{.x = input.reshaped({n, width_}),
                      .y = run.tensor("ln", run.shape().dtype, {n, width_}),
                      .mean = run.tensor("mean", DType::fp32, {n}),
                      .rstd = run.tensor("rstd", DType::fp32, {n})};
  run(LayernormForward{.x = normed.x,
                       .gamma = run.weight(gamma_),
                       .beta = run.weight(beta_),
                       .y = normed.y,
                       .mean = normed.mean,
                       .rstd = normed.rstd});
  return normed;
}

TensorRef LmHead::logits(Recorder& run, std::int64_t rows) const {
  return run.tensor("logits", run.shape().dtype, {slice_rows(run.shape()), padded_vocab_}).rows(0, rows);
}

template <class Visit>
void LmHead::for_each_slice(Recorder& run, const Normed& normed, const Visit& visit) const {
  const TensorRef matrix = transposed(run.weight(matrix_));
  const std::int64_t n = run.shape().rows();
  const std::int64_t most = slice_rows(run.shape());
  for (std::int64_t row = 0; row < n; row += most) {
    const std::int64_t rows = std::min(most, n - row);
    const TensorRef logits = this->logits(run, rows);
    run(LinearForward{.x = normed.y.rows(row, rows), .w = matrix, .y = logits});
    visit(row, rows, logits);
  }
}

void LmHead::forward(Recorder& run, TensorRef input, TensorRef /*output*/) const {
  if (run.training()) return;
  const Normed normed = normalise(run, input);
  for_each_slice(run, normed, [&](std::int64_t row, std::int64_t rows, const TensorRef& logits) {
    run(CrossEntropy{.logits = logits,
                     .targets = run.targets().flat(row, rows),
                     .losses = run.losses().rows(row, rows),
                     .correct = run.correct().rows(row, rows),
                     .vocab = vocab_});
  });
}

void LmHead::backward(Recorder& run, TensorRef input, TensorRef /*output_gradient*/,
                      TensorRef input_gradient) const {
  const Normed normed = normalise(run, input);
  const TensorRef d_normed = run.tensor_like("d.ln", normed.y);
  const TensorRef matrix = transposed(run.weight(matrix_));
  const TensorRef matrix_gradient = transposed(run.gradient(matrix_));
  for_each_slice(run, normed, [&](std::int64_t row, std::int64_t rows, const TensorRef& logits) {
    run(CrossEntropy{.logits = logits,
                     .targets = run.targets().flat(row, rows),
                     .losses = run.losses().rows(row, rows),
                     .vocab = vocab_,
                     .gradient_scale = run.gradient_scale(),
                     .scalars = run.scalars()});
    run(LinearBackwardWeight{.x = normed.y.rows(row, rows), .dy = logits, .dw = matrix_gradient});
    run(LinearBackwardInput{.dy = logits, .w = matrix, .dx = d_normed.rows(row, rows)});
  });
  run(LayernormBackwardWeight{.dy = d_normed,
                              .x = normed.x,
                              .mean = normed.mean,
                              .rstd = normed.rstd,
                              .dgamma = run.gradient(gamma_),
                              .dbeta = run.gradient(beta_)});
  run(LayernormBackwardInput{.dy = d_normed,
                             .x = normed.x,
                             .gamma = run.weight(gamma_),
                             .mean = normed.mean,
                             .rstd = normed.rstd,
                             .dx = input_gradient.reshaped({run.shape().rows(), width_})});
}

void LmHead::first_logits(Recorder& run, TensorRef input) const {
  const Normed normed = normalise(run, input);
  run(LinearForward{.x = normed.y.rows(0, 1), .w = transposed(run.weight(matrix_)), .y = logits(run, 1)});
}

}  // namespace mylos
