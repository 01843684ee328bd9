// SPDX-License-Identifier: BSD-3-Clause
// zero1, zero2, zero3: data parallelism whose ranks along Axis::shard divide the optimizer's states and, from
// zero2 on, the gradients and, with zero3, the weights (Rajbhandari et al., "ZeRO", SC 2020, section 5; Zhao
// et al., "PyTorch FSDP", VLDB 2023, for units and prefetching).
//
// A unit that every rank holds whole is also divided along the expert and context axes, whose ranks hold
// terms of its gradient too; a unit that is split along one of these axes, along the others only. Each rank
// owns a part of every unit, which is padded to a multiple of ranks x ParameterTable::alignment; the last
// parts may lie partly or wholly in the padding. A unit's gradient is reduce-scattered when the step's last
// backward pass has completed it or, if gradients are divided, after every backward pass that completes it. A
// divided gradient exists as a whole only from its first contribution until that reduction. After a unit's
// last reduction of the step, the replicas sum the gradients of the parts that they own. Undivided weights
// are gathered after the update; divided weights before they are used.
#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "parallel/exchange/exchange.hpp"

namespace mylos {

namespace {

constexpr ParamSpec zero1_params[] = {
    text_param(
        "parallel", "shard", "0",
        "Size of the groups of neighbours along the data axis whose ranks divide the states, gradients or "
        "weights (see exchange); node takes the ranks of a node, 0 all ranks of the data axis. If there "
        "are several groups, each holds a whole copy, and gradients are also summed across the groups "
        "(hybrid sharding).")
        .evaluated_with("0"),
};
constexpr ParamSpec zero3_params[] = {
    integer_param("parallel", "prefetch", "1", 0, 1000, "blocks",
                  "Number of blocks by which zero3 gathers weights ahead of their use.")
        .changes(Effect::speed),
    boolean_param("parallel", "reshard", "true",
                  "zero3 frees a block's weights after its forward pass and gathers them again for the "
                  "backward pass; false keeps them for it.")
        .changes(Effect::speed),
};

/// What is divided; each stage includes the earlier ones.
enum class ZeroStage : std::uint8_t { optimizer_states = 1, gradients, parameters };

/// The ranks along these axes divide what their gradients are sums of, if they all hold it whole.
constexpr AxisSet dividing_axes = loss_axes.without({Axis::replicate});

class Zero {
 public:
  Zero(ZeroStage stage, Lowering& lowering)
      : divides_gradients_(stage >= ZeroStage::gradients),
        divides_weights_(stage >= ZeroStage::parameters),
        lowering_(lowering),
        table_(lowering.table()) {}

  Holding hold() {
    // The units that the same ranks divide lie together, in memory that these ranks may share.
    std::map<AxisSet, std::int64_t> own, whole;                 // elements
    std::vector<std::pair<std::int64_t, std::int64_t>> begins;  // of the unit, in both
    for (int unit = 0; unit < table_.num_units(); ++unit) {
      const AxisSet axes = axes_of(unit);
      const std::int64_t grain = ParameterTable::alignment * ranks_of(unit);
      const std::int64_t part = (table_.unit(unit).size + grain - 1) / grain * ParameterTable::alignment;
      parts_.push_back(part);
      begins.emplace_back(own[axes], whole[axes]);
      own[axes] += part;
      whole[axes] += part * ranks_of(unit);
    }
    std::map<AxisSet, int> weights, gradients;  // storages
    for (const auto& [axes, elements] : own) {
      weights[axes] = lowering_.keep("zero: weights", MemoryCategory::parameters,
                                     divides_weights_ ? elements : whole[axes], lowering_.compute_type(),
                                     divides_weights_ ? AxisSet() : axes);
    }
    for (const auto& [axes, elements] : own) {
      if (!lowering_.has_gradients()) continue;
      gradients[axes] = lowering_.keep("zero: gradients", MemoryCategory::gradients,
                                       divides_gradients_ ? elements : whole[axes], lowering_.gradient_type(),
                                       divides_gradients_ ? AxisSet() : axes);
    }
    for (int unit = 0; unit < table_.num_units(); ++unit) {
      const std::int64_t part = parts_[static_cast<std::size_t>(unit)];
      const std::int64_t size = table_.unit(unit).size;
      const std::int64_t first = std::min(rank_of(unit) * part, size);
      const auto [own_begin, whole_begin] = begins[static_cast<std::size_t>(unit)];
      HeldUnit& held = holding_.units.emplace_back();
      held.owned = {unit, first, std::min(first + part, size) - first};
      held.begin = rank_of(unit) * part;
      held.divided_axes = axes_of(unit);
      held.weights = place(unit, Storages::weights_storage(unit), weights[axes_of(unit)],
                           divides_weights_ ? std::nullopt : std::optional(whole_begin), own_begin,
                           lowering_.compute_type(), MemoryCategory::gathered_weights);
      if (lowering_.has_gradients())
        held.gradient = place(unit, Storages::gradients_storage(unit), gradients[axes_of(unit)],
                              divides_gradients_ ? std::nullopt : std::optional(whole_begin), own_begin,
                              lowering_.gradient_type(), MemoryCategory::full_gradients);
    }
    holding_.stored = stored_shares(table_, holding_.units, lowering_.coordinates());
    return holding_;
  }

