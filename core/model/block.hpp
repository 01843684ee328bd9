// SPDX-License-Identifier: BSD-3-Clause
// Block: one layer of the model with explicit forward and backward. Knows operations, not backends or
// strategies.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/model/model_config.hpp"
#include "core/ops/compute_backend.hpp"

namespace mylos {

/// The weights and gradients of a unit while it is acquired. Both are flat buffers of Unit::size elements.
struct UnitView {
  TensorRef weights;    // (size) compute type; carries the weight version
  TensorRef gradients;  // (size) fp32 or compute type; empty outside backward
  bool accumulate =
      false;  ///< gradients hold earlier micro-batches and are added to; otherwise they are written
};

/// Is told of gradients that are complete for the current micro-batch.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// Elements [begin, end) of the unit's flat gradient buffer, in the order of the buffer.
  virtual void gradient_ready(int unit, std::int64_t begin, std::int64_t end) = 0;
};

/// When a block's own buffer is alive.
enum class Lifetime : std::uint8_t {
  saved,     ///< from the block's forward to its backward
  backward,  ///< in backward
  both,      ///< in forward and, computed again, in backward
};

struct ActivationSpec {
  std::int64_t bytes = 0;
  Lifetime lifetime = Lifetime::saved;
};

/// The sizes that a block's buffers depend on.
struct BatchShape {
  std::int64_t batch = 1;  ///< B, sequences of a micro-batch
  std::int64_t seq = 1;    ///< T
  DType dtype = DType::fp32;
  std::int64_t rows() const { return batch * seq; }
};

/// What a block works with in one call.
struct BlockContext {
  ComputeBackend* backend = nullptr;
  BatchShape shape;
  TensorRef tokens;   // (B, T) int32
  TensorRef targets;  // (B, T) int32
  bool training = true;
  std::int64_t first_sample = 0;  ///< of this micro-batch within the global batch
  std::uint64_t seed = 0;
  const StepScalars* scalars = nullptr;  // device memory
  float gradient_scale = 1.0F;           ///< of the loss: 1 / tokens of the global batch
  TensorRef losses;                      // (B * T) fp32, written by the head
  TensorRef correct;                     // (B * T) int32, written by the head in evaluation
  std::span<void* const> buffers;        ///< one per ActivationSpec
  std::span<const UnitView> units;       ///< one per entry of `Block::units()`
  GradientListener* listener = nullptr;

  template <class Op>
  void run(const Op& op) const {
    backend->run(op);
  }
};

/// A layer between two places of the residual stream.
class Block {
 public:
  virtual ~Block() = default;

  /// The units it acquires.
  virtual std::vector<int> units() const = 0;
  /// Its buffers, in the order of `BlockContext::buffers`.
  virtual std::vector<ActivationSpec> activations(const BatchShape& shape) const = 0;

  /// output (B, T, C) from input (B, T, C). The embedding has no input, the head no output.
  virtual void forward(const BlockContext& context, TensorRef input, TensorRef output) const = 0;
  /// Turns `gradient` (B, T, C), the loss's gradient with respect to the output, into that with respect to
  /// the input, in place, and gives the weights' gradients to the units. The head only writes `gradient`.
  virtual void backward(const BlockContext& context, TensorRef input, TensorRef gradient) const = 0;
};

/// A weight of a unit, found once; `in` gives it within a flat buffer of weights or gradients.
class WeightSlot {
 public:
  WeightSlot() = default;
  explicit WeightSlot(const Parameter& parameter);

  TensorRef in(const TensorRef& flat) const;  // (padded_rows, ...) row-major
  /// Its elements in the flat buffer.
  std::int64_t begin() const { return offset_; }
  std::int64_t end() const { return offset_ + size_; }

 private:
  std::int64_t offset_ = 0;
  std::int64_t size_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;  // 0: a vector
};

/// The blocks of a GPT-2 in the order of forward: embedding, layers, head.
std::vector<std::unique_ptr<Block>> make_gpt2(const ModelConfig& model, const ParameterTable& table,
                                              Recompute recompute);

}  // namespace mylos
