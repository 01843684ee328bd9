// SPDX-License-Identifier: BSD-3-Clause
// ZeroLayout: what each rank holds under sharded data parallelism, and when weights and gradients move.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/exchange/gradient_exchange.hpp"

namespace mylos {

/// What is divided among the ranks along Axis::shard (Rajbhandari et al., "ZeRO", SC 2020, section 5); each
/// stage includes the earlier ones.
enum class ZeroStage : std::uint8_t { optimizer_states = 1, gradients, parameters };

struct ZeroConfig {
  ZeroStage stage = ZeroStage::optimizer_states;
  /// For ZeroStage::parameters: a gather starts this many block passes before the first use of its weights,
  /// or at the first pass of the sequence.
  std::int64_t prefetch = 1;
  /// For ZeroStage::parameters: whether weights are released between the uses of a micro-batch, such as its
  /// forward and its backward pass, unless the next use is at most `prefetch` block passes away.
  bool reshard = true;

  bool divides_gradients() const { return stage >= ZeroStage::gradients; }
  bool divides_weights() const { return stage >= ZeroStage::parameters; }
};

/// Sizes and offsets are in elements. A unit is padded to a multiple of ranks * ParameterTable::alignment.
/// Rank r holds part r; the last parts may lie partly or wholly in the padding.
struct ZeroLayout {
  ZeroLayout(const ZeroConfig& config, const ExchangeScope& scope);

  struct UnitPlace {
    std::int64_t part = 0;   // size of each rank's part
    std::int64_t whole = 0;  // offset of the padded unit in a buffer of whole units
    std::int64_t own = 0;    // offset of the rank's part in a buffer of parts
    /// The beginning of the range that a micro-batch's backward pass completes last.
    std::int64_t last_completed = -1;
    /// The gaps between and after the parameters; nothing writes their gradients.
    std::vector<GradientRange> gaps;
  };
  /// The weights of a unit, from the start of their gather until their last use.
  struct Gather {
    int unit = 0;
    std::int64_t offset = 0;
    std::size_t start = 0;  // the acquisition at which it starts
  };
  /// The plan of one UnitSequence.
  struct Sequence {
    std::vector<Gather> gathers;             // in the order of their starts; at most one per unit at a time
    std::vector<std::int64_t> gradients_of;  // by acquisition: offset of the unit's whole gradient, or -1
    std::vector<bool> is_last;               // by completion: no later micro-batch adds to it
    Repetition acquisitions, completions;    // of repeated micro-batches
  };

  const UnitPlace& unit(int index) const { return units[static_cast<std::size_t>(index)]; }
  std::int64_t padded(int index) const { return unit(index).part * ranks; }
  /// The rank's part of a unit, without padding.
  UnitPart owned(const ParameterTable& table, int index) const;
  std::vector<UnitPart> owned(const ParameterTable& table) const;

  int ranks = 1;
  int rank = 0;
  bool has_gradients = false;
  std::vector<UnitPlace> units;
  std::int64_t whole_size = 0;     // of a buffer of whole units
  std::int64_t own_size = 0;       // of a buffer of parts
  std::int64_t weight_size = 0;    // size of the weights that the rank keeps: one of the two above
  std::int64_t gradient_size = 0;  // the same for gradients; 0 without gradients
  std::int64_t gathered_size = 0;
  std::int64_t full_gradient_size = 0;
  std::array<Sequence, num_unit_sequences> sequences;
  std::vector<PlannedCall> calls;  // of a step
};

}  // namespace mylos
