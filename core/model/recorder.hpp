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
#include "core/model/routing_statistics.hpp"

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

/// A program that continues texts whose keys and values are in the cache (Pope et al., "Efficiently Scaling
/// Transformer Inference", 2022, section 2). Which rows of the cache it continues, and from which position,
/// are data: (texts) int32 each.
struct CachedPass {
  std::int64_t texts = 1;
  std::int64_t tokens = 1;  ///< new tokens of each text
  /// Computes the losses of the new tokens' targets. Otherwise computes the logits after each text's last
  /// token; then `texts` or `tokens` is 1.
  bool has_losses = false;
};

/// The cache of keys and values.
struct CacheConfig {
  std::int64_t rows = 0;       ///< texts; 0 for no cache and no such programs
  std::int64_t positions = 0;  ///< tokens of each text
  std::vector<CachedPass> passes{};
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
  CacheConfig cache{};
};

/// The cost of recomputing a tensor of the forward pass. Recompute::selective keeps only expensive tensors.
enum class Cost : std::uint8_t { expensive, cheap };

/// The memory that programs work on. Units and gradients at first have a storage each, of the unit's size,
/// which an exchange places (parallel/exchange).
class Storages {
 public:
  /// `statistics` sums follow the guard's input.
  Storages(const ParameterTable& table, const ProgramConfig& config, std::int64_t statistics = 0);

  /// Returns the tensor with this name and with the type and shape of `like`. A name always means the same
  /// memory, so its tensors must have the same size.
  TensorRef tensor(const std::string& name, const TensorRef& like, Cost cost = Cost::expensive);
  /// The same for a tensor of the cache, which persists.
  TensorRef cached(const std::string& name, const TensorRef& like);
  TensorRef weights(int unit) const;
  TensorRef gradients(int unit) const;
  /// The members of the guard's input, (1) fp32 each, and all of it, (2).
  TensorRef loss_sum() const { return guard_input().flat(0, 1); }
  TensorRef norm_squared() const { return guard_input().flat(1, 1); }
  TensorRef guard_input() const { return flat(guard_input_storage, 0, DType::fp32, num_guard_inputs); }
  /// Sums of RoutingStatistics, fp32.
  static TensorRef statistics(const RoutingStatistics::Range& range) {
    constexpr std::int64_t bytes = sizeof(float);
    return flat(guard_input_storage, (num_guard_inputs + range.begin) * bytes, DType::fp32, range.count);
  }

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
  static constexpr std::int64_t num_guard_inputs = sizeof(GuardInput) / sizeof(float);

  TensorRef named(Storage storage, const TensorRef& like);

  const ParameterTable& table_;
  ProgramConfig config_;
  std::vector<Storage> storages_;
  std::map<std::string, int, std::less<>> names_;
};

/// The sizes and names that the programs of a pass have in common.
struct PassConfig {
  BatchShape shape{};
  bool training = false;
  std::string prefix{};                ///< of the names of activations
  const CachedPass* cached = nullptr;  ///< of a pass over the cache
};

/// Records the operations of one block in one pass.
class Recorder {
 public:
  Recorder(Storages& storages, const ProgramConfig& config, const PassConfig& pass, std::string block_name,
           int block, std::vector<Entry>& entries)
      : storages_(storages),
        config_(config),
        pass_(pass),
        block_name_(std::move(block_name)),
        block_(block),
        entries_(entries) {}

  /// A pass through the same block with `seq` tokens of each sequence, `trained_seq` in training, whose
  /// tensors have names that begin with `prefix`, and which takes its positions from `positions`, if they are
  /// given.
  Recorder packed(std::int64_t seq, std::int64_t trained_seq, const std::string& prefix,
                  const TensorRef& positions = {}) const {
    Recorder own = *this;
    own.pass_.shape.seq = seq;
    own.pass_.prefix += prefix;
    own.trained_seq_ = trained_seq;
    own.positions_ = positions;
    return own;
  }
  /// The tokens of a sequence that the block processes in training.
  std::int64_t trained_seq() const { return trained_seq_ > 0 ? trained_seq_ : shape().seq; }

