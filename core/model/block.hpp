// SPDX-License-Identifier: BSD-3-Clause
// Block: one layer of the model as ordinary code that asks for operations. It is called once per program and
// direction, on a recorder. Knows operations, not backends or strategies. Each value has a tensor of its own:
// what may lie in the same memory is for the plan of the arena to find.
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
  /// From `output_gradient` (n, C), the loss's gradient with respect to the output, that with respect to
  /// the input, `input_gradient`, and the gradients of the weights, to which it adds. The head has no output,
  /// the embedding no input. Reads what the forward pass left in tensors of the same names.
  virtual void backward(Recorder& run, TensorRef input, TensorRef output_gradient,
                        TensorRef input_gradient) const = 0;
};

}  // namespace mylos
