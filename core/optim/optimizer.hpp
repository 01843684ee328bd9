// SPDX-License-Identifier: BSD-3-Clause
// Optimizer: the fp32 states of the parts of units that this rank owns, and the operations that update these
// parts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/model/recorder.hpp"
#include "core/optim/matrix_exchange.hpp"
#include "core/param_spec.hpp"
#include "core/param_values.hpp"

namespace mylos {

struct OptimizerKind;

struct OptimizerConfig {
  const OptimizerKind* kind = nullptr;
  ParamValues values;         ///< values of the deck, including the kind's parameters
  float weight_decay = 0.1F;  ///< of weights with two or more dimensions
  bool keeps_master = true;   ///< keeps an fp32 master if the compute type is narrower
  std::uint64_t seed = 0;     ///< for the stochastic rounding of weights without a master
};

/// Consecutive elements of a unit, as an optimizer's operations see them; all in storages
/// (core/model/recorder.hpp). n is their number.
struct OptimizerPart {
  TensorRef weights;   ///< (n) compute type
  TensorRef gradient;  ///< (n)
  TensorRef master;    ///< (n) fp32: the master, or the weights if these are fp32; otherwise empty
  TensorRef previous;  ///< (n) compute type: the version that the update reads, if it writes another
  std::vector<TensorRef> states;  ///< (n) fp32 each: those of the kind that these elements have
  const Segment* segments = nullptr;
  int num_segments = 0;
  StepScalars* scalars = nullptr;
};

/// A part's tensors, as `Optimizer::record` takes them.
struct UpdatedPart {
  std::size_t index = 0;  ///< of the part
  TensorRef weights, previous, gradient;
};

/// Records the operations of an update.
class UpdateRecorder {
 public:
  explicit UpdateRecorder(std::vector<Entry>& entries) : entries_(entries) {}
  void operator()(const auto& op, const std::source_location& where = std::source_location::current()) {
    entries_.push_back({.operation = op, .where = where});
  }

 private:
  std::vector<Entry>& entries_;
};

/// Memory for the products of one stack of matrices at a time.
class MatrixScratch {
 public:
  MatrixScratch(Storages& storages, DType product_type) : storages_(storages), product_type_(product_type) {}
  /// Returns (count, rows, columns) with this name; the same memory for the same name and shape.
  TensorRef tensor(const std::string& name, DType dtype, std::array<std::int64_t, 3> shape);
  /// The type in which products take their factors: fp32 or bf16.
  DType product_type() const { return product_type_; }

 private:
  Storages& storages_;
  DType product_type_;
  std::map<std::string, int> known_;
};

/// How an optimizer updates matrices as a whole. Its elements' state comes first among the kind's states.
struct MatrixRule {
  /// Records what gives each element's direction (n) fp32 from its gradient.
  void (*direct)(const OptimizerConfig& config, const OptimizerPart& part, TensorRef direction,
                 UpdateRecorder& run);
  /// Records what replaces the directions of whole matrices, (count, rows, columns) fp32.
  void (*transform)(TensorRef matrices, MatrixScratch& scratch, UpdateRecorder& run);
  /// Records the step along a direction, which is the part's gradient, of elements of matrices of this shape.
  void (*step)(const OptimizerConfig& config, const OptimizerPart& part, std::int64_t rows,
               std::int64_t columns, UpdateRecorder& run);
};

/// The storages of an optimizer on one rank: fp32 values for the elements of its parts, one per state that
/// they have; states start as zeros. If the compute type is narrower than fp32, there is also an fp32 master
/// or, without `keeps_master`, the weights are rounded stochastically.
class Optimizer {
 public:
  /// `units` are the parts of units, in `compute_type`, that the rank at `coordinates` updates; some may be
  /// empty.
  Optimizer(const OptimizerConfig& config, const ParameterTable& table, const Coordinates& coordinates,
            DType compute_type, const std::vector<SteppedUnit>& units, Storages& storages);

  const OptimizerKind& kind() const { return *config_.kind; }
  /// Returns the kind's state number `state` of elements [begin, begin + count) of part `index`, which have
  /// the same states; empty if they do not have it.
  TensorRef state(std::size_t state, std::size_t index, std::int64_t begin, std::int64_t count) const;
  /// Returns the most precise weights of part `index`: the fp32 master, or `weights` themselves if there is
  /// no master.
  TensorRef master(std::size_t index, TensorRef weights) const;

  /// Records the operations that update some parts from their gradients and write their weights in the
  /// compute type: over the weights that they update or, with `previous`, from that version to another. Calls
  /// `updated` after those of a part. The values do not change if the step is skipped (StepScalars::skip).
  void record(std::span<const UpdatedPart> parts, StepScalars* scalars, UpdateRecorder& run,
              const std::function<void(std::size_t index)>& updated);

  /// Tables that operations read from device memory, and the storages that have to hold them.
  const std::vector<Segment>& segments() const { return segments_; }
  int segments_storage() const { return segments_storage_; }
  const std::vector<CopiedBlock>& blocks() const { return blocks_; }
  int blocks_storage() const { return blocks_storage_; }