  /// Records an operation.
  void operator()(const auto& op, const std::source_location& where = std::source_location::current()) {
    Entry& entry = entries_.emplace_back();
    entry.operation = op;
    entry.block = block_;
    entry.where = where;
  }

  const BatchShape& shape() const { return pass_.shape; }
  /// Returns whether the backward pass of a block begins by recomputing its forward pass.
  bool repeats_blocks() const { return config_.recompute == Recompute::block; }
  /// Returns whether the gradients of weights are deferred to a program of their own.
  bool splits_backward() const { return config_.splits_backward; }
  /// 1 / tokens of the global batch that pass through the block.
  float gradient_scale() const {
    return config_.gradient_scale *
           static_cast<float>(static_cast<double>(config_.shape.seq) / static_cast<double>(shape().seq));
  }
  /// Returns a placeholder for the scalars of the step in which a program runs.
  StepScalars* scalars() const;

  /// Returns a tensor that belongs to the block.
  TensorRef tensor(std::string_view name, DType dtype, std::initializer_list<std::int64_t> shape,
                   Cost cost = Cost::expensive) {
    return storages_.tensor(full_name(name), {nullptr, dtype, shape}, cost);
  }
  TensorRef tensor_like(std::string_view name, const TensorRef& other) {
    return storages_.tensor(full_name(name), other);
  }
  /// Return the inputs and results of a micro-batch.
  TensorRef tokens() { return of_batch("tokens", DType::int32); }
  TensorRef targets() { return of_batch("targets", DType::int32); }
  TensorRef losses() { return of_batch("losses", DType::fp32).flat(); }
  TensorRef correct() { return of_batch("correct", DType::int32).flat(); }
  /// Whether the pass continues texts of the cache, and then: the rows and positions (B) int32 at which it
  /// does, and a tensor of the block in the cache, (rows, heads, positions, head_dim), with a row for
  /// padding.
  bool has_cache() const { return pass_.cached != nullptr; }
  TensorRef cache_rows() { return of_texts("rows"); }
  TensorRef positions() { return positions_ ? positions_ : of_texts("positions"); }
  TensorRef cached(std::string_view name, std::int64_t heads, std::int64_t head_dim) {
    const CacheConfig& cache = config_.cache;
    return storages_.cached(block_name_ + "." + std::string(name),
                            {nullptr, shape().dtype, {cache.rows + 1, heads, cache.positions, head_dim}});
  }
  /// The same for numbers of a row's tokens before each position, (rows, positions + 1) int32.
  TensorRef cached_counts(std::string_view name) {
    const CacheConfig& cache = config_.cache;
    return storages_.cached(block_name_ + "." + std::string(name),
                            {nullptr, DType::int32, {cache.rows + 1, cache.positions + 1}});
  }
  static TensorRef statistics(const RoutingStatistics::Range& range) { return Storages::statistics(range); }
  /// Return a weight and its gradient, (padded_rows, ...) row-major.
  TensorRef weight(const Parameter& parameter) const;
  TensorRef gradient(const Parameter& parameter) const;
  /// Returns a dropout layer with this probability, keyed by `site`; it is inactive in evaluation and
  /// generation.
  Dropout dropout(float probability, std::string_view site) const;
  /// The same for the noise of a router.
  RouterNoise router_noise(RouterNoise::Kind kind, std::string_view site) const;
  bool is_training() const { return pass_.training; }

 private:
  std::string full_name(std::string_view name) const {
    return pass_.prefix + block_name_ + "." + std::string(name);
  }
  TensorRef of_batch(const char* name, DType dtype) {
    return storages_.tensor(pass_.prefix + name, {nullptr, dtype, {shape().batch, shape().seq}});
  }
  TensorRef of_texts(const char* name) {
    return storages_.tensor(pass_.prefix + name, {nullptr, DType::int32, {shape().batch}});
  }

  Storages& storages_;
  const ProgramConfig& config_;
  PassConfig pass_;
  std::int64_t trained_seq_ = 0;  // 0: as many as in this pass
  TensorRef positions_{};
  std::string block_name_;
  int block_;
  std::vector<Entry>& entries_;
};

}  // namespace mylos