  /// Gathers each unit's weights after its update.
  void publish_weights() {
    if (divides_weights_) return;
    for (int unit = 0; unit < table_.num_units(); ++unit) {
      if (ranks_of(unit) == 1) continue;
      lowering_.publish(unit,
                        lowering_.add(AllGatherCall{held(unit).weights, whole_weights(unit), axes_of(unit)}));
    }
  }

  /// Gathers divided weights before their use. Time is counted in visits, the passes through a block that
  /// read weights. A gather starts `prefetch` visits before the first use, or at the first visit. Weights
  /// that are used again within `prefetch` visits stay; without `reshard`, so do weights that the same
  /// micro-batch uses again.
  void gather_weights(const std::vector<Pass*>& passes, std::int64_t prefetch, bool reshard) {
    struct Visit {
      Pass* pass;
      std::size_t index;
    };
    struct Stay {  // of a unit's weights in memory
      std::int64_t last;
      int micro_batch;
    };
    std::vector<Visit> visits;
    std::map<int, Stay> newest;                        // by unit
    std::vector<std::pair<int, std::int64_t>> firsts;  // unit and visit of each first use
    for (Pass* pass : passes) {
      int block = -1;
      for (const UnitUse& use : pass->program->uses) {
        if (!use.reads_weights) continue;
        if (use.visit != block) visits.push_back({pass, use.first});
        block = use.visit;
        const std::int64_t now = std::ssize(visits) - 1;
        const auto found = newest.find(use.unit);
        const auto stays = [&](const Stay& stay) {
          const bool is_of_micro_batch = pass->micro_batch >= 0 && stay.micro_batch == pass->micro_batch;
          return now - stay.last <= prefetch || (!reshard && is_of_micro_batch);
        };
        if (found == newest.end() || !stays(found->second)) firsts.emplace_back(use.unit, now);
        newest[use.unit] = {now, pass->micro_batch};
      }
    }
    for (const auto& [unit, visit] : firsts) {
      const Visit& start = visits[static_cast<std::size_t>(std::max<std::int64_t>(visit - prefetch, 0))];
      Lowering::before(*start.pass, start.index, gather_of(unit));
    }
  }

