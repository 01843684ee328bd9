// SPDX-License-Identifier: BSD-3-Clause
// An exchange: a holding, which says what part of each unit this rank keeps, steps and stores, and a
// lowering, which inserts the collectives that this needs into the passes of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/layout/parameter_table.hpp"
#include "core/model/pass.hpp"
#include "core/model/recorder.hpp"
#include "core/param_spec.hpp"
#include "core/param_values.hpp"

namespace mylos {

/// What this rank holds of a unit. The tensors lie in storages.
struct HeldUnit {
  UnitPart owned;  ///< the part that its optimizer updates; may be empty, and may begin at any element
  std::int64_t begin = 0;  ///< the first element of the tensors below, which contain `owned`
  TensorRef weights;       ///< compute type
  /// Gradient type: once the step is reduced, the sum over the ranks along the unit's term axes.
  TensorRef gradient;
  /// Along these of its term axes (ParameterTable::term_axes), the ranks own different parts of the unit;
  /// along the others, the same.
  AxisSet divided_axes{};
};

struct Holding {
  std::vector<HeldUnit> units;
  /// The parts that this rank writes to a checkpoint, at most one of a unit. The stored parts of all ranks
  /// that hold the same parameters cover every unit once, before twins (Parameter::twins) divide them
  /// further.
  std::vector<UnitPart> stored;
  /// The ranks over which losses and squares are summed: their loss, norm, clipping and skipping are one.
  AxisSet norm_axes = all_axes;

  std::vector<UnitPart> owned() const;
  /// Return a part's tensor; the held part of the unit contains it.
  TensorRef weights(const UnitPart& part) const;
  TensorRef gradient(const UnitPart& part) const;
};

/// Every unit as one part.
std::vector<UnitPart> whole_units(const ParameterTable& table);
/// The share of `parts` that rank `rank` of the `ranks` ranks that hold them writes to a checkpoint; rank 0
/// has no fewer elements than any other.
std::vector<UnitPart> share_of(const std::vector<UnitPart>& parts, int ranks, int rank);
/// The share of the owned parts that the rank writes to a checkpoint, if the ranks that own the same parts
/// divide the writing.
std::vector<UnitPart> stored_shares(const ParameterTable& table, const std::vector<HeldUnit>& units,
                                    const Coordinates& coordinates);

/// What an exchange works on: the passes of one rank, in the order of execution, into which it inserts
/// entries.
class Lowering {
 public:
  Lowering(const ParameterTable& table, const Coordinates& coordinates, DType compute_type,
           DType gradient_type, Storages& storages, std::vector<Entry>& pool)
      : table_(table),
        coordinates_(coordinates),
        compute_type_(compute_type),
        gradient_type_(gradient_type),
        storages_(storages),
        pool_(pool),
        published_(table.units().size()) {}

  const ParameterTable& table() const { return table_; }
  const Coordinates& coordinates() const { return coordinates_; }
  DType compute_type() const { return compute_type_; }
  DType gradient_type() const { return gradient_type_; }
  Storages& storages() { return storages_; }

  /// The passes of a step, of which one micro-batch may stand for many alike. Without training, a step has no
  /// passes, and the rank keeps no gradients.
  std::vector<Pass*> step;
  /// Passes outside steps, which follow one another in any order: of an evaluation, and over the cache.
  std::vector<Pass*> others;
  bool has_gradients() const { return !step.empty(); }
  /// Calls visit(pass, index, range) for the ranges of gradients that the step completes, in order.
  void for_each_completion(const auto& visit) const {
    for (Pass* pass : step) {
      if (!pass->is_last) continue;
      for (std::size_t i = 0; i < pass->program->entries.size(); ++i) {
        for (const GradientRange& range : pass->program->entries[i].completes) visit(*pass, i, range);
      }
    }
  }

  /// Adds memory that the rank keeps: (elements) of `dtype`. Returns its storage.
  int keep(std::string name, MemoryCategory category, std::int64_t elements, DType dtype,
           AxisSet window = {});
  /// Makes a storage of the unit's weights or gradients a part of a kept one, from element `begin`.
  void put_within(int storage, int kept, std::int64_t begin, DType dtype);
  /// Makes the storage's values live from their first write to their last read.
  void put_in_arena(int storage, MemoryCategory category, AxisSet window);

  /// Adds an entry, which may be inserted any number of times. Returns its number.
  int add(const Recordable& operation, const std::source_location& where = std::source_location::current());
  const Entry& entry(int number) const { return pool_[static_cast<std::size_t>(number)]; }
  /// Returns the Await of a call that was added. Without one, the call is awaited before the next entry that
  /// uses its result or changes its input.
  int await(int call);
  static void before(Pass& pass, std::size_t index, int entry) { insert(pass, index, false, entry); }
  static void after(Pass& pass, std::size_t index, int entry) { insert(pass, index, true, entry); }
  /// Appends to what follows the last pass of a step: what remains of the reductions.
  void reduce(int entry) { reduced_.push_back(pool_[static_cast<std::size_t>(entry)]); }
  /// Adds an entry that brings the changed weights of a unit to the ranks that use them. It follows the
  /// unit's update, and the setting of its weights from outside.
  void publish(int unit, int entry) {
    published_[static_cast<std::size_t>(unit)].push_back(pool_[static_cast<std::size_t>(entry)]);
  }

  const std::vector<Entry>& reduced() const { return reduced_; }
  const std::vector<Entry>& published(int unit) const { return published_[static_cast<std::size_t>(unit)]; }

 private:
  static void insert(Pass& pass, std::size_t index, bool is_after, int entry) {
    pass.insert({.index = static_cast<std::uint32_t>(index), .is_after = is_after, .entry = entry});
  }

  const ParameterTable& table_;
  const Coordinates& coordinates_;
  DType compute_type_, gradient_type_;
  Storages& storages_;
  std::vector<Entry>& pool_;
  std::map<int, int> awaits_;  // by call
  std::vector<Entry> reduced_;
  std::vector<std::vector<Entry>> published_;  // by unit
};

/// An exchange as decks and the planner see it. `values` contains at least section parallel.
struct ExchangeKind {
  const char* name;
  const char* doc;
  std::span<const ParamSpec> params;  ///< of section parallel, except those that an earlier kind declares
  bool shards;                        ///< the ranks along Axis::shard hold different parts
  /// Places the storages of the units, inserts the entries, and returns what this rank holds.
  Holding (*lower)(const ParamValues& values, Lowering& lowering);
};

/// All exchanges, the default first.
std::span<const ExchangeKind* const> exchanges();

}  // namespace mylos
