// SPDX-License-Identifier: BSD-3-Clause
// ExpertLayer: a mixture of experts, as the feed-forward layer of a block.
#pragma once

#include <string>

#include "core/model/model_config.hpp"
#include "core/model/recorder.hpp"

namespace mylos {

/// y = sum over the k experts e that a row chooses of gate_e (gelu(x W1[e] + b1[e]) W2[e] + b2[e]).
///
/// Along the tensor axis each expert's inner width is divided. All ranks of the axis have all rows and choose
/// alike, and their outputs are terms of the block's sum. The gradient of a gate is then a term too, and is
/// summed here.
class ExpertLayer {
 public:
  ExpertLayer(const ModelConfig& model, const ParameterTable& table, std::int64_t layer);
  /// Add the parameters of the block's router, and those of its experts, to the last unit of `table`.
  static void declare_router(ParameterTable& table, const ModelConfig& model, std::int64_t layer);
  static void declare_experts(ParameterTable& table, const ModelConfig& model, std::int64_t layer);

  /// Returns the layer's output for all rows x (n, C), or this rank's term of it, plus `residual` (n, C) if
  /// that is given.
  TensorRef forward(Recorder& run, const TensorRef& x, const TensorRef& residual) const;
  /// Returns the gradient (n, C) of x, or this rank's term of it, from that of the output, plus `residual`
  /// (n, C) if that is given.
  TensorRef backward(Recorder& run, const TensorRef& x, const TensorRef& output_gradient,
                     const TensorRef& residual) const;

 private:
  struct Routing;
  struct Rows;

  Routing routing(Recorder& run) const;
  Rows rows(Recorder& run, std::int64_t slice) const;
  void choose(Recorder& run, const TensorRef& x, const Routing& r) const;
  std::int64_t num_slices(const Recorder& run) const;

  std::string name_;
  ExpertConfig config_;
  const Parameter& router_;             // (C, E)
  const Parameter* noise_;              // (C, E), or null
  const Parameter &up_, &up_bias_;      // (E, C, F), (E, F)
  const Parameter &down_, &down_bias_;  // (E, F, C), (E, C)
  std::int64_t width_, inner_;          // C, and the rank's part of F
  bool is_split_, is_first_;            // along the tensor axis
};

}  // namespace mylos