  void reduce_gradients() {
    std::vector<std::int64_t> last_completed(table_.units().size(), -1);  // beginnings of ranges
    lowering_.for_each_completion([&](const Pass&, std::size_t, const GradientRange& range) {
      last_completed[static_cast<std::size_t>(range.unit)] = range.begin;
    });
    const auto num_units = table_.units().size();
    constexpr int nothing = -2;
    std::vector<int> begun_by(num_units, nothing);  // micro-batch that the whole gradient is of
    std::vector<bool> is_summed(num_units);         // the part holds the sum of earlier micro-batches
    for (Pass* pass : lowering_.step) {
      if (!divides_gradients_ && !pass->is_last) continue;
      auto use = pass->program->uses.begin();
      for (std::size_t i = 0; i < pass->program->entries.size(); ++i) {
        for (; use != pass->program->uses.end() && use->first == i; ++use) {
          if (!divides_gradients_ || !use->adds_gradients) continue;
          int& owner = begun_by[static_cast<std::size_t>(use->unit)];
          if (owner == pass->micro_batch) continue;
          if (owner != nothing) {
            fail(ExitCode::usage,
                 "gradients can be divided (zero2, zero3) only if the schedule completes those of a "
                 "micro-batch before it begins those of the next");
          }
          owner = pass->micro_batch;
          for (const int fill : fills_of(use->unit)) Lowering::before(*pass, i, fill);
        }
        for (const GradientRange& range : pass->program->entries[i].completes) {
          const auto unit = static_cast<std::size_t>(range.unit);
          if (range.begin != last_completed[unit]) continue;
          const auto queue = [&](int entry) { Lowering::after(*pass, i, entry); };
          if (is_summed[unit]) queue(sum_of(range.unit));
          is_summed[unit] = divides_gradients_;
          begun_by[unit] = nothing;
          const int reduction = reduction_of(range.unit);
          queue(reduction);
          finish_reduction(queue);
          reducing_ = Reduction{range.unit, pass->is_last, reduction};
        }
      }
    }
    const auto queue = [&](int entry) { lowering_.reduce(entry); };
    finish_reduction(queue);
    for (const int sum : replica_sums_) queue(lowering_.await(sum));
  }

 private:
  struct Reduction {
    int unit;
    bool is_last;
    int call;
  };
  using Numbers = std::map<int, int>;  // of entries, by unit

  const HeldUnit& held(int unit) const { return holding_.units[static_cast<std::size_t>(unit)]; }
  /// The ranks that divide a unit.
  AxisSet axes_of(int unit) const { return table_.term_axes(unit).common(dividing_axes); }
  int ranks_of(int unit) const { return lowering_.coordinates().extent(axes_of(unit)); }
  int rank_of(int unit) const { return lowering_.coordinates().index(axes_of(unit)); }
  std::int64_t padded(int unit) const { return parts_[static_cast<std::size_t>(unit)] * ranks_of(unit); }
  TensorRef whole_weights(int unit) const {
    return Storages::flat(Storages::weights_storage(unit), 0, lowering_.compute_type(), padded(unit));
  }
  TensorRef whole_gradient(int unit) const {
    return Storages::flat(Storages::gradients_storage(unit), 0, lowering_.gradient_type(), padded(unit));
  }

  /// Places a unit's weights or gradients in the kept storage: whole, from element `whole_begin`, or this
  /// rank's part, from element `own_begin`, while the whole has memory only if it has a value. Returns the
  /// part.
  TensorRef place(int unit, int storage, int kept, std::optional<std::int64_t> whole_begin,
                  std::int64_t own_begin, DType dtype, MemoryCategory category) {
    const auto bytes = static_cast<std::int64_t>(size_of(dtype));
    const std::int64_t part = parts_[static_cast<std::size_t>(unit)];
    lowering_.storages().at(storage).bytes = static_cast<std::size_t>(padded(unit) * bytes);
    if (whole_begin) {
      lowering_.put_within(storage, kept, *whole_begin, dtype);
      return Storages::flat(storage, rank_of(unit) * part * bytes, dtype, part);
    }
    lowering_.put_in_arena(storage, category, axes_of(unit));
    return Storages::flat(kept, own_begin * bytes, dtype, part);
  }