 private:
  /// Elements of a part that have the same states.
  struct Range {
    std::int64_t begin = 0;  ///< within the part
    std::int64_t count = 0;
    int matrix = -1;                     ///< number of its piece in the part's MatrixExchange; -1: of none
    std::vector<std::int64_t> places{};  ///< of the kind's states, in their storages; -1: it does not have it
    std::size_t first_segment = 0, num_segments = 0;
  };

  struct Part {
    UnitPart place;
    std::int64_t offset = 0;  ///< in the storage of masters
    std::vector<Range> ranges;
    MatrixExchange matrices;
    int elements = -1, stacks = -1, result = -1;  ///< storages of directions of matrices
    struct Messages {
      int sent = -1, received = -1;  ///< storages
      std::shared_ptr<const std::vector<std::int64_t>> sent_counts, received_counts;
      std::size_t pack = 0, unpack = 0;  ///< first blocks
    };
    Messages collection, returned;
    int shared = -1;                ///< storage of results that copies broadcast
    std::size_t shared_unpack = 0;  ///< first block
  };

  void divide(Part& part, const ParameterTable& table);
  std::size_t keep_blocks(const BlockCopy& copy);
  Part::Messages keep_messages(const MatrixMessages& messages, bool are_sent, const std::string& name,
                               Storages& storages);
  OptimizerPart of_range(const UpdatedPart& updated, const Range& range, StepScalars* scalars) const;
  void record_elements(const UpdatedPart& updated, StepScalars* scalars, UpdateRecorder& run) const;
  void record_collection(const UpdatedPart& updated, StepScalars* scalars, UpdateRecorder& run) const;
  void record_matrices(const UpdatedPart& updated, UpdateRecorder& run);
  void record_sharing(const UpdatedPart& updated, UpdateRecorder& run) const;
  void record_steps(const UpdatedPart& updated, StepScalars* scalars, UpdateRecorder& run) const;
  void send(const Part::Messages& kept, const MatrixMessages& messages, TensorRef from, AxisSet group,
            UpdateRecorder& run) const;
  static void receive(const Part::Messages& kept, const MatrixMessages& messages, UpdateRecorder& run);
  void record_copy(const BlockCopy& copy, std::size_t first, TensorRef from, TensorRef other, TensorRef to,
                   UpdateRecorder& run) const;

  OptimizerConfig config_;
  std::vector<Part> parts_;
  int master_ = -1;  // -1 if there is none
  std::vector<int> states_;
  std::vector<Segment> segments_;
  int segments_storage_ = -1;
  std::vector<CopiedBlock> blocks_;
  int blocks_storage_ = -1;
  std::unique_ptr<MatrixScratch> scratch_;
};

/// Returns the segments of a part for an optimizer's operation: one per parameter in the part, including the
/// padding after the parameter.
std::vector<Segment> segments_of(const ParameterTable& table, const UnitPart& part, std::uint64_t seed);

/// Describes an optimizer to decks, checkpoints and the planner.
struct OptimizerKind {
  const char* name;
  const char* doc;
  std::span<const ParamSpec> params;    ///< of section optim, in addition to the common parameters
  std::span<const char* const> states;  ///< groups of a checkpoint's optimizer.h5
  /// Records the operations that update the elements of a part, each by itself.
  void (*record)(const OptimizerConfig& config, const OptimizerPart& part, UpdateRecorder& run);
  /// How matrices are updated as a whole; null: they are not. Matrices have the first state, all other
  /// elements the rest.
  const MatrixRule* matrices = nullptr;

  /// Whether elements of matrices, or all others, have a state.
  bool has_state(bool is_matrix, std::size_t state) const {
    return matrices == nullptr || is_matrix == (state == 0);
  }
  /// Returns the number of states of a parameter's elements.
  std::int64_t num_states(const Parameter& parameter) const {
    if (matrices == nullptr) return std::ssize(states);
    return parameter.is_matrix ? 1 : std::ssize(states) - 1;
  }
  /// Returns how many fp32 values are kept per element at most: the states and the master.
  std::int64_t values_per_element(DType compute_type, bool keeps_master) const {
    const std::int64_t most = std::ssize(states) - (matrices != nullptr ? 1 : 0);
    return most + (compute_type != DType::fp32 && keeps_master ? 1 : 0);
  }
};

/// Returns an optimizer's operation with the members that the operations of all optimizers share.
template <class Op>
Op operation_on(const OptimizerPart& part, const OptimizerConfig& config) {
  Op op;
  op.weights = part.weights;
  op.gradient = part.gradient;
  op.master = part.master;
  op.previous = part.previous;
  op.segments = part.segments;
  op.num_segments = part.num_segments;
  op.weight_decay = config.weight_decay;
  op.scalars = part.scalars;
  return op;
}

/// All optimizers, the default first.
std::span<const OptimizerKind* const> optimizers();

}  // namespace mylos
