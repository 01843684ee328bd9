// SPDX-License-Identifier: BSD-3-Clause
// ZeroLayout: who holds what under sharded data parallelism, and what moves when.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/exchange/gradient_exchange.hpp"

namespace mylos {

/// What is divided among the ranks along Axis::shard (Rajbhandari et al., "ZeRO", SC 2020, section 5); each
/// stage includes those before.
enum class ZeroStage : std::uint8_t { optimizer_states = 1, gradients, parameters };

struct ZeroConfig {
  ZeroStage stage = ZeroStage::optimizer_states;
  /// Of ZeroStage::parameters: passes through blocks ahead for which weights are gathered, and whether the
  /// weights of a forward pass are given up before the micro-batch's backward pass.
  std::int64_t prefetch = 1;
  bool reshard = true;

  bool divides_gradients() const { return stage >= ZeroStage::gradients; }
  bool divides_weights() const { return stage >= ZeroStage::parameters; }
};

/// Sizes and offsets are in elements. A unit is padded to a multiple of ranks * ParameterTable::alignment,
/// and rank r holds part r, of which the last ones may lie in the padding.
struct ZeroLayout {
  ZeroLayout(const ZeroConfig& config, const ExchangeScope& scope);

  struct UnitPlace {
    std::int64_t part = 0;   // size of each rank's part
    std::int64_t whole = 0;  // place of the padded unit in a buffer of whole units
    std::int64_t own = 0;    // and of the rank's part in a buffer of parts
    /// Where the range begins that a micro-batch's backward pass completes last.
    std::int64_t last_completed = -1;
    /// What lies between parameters, of which nothing writes the gradient.
    std::vector<GradientRange> gaps;
  };
  /// The weights of a unit, from when their gather starts until their last use.
  struct Gather {
    int unit = 0;
    std::int64_t offset = 0;
    std::size_t start = 0;  // the acquisition at which it starts
  };
  /// One of UnitSequence.
  struct Sequence {
    std::vector<Gather> gathers;             // as they start; of a unit one at a time
    std::vector<std::int64_t> gradients_of;  // by acquisition: offset of the unit's whole gradient, or -1
    std::vector<bool> is_last;               // by completion: no later micro-batch adds to it
    Repetition acquisitions, completions;    // of micro-batches that do likewise
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
  std::int64_t weight_size = 0;    // of what the rank keeps: one of both
  std::int64_t gradient_size = 0;  // the same; 0 without gradients
  std::int64_t gathered_size = 0;
  std::int64_t full_gradient_size = 0;
  std::array<Sequence, num_unit_sequences> sequences;
  std::vector<PlannedCall> calls;  // of a step
};

}  // namespace mylos
