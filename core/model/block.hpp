// SPDX-License-Identifier: BSD-3-Clause
// Block: one layer of the model, as ordinary code that requests operations. It is called once per program and
// direction, with a recorder. It knows operations, not backends or strategies. Each value has its own tensor:
// the arena's plan finds the values that can share memory.
#pragma once

#include <string>

#include "core/layout/parameter_table.hpp"
#include "core/model/recorder.hpp"

namespace mylos {

/// A layer between two places of the residual stream.
class Block {
 public:
  virtual ~Block() = default;

  /// "embedding", "h.3", "head".
  virtual std::string name() const = 0;
  /// output (n, C) from input (n, C), the rank's rows of the residual stream: all B * T or, with sequence
  /// parallelism, a part. The embedding has no input, the head no output.
  virtual void forward(Recorder& run, TensorRef input, TensorRef output) const = 0;
  /// Computes `input_gradient` from `output_gradient` (n, C), the gradients of the loss with respect to input
  /// and output, and adds to the gradients of the weights. The head has no output, the embedding no input.
  /// Reads tensors that the forward pass wrote under the same names.
  virtual void backward(Recorder& run, TensorRef input, TensorRef output_gradient,
                        TensorRef input_gradient) const = 0;
};

}  // namespace mylos
