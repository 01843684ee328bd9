// SPDX-License-Identifier: BSD-3-Clause
// Recorder: the argument of a block's forward and backward passes. It records the operations that the block
// requests and provides the tensors that they work on.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <source_location>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/model/model_config.hpp"
#include "core/model/program.hpp"

namespace mylos {

/// The sizes that a block's tensors depend on.
struct BatchShape {
  std::int64_t batch = 1;  ///< B, sequences of a micro-batch
  std::int64_t seq = 1;    ///< T
  DType dtype = DType::fp32;
  /// Sequence parallelism (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
  /// Models", 2022): the rows of the residual stream (B * T, C) are divided among `residual_parts` ranks.
  /// This rank has part `residual_part`.
  std::int64_t residual_parts = 1;
  std::int64_t residual_part = 0;

  std::int64_t rows() const { return batch * seq; }
  /// The number of the rank's rows of the residual stream.
  std::int64_t residual_rows() const { return rows() / residual_parts; }
  std::int64_t first_residual_row() const { return residual_part * residual_rows(); }
};

/// What all programs of a run have in common.
struct ProgramConfig {
  BatchShape shape{};
  DType grad_dtype = DType::fp32;
  Recompute recompute = Recompute::none;
  std::uint64_t seed = 0;
  float gradient_scale = 1.0F;  ///< of the loss: 1 / tokens of the global batch
  int chunks = 1;               ///< the blocks are divided among this many, as evenly as possible
  std::set<int> held{};         ///< chunks that this rank runs; empty for all
  bool splits_backward = false;
};

/// The cost of recomputing a tensor of the forward pass. Recompute::selective keeps only expensive tensors.
enum class Cost : std::uint8_t { expensive, cheap };

/// The memory that programs work on.
class Roots {
 public:
  Roots(const ParameterTable& table, const ProgramConfig& config);

  /// Returns the tensor with this name and with the type and shape of `like`. A name always means the same
  /// memory, so its tensors must have the same size.
  TensorRef tensor(const std::string& name, const TensorRef& like, Cost cost = Cost::expensive);
  TensorRef weights(int unit) const;
  TensorRef gradients(int unit) const;
  TensorRef loss_sum() const;

  const std::vector<Root>& all() const { return roots_; }
  /// Returns the root of the activation with this name, or -1.
  int find(std::string_view name) const;
  static constexpr int loss_sum_root = 0;
  static constexpr int weights_root(int unit) { return 1 + 2 * unit; }
  static constexpr int gradients_root(int unit) { return 2 + 2 * unit; }

 private:
  TensorRef at(int root, DType dtype, std::initializer_list<std::int64_t> shape) const;

  const ParameterTable& table_;
  ProgramConfig config_;
  std::vector<Root> roots_;
  std::map<std::string, int, std::less<>> names_;
};

/// Records the operations of one block in one pass.
class Recorder {
 public:
  Recorder(Roots& roots, const ProgramConfig& config, std::string prefix, int block, bool training,
           std::vector<Entry>& entries)
      : roots_(roots),
        config_(config),
        prefix_(std::move(prefix)),
        block_(block),
        training_(training),
        entries_(entries) {}

  /// Records an operation.
  void operator()(const auto& op, const std::source_location& where = std::source_location::current()) {
    Entry& entry = entries_.emplace_back();
    entry.operation = op;
    entry.block = block_;
    entry.where = where;
  }

  const BatchShape& shape() const { return config_.shape; }
  /// Returns whether the backward pass of a block begins by recomputing its forward pass.
  bool repeats_blocks() const { return config_.recompute == Recompute::block; }
  /// Returns whether the gradients of weights are deferred to a program of their own.
  bool splits_backward() const { return config_.splits_backward; }
  float gradient_scale() const { return config_.gradient_scale; }
  /// Returns a placeholder for the scalars of the step in which a program runs.
  const StepScalars* scalars() const;

  /// Returns a tensor that belongs to the block.
  TensorRef tensor(std::string_view name, DType dtype, std::initializer_list<std::int64_t> shape,
                   Cost cost = Cost::expensive) {
    return roots_.tensor(prefix_ + std::string(name), {nullptr, dtype, shape}, cost);
  }
  TensorRef tensor_like(std::string_view name, const TensorRef& other) {
    return roots_.tensor(prefix_ + std::string(name), other);
  }
  /// Return the inputs and results of a micro-batch.
  TensorRef tokens() { return of_batch("tokens", DType::int32); }
  TensorRef targets() { return of_batch("targets", DType::int32); }
  TensorRef losses() { return of_batch("losses", DType::fp32).flat(); }
  TensorRef correct() { return of_batch("correct", DType::int32).flat(); }
  /// Return a weight and its gradient, (padded_rows, ...) row-major.
  TensorRef weight(const Parameter& parameter) const;
  TensorRef gradient(const Parameter& parameter) const;
  /// Returns a dropout layer with this probability, keyed by `site`; it is inactive in evaluation and
  /// generation.
  Dropout dropout(float probability, std::string_view site) const;

 private:
  TensorRef of_batch(const char* name, DType dtype) {
    return roots_.tensor(name, {nullptr, dtype, {shape().batch, shape().seq}});
  }

  Roots& roots_;
  const ProgramConfig& config_;
  std::string prefix_;
  int block_;
  bool training_;
  std::vector<Entry>& entries_;
};

}  // namespace mylos
