// SPDX-License-Identifier: BSD-3-Clause
#include "core/model/residual_stream.hpp"

#include <algorithm>

namespace mylos {

namespace {

/// Some of the rank's rows: whole samples, or rows of one sample.
struct SampleRows {
  std::int64_t begin = 0;  // within the rank's rows
  std::int64_t samples = 1;
  std::int64_t positions = 1;
  std::int64_t first_sample = 0;
  std::int64_t first_position = 0;

  /// Returns these rows of a tensor (n, ...).
  TensorRef of(const TensorRef& tensor) const { return tensor.rows(begin, samples * positions); }
  /// Returns these rows of a tensor (n, C), as (samples, positions, C).
  TensorRef by_sample(const TensorRef& tensor) const {
    return tensor ? of(tensor).reshaped({samples, positions, tensor.shape[1]}) : TensorRef();
  }
  Dropout of(Dropout dropout, std::int64_t width) const {
    dropout.first_sample = first_sample;
    dropout.index.first = first_position * width;
    return dropout;
  }
};

void for_each_part(const BatchShape& shape, const auto& visit) {
  const std::int64_t first = shape.first_residual_row();
  const std::int64_t end = first + shape.residual_rows();
  for (std::int64_t row = first; row < end;) {
    SampleRows part{.begin = row - first, .first_sample = row / shape.seq, .first_position = row % shape.seq};
    part.positions = std::min(end - row, shape.seq - part.first_position);
    if (part.positions == shape.seq) part.samples = (end - row) / shape.seq;
    visit(part);
    row += part.samples * part.positions;
  }
}

}  // namespace

void record(Recorder& run, const DropoutAdd& op) {
  for_each_part(run.shape(), [&](const SampleRows& part) {
    run(DropoutAdd{.x = part.by_sample(op.x),
                   .residual = part.by_sample(op.residual),
                   .y = part.by_sample(op.y),
                   .dropout = part.of(op.dropout, op.x.shape[1])});
  });
}

void record(Recorder& run, const DropoutAddLayernorm& op) {
  for_each_part(run.shape(), [&](const SampleRows& part) {
    run(DropoutAddLayernorm{.x = part.by_sample(op.x),
                            .residual = part.by_sample(op.residual),
                            .sum = part.by_sample(op.sum),
                            .gamma = op.gamma,
                            .beta = op.beta,
                            .y = part.of(op.y),
                            .mean = part.of(op.mean),
                            .rstd = part.of(op.rstd),
                            .dropout = part.of(op.dropout, op.x.shape[1])});
  });
}

void record(Recorder& run, const Parameter& gamma, const Parameter& beta, LayernormBackward op,
            const std::source_location& where) {
  op.gamma = run.weight(gamma);
  op.dgamma = run.gradient(gamma);
  op.dbeta = run.gradient(beta);
  if (run.splits_backward()) {
    op.compose([&](const auto& part) { run(part, where); });
  } else {
    run(op, where);
  }
}

TensorRef all_rows(Recorder& run, std::string_view name, const TensorRef& rows) {
  if (run.shape().residual_parts == 1) return rows;
  const TensorRef all = run.tensor(name, rows.dtype, {run.shape().rows(), rows.shape[1]});
  run(AllGatherCall{.input = rows, .output = all, .group = {Axis::tensor}});
  return all;
}

TensorRef all_rows_again(Recorder& run, std::string_view name, const TensorRef& rows) {
  if (run.shape().residual_parts == 1 || !run.repeats_blocks()) return all_rows(run, name, rows);
  return run.tensor(name, rows.dtype, {run.shape().rows(), rows.shape[1]});
}

TensorRef sum_of_terms(Recorder& run, std::string_view name, const TensorRef& terms) {
  if (run.shape().residual_parts == 1) {
    run(AllReduceCall{.buffer = terms, .group = {Axis::tensor}});
    return terms;
  }
  const TensorRef sum = run.tensor(name, terms.dtype, {run.shape().residual_rows(), terms.shape[1]});
  run(ReduceScatterCall{.input = terms, .output = sum, .group = {Axis::tensor}});
  return sum;
}

}  // namespace mylos
