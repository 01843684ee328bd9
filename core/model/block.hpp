// SPDX-License-Identifier: BSD-3-Clause
// Block: one layer of the model, as ordinary code that requests operations. It is called with a Recorder when
// a program is recorded, not when the program runs. It knows operations, not backends, exchanges or
// schedules. It does not assign memory: the plan of the arena finds the values that can share memory.
#pragma once

#include <string>

#include "core/layout/parameter_table.hpp"
#include "core/model/recorder.hpp"

namespace mylos {

/// A layer between two points of the residual stream.
class Block {
 public:
  virtual ~Block() = default;

  /// Returns "embedding", "h.3" or "head".
  virtual std::string name() const = 0;
  /// Computes `output` (n, C) from `input` (n, C), the rank's rows of the residual stream: all B * T rows or,
  /// with sequence parallelism, a part of them. The embedding has no input, the head no output.
  virtual void forward(Recorder& run, TensorRef input, TensorRef output) const = 0;
  /// Computes `input_gradient` from `output_gradient` (n, C), the gradients of the loss with respect to input
  /// and output, and adds to the gradients of the weights. The embedding has no input, the head no output.
  /// Tensors that the forward pass wrote are requested by the same names.
  virtual void backward(Recorder& run, TensorRef input, TensorRef output_gradient,
                        TensorRef input_gradient) const = 0;
};

}  // namespace mylos
