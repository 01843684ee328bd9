// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/lm_head.hpp"

#include <algorithm>

#include "core/model/parameters.hpp"
#include "core/model/residual_stream.hpp"

namespace mylos {

namespace {
constexpr std::int64_t slice_multiple = 64;
// Every slice goes over the gradient of the whole matrix, so the number of slices is limited.
constexpr std::int64_t most_slices = 8;

/// Returns the vocabulary matrix (Vr, C) as the weight (C, Vr) of a linear layer.
TensorRef transposed(TensorRef matrix) {
  std::swap(matrix.shape[0], matrix.shape[1]);
  std::swap(matrix.stride[0], matrix.stride[1]);
  return matrix;
}

}  // namespace

LmHead::LmHead(const ModelConfig& model, const ParameterTable& table)
    : width_(model.width),
      logits_bytes_(model.logits_bytes),
      matrix_(table.find(model.tied ? "wte.weight" : "lm_head.weight")),
      gamma_(table.find("ln_f.weight")),
      beta_(table.find("ln_f.bias")) {}

void LmHead::declare(ParameterTable& table, const ModelConfig& model) {
  if (!model.tied) add_token_matrix(table, model, "lm_head.weight");
  add_norm(table, model, "ln_f");
}

std::int64_t LmHead::slice_rows(const BatchShape& shape) const {
  const std::int64_t row_bytes = matrix_.padded_rows * static_cast<std::int64_t>(size_of(shape.dtype));
  const std::int64_t share = (shape.rows() + most_slices - 1) / most_slices;
  const std::int64_t most = std::max({logits_bytes_ / row_bytes, slice_multiple, share});
  const std::int64_t slices = (shape.rows() + most - 1) / most;
  const std::int64_t even = (shape.rows() + slices - 1) / slices;
  return std::min(shape.rows(), (even + slice_multiple - 1) / slice_multiple * slice_multiple);
}

LmHead::Normed LmHead::normalise(Recorder& run, TensorRef input) const {
  const std::int64_t n = input.shape[0];
  Normed normed{.x = input,
                .y = run.tensor("ln", run.shape().dtype, {n, width_}),
                .mean = run.tensor("mean", DType::fp32, {n}),
                .rstd = run.tensor("rstd", DType::fp32, {n})};
  run(LayernormForward{.x = normed.x,
                       .gamma = run.weight(gamma_),
                       .beta = run.weight(beta_),
                       .y = normed.y,
                       .mean = normed.mean,
                       .rstd = normed.rstd});
  normed.y = all_rows(run, "ln.all", normed.y);
  return normed;
}

TensorRef LmHead::logits(Recorder& run, std::int64_t rows) const {
  return run.tensor("logits", run.shape().dtype, {slice_rows(run.shape()), matrix_.padded_rows})
      .rows(0, rows);
}

TensorRef LmHead::statistics(Recorder& run, const CrossEntropy& loss) const {
  if (!matrix_.is_split(Axis::tensor)) return {};
  constexpr std::int64_t count = SoftmaxStatistics::count;
  const std::int64_t most = slice_rows(run.shape());
  const std::int64_t rows = loss.targets.size();
  const TensorRef own = run.tensor("statistics", DType::fp32, {count * most}).flat(0, count * rows);
  const TensorRef all = run.tensor("statistics.all", DType::fp32, {matrix_.parts * count * most})
                            .flat(0, matrix_.parts * count * rows);
  run(SoftmaxStatistics{.logits = loss.logits,
                        .targets = loss.targets,
                        .statistics = own,
                        .vocab = loss.vocab,
                        .first_token = loss.first_token});
  run(AllGatherCall{.input = own, .output = all, .group = {Axis::tensor}});
  return all;
}

void LmHead::for_each_slice(Recorder& run, const Normed& normed, const auto& visit) const {
  const TensorRef matrix = transposed(run.weight(matrix_));
  const std::int64_t n = run.shape().rows();
  const std::int64_t most = slice_rows(run.shape());
  for (std::int64_t row = 0; row < n; row += most) {
    const std::int64_t rows = std::min(most, n - row);
    CrossEntropy loss{.logits = logits(run, rows),
                      .targets = run.targets().flat(row, rows),
                      .losses = run.losses().rows(row, rows),
                      .vocab = matrix_.box.count[0],
                      .first_token = matrix_.box.start[0]};
    run(LinearForward{.x = normed.y.rows(row, rows), .w = matrix, .y = loss.logits});
    loss.statistics = statistics(run, loss);
    visit(row, rows, loss);
  }
}

void LmHead::forward(Recorder& run, TensorRef input, TensorRef /*output*/) const {
  const Normed normed = normalise(run, input);
  for_each_slice(run, normed, [&](std::int64_t row, std::int64_t rows, CrossEntropy& loss) {
    loss.correct = run.correct().rows(row, rows);
    run(loss);
  });
}

void LmHead::backward(Recorder& run, TensorRef input, TensorRef /*output_gradient*/,
                      TensorRef input_gradient) const {
  const BatchShape& s = run.shape();
  const Normed normed = normalise(run, input);
  const TensorRef d_terms = run.tensor_like("d.ln", normed.y);
  const TensorRef matrix = transposed(run.weight(matrix_));
  const TensorRef matrix_gradient = transposed(run.gradient(matrix_));
  const bool is_split = matrix_.is_split(Axis::tensor);
  TensorRef d_normed;
  for_each_slice(run, normed, [&](std::int64_t row, std::int64_t rows, CrossEntropy& loss) {
    loss.gradient_scale = run.gradient_scale();
    loss.scalars = run.scalars();
    run(loss);
    const LinearBackwardWeight weight{
        .x = normed.y.rows(row, rows), .dy = loss.logits, .dw = matrix_gradient};
    if (!is_split) run(weight);
    run(LinearBackwardInput{.dy = loss.logits, .w = matrix, .dx = d_terms.rows(row, rows)});
    if (!is_split) return;
    // The sum runs while the last slice's weight gradient is computed.
    if (row + rows == s.rows()) d_normed = sum_of_terms(run, "d.ln.sum", d_terms);
    run(weight);
  });
  if (!is_split) d_normed = d_terms.rows(s.first_residual_row(), s.residual_rows());
  record(run, gamma_, beta_,
         {.dy = d_normed, .x = normed.x, .mean = normed.mean, .rstd = normed.rstd, .dx = input_gradient});
}

void LmHead::last_logits(Recorder& run, TensorRef input) const {
  const BatchShape& s = run.shape();
  require(s.batch == 1 || s.seq == 1, "the last tokens of the texts lie together");
  const Normed normed = normalise(run, input.rows(s.seq - 1, s.batch));
  const std::int64_t rows = matrix_.padded_rows;
  const TensorRef own = run.tensor("logits", s.dtype, {s.batch, rows});
  run(LinearForward{.x = normed.y, .w = transposed(run.weight(matrix_)), .y = own});
  if (!matrix_.is_split(Axis::tensor)) return;
  const TensorRef all = run.tensor("logits.all", s.dtype, {matrix_.parts, s.batch, rows});
  run(AllGatherCall{.input = own, .output = all, .group = {Axis::tensor}});
}

}  // namespace mylos