  int gather_of(int unit) {
    if (!gathers_.contains(unit))
      gathers_[unit] = lowering_.add(AllGatherCall{held(unit).weights, whole_weights(unit), axes_of(unit)});
    return gathers_[unit];
  }
  int reduction_of(int unit) {
    if (!reductions_.contains(unit))
      reductions_[unit] =
          lowering_.add(ReduceScatterCall{whole_gradient(unit), held(unit).gradient, axes_of(unit)});
    return reductions_[unit];
  }
  /// Adds the sum of earlier micro-batches to this rank's part of the whole gradient.
  int sum_of(int unit) {
    if (!sums_.contains(unit)) {
      const TensorRef& sum = held(unit).gradient;
      const TensorRef terms = whole_gradient(unit).flat(rank_of(unit) * sum.size(), sum.size());
      sums_[unit] = lowering_.add(DropoutAdd{.x = sum, .residual = terms, .y = terms});
    }
    return sums_[unit];
  }
  /// Clear the gaps between and after the parameters, which nothing else writes.
  const std::vector<int>& fills_of(int unit) {
    const auto [found, is_new] = fills_.try_emplace(unit);
    if (!is_new) return found->second;
    std::int64_t end = 0;
    const auto fill_until = [&](std::int64_t begin) {
      if (begin > end)
        found->second.push_back(
            lowering_.add(Fill{.y = whole_gradient(unit).flat(end, begin - end), .value = 0.0F}));
    };
    for (const int index : table_.unit(unit).parameters) {
      const Parameter& parameter = table_.parameters()[static_cast<std::size_t>(index)];
      fill_until(parameter.offset);
      end = parameter.offset + parameter.padded_size();
    }
    fill_until(table_.unit(unit).size);
    return found->second;
  }

  /// Waits for the reduction under way, so that at most two whole gradients exist; after a unit's last one of
  /// the step, starts the sum over the replicas.
  void finish_reduction(const auto& queue) {
    if (!reducing_) return;
    queue(lowering_.await(reducing_->call));
    const AxisSet replicas = table_.term_axes(reducing_->unit).without(dividing_axes);
    if (reducing_->is_last && lowering_.coordinates().extent(replicas) > 1) {
      replica_sums_.push_back(
          lowering_.add(AllReduceCall{.buffer = held(reducing_->unit).gradient, .group = replicas}));
      queue(replica_sums_.back());
    }
    reducing_.reset();
  }

  bool divides_gradients_, divides_weights_;
  Lowering& lowering_;
  const ParameterTable& table_;
  std::vector<std::int64_t> parts_;  // elements of each rank's part, by unit
  Holding holding_;
  Numbers gathers_, reductions_, sums_;
  std::map<int, std::vector<int>> fills_;  // by unit
  std::optional<Reduction> reducing_;      // under way
  std::vector<int> replica_sums_;
};

template <ZeroStage stage>
Holding lower(const ParamValues& values, Lowering& lowering) {
  Zero zero(stage, lowering);
  Holding holding = zero.hold();
  zero.publish_weights();
  if constexpr (stage == ZeroStage::parameters) {
    const std::int64_t prefetch = values.integer("parallel.prefetch");
    const bool reshard = values.boolean("parallel.reshard");
    std::vector<std::vector<Pass*>> sequences = {lowering.step};
    for (Pass* pass : lowering.others) sequences.push_back({pass});
    for (const std::vector<Pass*>& passes : sequences) zero.gather_weights(passes, prefetch, reshard);
  }
  if (lowering.has_gradients()) zero.reduce_gradients();
  return holding;
}

}  // namespace

extern constinit const ExchangeKind zero1_exchange{
    .name = "zero1",
    .doc = "optimizer states are divided among the ranks",
    .params = zero1_params,
    .shards = true,
    .lower = lower<ZeroStage::optimizer_states>,
};
extern constinit const ExchangeKind zero2_exchange{
    .name = "zero2",
    .doc = "optimizer states and gradients are divided",
    .params = {},
    .shards = true,
    .lower = lower<ZeroStage::gradients>,
};
extern constinit const ExchangeKind zero3_exchange{
    .name = "zero3",
    .doc = "optimizer states, gradients and weights are divided",
    .params = zero3_params,
    .shards = true,
    .lower = lower<ZeroStage::parameters>,
};

}  // namespace mylos
