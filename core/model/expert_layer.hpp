// SPDX-License-Identifier: BSD-3-Clause
// ExpertLayer: a mixture of experts, as the feed-forward layer of a block.
#pragma once

#include <string>

#include "core/model/model_config.hpp"
#include "core/model/recorder.hpp"

namespace mylos {

/// y = sum over the k experts e that a row chooses of gate_e (gelu(x W1[e] + b1[e]) W2[e] + b2[e]).
///
/// The ranks along the expert axis divide the experts: a row travels to the rank that has the expert, and its
/// result back (Lepikhin et al., "GShard", 2020). The parts of both exchanges have a fixed size, that of the
/// most rows that there can be.
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
  /// The rows of a part, of `samples` sequences of `tokens` each.
  std::int64_t room(std::int64_t samples, std::int64_t tokens, std::int64_t capacity) const;
  /// The tensor, of this name, in which parts (P, ...) of the ranks along the expert axis arrive; `parts`
  /// itself if there is one rank. `exchange` records their way.
  TensorRef received(Recorder& run, const std::string& name, const TensorRef& parts) const;
  void exchange(Recorder& run, const TensorRef& parts, const TensorRef& received) const;

  std::string name_;
  ExpertConfig config_;
  RoutingStatistics::Range statistics_;
  const Parameter& router_;             // (C, E)
  const Parameter* noise_;              // (C, E), or null
  const Parameter &up_, &up_bias_;      // (E, C, F), (E, F)
  const Parameter &down_, &down_bias_;  // (E, F, C), (E, C)
  std::int64_t width_, inner_;          // C, and the rank's part of F
  std::int64_t own_, parts_;            // L, the rank's experts, and P, the ranks that divide them
  bool is_split_, is_first_;            // along the tensor axis
};

}  // namespace mylos
