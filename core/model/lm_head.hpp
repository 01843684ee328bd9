// SPDX-License-Identifier: BSD-3-Clause
// LmHead: final layernorm, logits and loss, in slices of rows, so that the logits of all B * T rows need not
// be in memory at once.
#pragma once

#include "core/model/block.hpp"

namespace mylos {

/// Training has no forward pass of the head: the backward pass computes the logits of each slice, then their
/// losses and, in place, their gradient. The forward pass, for evaluation, computes the losses and which
/// predictions are correct. Vr is the number of rows of the matrix in the memory of this rank, padding
/// included. If the vocabulary is divided along the tensor axis, each rank computes the logits of its rows,
/// and the ranks exchange softmax statistics for the losses.
class LmHead final : public Block {
 public:
  LmHead(const ModelConfig& model, const ParameterTable& table);
  /// Adds the block's parameters to the last unit of `table`.
  static void declare(ParameterTable& table, const ModelConfig& model);

  std::string name() const override { return "head"; }
  void forward(Recorder& run, TensorRef input, TensorRef output) const override;
  void backward(Recorder& run, TensorRef input, TensorRef output_gradient,
                TensorRef input_gradient) const override;

  /// Replaces `forward` in generation: computes the logits after the last token of each text. The last
  /// operation writes them: (texts, Vr) or, if the vocabulary is divided, (P, texts, Vr) of all P parts.
  void last_logits(Recorder& run, TensorRef input) const;

 private:
  /// x, mean and rstd of the rank's rows, y of all rows.
  struct Normed {
    TensorRef x, y, mean, rstd;
  };
  /// Normalises the rank's rows of the residual stream, or some of them.
  Normed normalise(Recorder& run, TensorRef input) const;
  /// Returns the number of rows per slice of logits; the last slice may have fewer.
  std::int64_t slice_rows(const BatchShape& shape) const;
  TensorRef logits(Recorder& run, std::int64_t rows) const;
  /// Computes the logits slice by slice; calls visit(first row, rows, cross entropy) after each.
  void for_each_slice(Recorder& run, const Normed& normed, const auto& visit) const;
  /// Computes the statistics (P, 4, N) of all P parts of the vocabulary; returns an empty tensor if the
  /// vocabulary is not divided.
  TensorRef statistics(Recorder& run, const CrossEntropy& loss) const;

  std::int64_t width_;
  std::int64_t logits_bytes_;
  const Parameter& matrix_;         // (Vr, C); the token embedding if tied
  const Parameter &gamma_, &beta_;  // (C)
};

}  // namespace mylos
