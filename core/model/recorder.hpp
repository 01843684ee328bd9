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
#include "core/model/parameters.hpp"
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
  ModelCuts cuts{};             ///< the chunks of the blocks
  std::set<int> held{};         ///< chunks that this rank runs; empty for all
  bool splits_backward = false;
};

/// The cost of recomputing a tensor of the forward pass. Recompute::selective keeps only expensive tensors.
enum class Cost : std::uint8_t { expensive, cheap };

/// The memory that programs work on. Units and gradients at first have a storage each, of the unit's size,
/// which an exchange places (parallel/exchange).
class Storages {
 public:
  Storages(const ParameterTable& table, const ProgramConfig& config);

  /// Returns the tensor with this name and with the type and shape of `like`. A name always means the same
  /// memory, so its tensors must have the same size.
  TensorRef tensor(const std::string& name, const TensorRef& like, Cost cost = Cost::expensive);
  TensorRef weights(int unit) const;
  TensorRef gradients(int unit) const;
  /// The members of the guard's input, (1) fp32 each, and all of it, (2).
  TensorRef loss_sum() const { return guard_input().flat(0, 1); }
  TensorRef norm_squared() const { return guard_input().flat(1, 1); }
  TensorRef guard_input() const;

  /// Adds a storage and returns its number.
  int add(Storage storage);
  Storage& at(int storage) { return storages_[static_cast<std::size_t>(storage)]; }
  const Storage& at(int storage) const { return storages_[static_cast<std::size_t>(storage)]; }
  /// (count) of a type, from byte `begin` of a storage.
  static TensorRef flat(int storage, std::int64_t begin, DType dtype, std::int64_t count);

  /// Bytes [begin, end) of a storage that has its own memory.
  struct Extent {
    int storage = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;

    bool overlaps(const Extent& other) const {
      return storage == other.storage && begin < other.end && other.begin < end;
    }
  };
  /// Returns where a tensor lies; of a tensor with gaps, everything from its first byte to the end of its
  /// storage.
  Extent extent_of(const TensorRef& tensor) const;

  const std::vector<Storage>& all() const { return storages_; }
  /// Returns the storage of the activation with this name, or -1.
  int find(std::string_view name) const;
  static constexpr int guard_input_storage = 0;
  static constexpr int weights_storage(int unit) { return 1 + 2 * unit; }
  static constexpr int gradients_storage(int unit) { return 2 + 2 * unit; }

 private:
  const ParameterTable& table_;
  ProgramConfig config_;
  std::vector<Storage> storages_;
  std::map<std::string, int, std::less<>> names_;
};

/// Records the operations of one block in one pass.
class Recorder {
 public:
  Recorder(Storages& storages, const ProgramConfig& config, std::string prefix, int block, bool training,
           std::vector<Entry>& entries)
      : storages_(storages),
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
  StepScalars* scalars() const;

  /// Returns a tensor that belongs to the block.
  TensorRef tensor(std::string_view name, DType dtype, std::initializer_list<std::int64_t> shape,
                   Cost cost = Cost::expensive) {
    return storages_.tensor(prefix_ + std::string(name), {nullptr, dtype, shape}, cost);
  }
  TensorRef tensor_like(std::string_view name, const TensorRef& other) {
    return storages_.tensor(prefix_ + std::string(name), other);
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
    return storages_.tensor(name, {nullptr, dtype, {shape().batch, shape().seq}});
  }

  Storages& storages_;
  const ProgramConfig& config_;
  std::string prefix_;
  int block_;
  bool training_;
  std::vector<Entry>& entries_;
};

}  // namespace mylos
