// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/exchange/zero_layout.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/memory/arena.hpp"

namespace mylos {

namespace {

/// Places for values that live during part of a micro-batch and recur in every micro-batch.
class RepeatingPlaces {
 public:
  /// Call in the order of first use within a micro-batch; `ticks` may be set until `solve`.
  std::size_t add(int micro_batch, std::int64_t elements) {
    std::vector<std::size_t>& same = by_micro_batch_[micro_batch];
    same.push_back(items_.size());
    items_.push_back({.micro_batch = micro_batch, .number = same.size() - 1, .elements = elements});
    return items_.size() - 1;
  }
  LiveInterval& ticks(std::size_t item) { return items_[item].ticks; }

  /// Sets all offsets and returns the total number of elements. Later micro-batches use the places of the
  /// third, so these are reserved for the values of both the third and the fourth.
  std::int64_t solve() {
    constexpr int model = 2;
    ArenaPlan arena;
    std::map<std::size_t, std::vector<LiveInterval>> live;  // by item that has a place of its own
    for (std::size_t i = 0; i < items_.size(); ++i) {
      Item& item = items_[i];
      item.like = item.micro_batch <= model ? i : by_micro_batch_[model].at(item.number);
      require(item.elements == items_[item.like].elements, "micro-batches use the same units");
      if (item.micro_batch <= model + 1) live[item.like].push_back(item.ticks);
    }
    std::map<std::size_t, int> buffers;
    for (auto& [item, ticks] : live)
      buffers[item] = arena.add(static_cast<std::size_t>(items_[item].elements), std::move(ticks));
    arena.solve();
    for (Item& item : items_) item.offset = static_cast<std::int64_t>(arena.offset(buffers[item.like]));
    return static_cast<std::int64_t>(arena.bytes());
  }
  std::int64_t offset(std::size_t item) const { return items_[item].offset; }

 private:
  struct Item {
    int micro_batch = 0;
    std::size_t number = 0;  // within the micro-batch
    std::int64_t elements = 0;
    LiveInterval ticks{};
    std::size_t like = 0;
    std::int64_t offset = 0;
  };
  std::vector<Item> items_;
  std::map<int, std::vector<std::size_t>> by_micro_batch_;
};

/// Plans a sequence: follows its events as the exchange will, places weights and gradients, and lists the
/// calls.
class SequencePlanner {
 public:
  SequencePlanner(const ZeroConfig& config, const ExchangeScope& scope, ZeroLayout& layout,
                  const UnitEventList& list)
      : config_(config), scope_(scope), layout_(layout), events_(list.events), repeated_(list.repeated) {}

  ZeroLayout::Sequence plan() {
    if (config_.divides_weights()) place_weights();
    run();
    layout_.full_gradient_size = std::max(layout_.full_gradient_size, gradients_.solve());
    for (std::size_t i = 0; i < gradient_items_.size(); ++i) {
      if (const std::int64_t item = gradient_items_[i]; item >= 0)
        sequence_.gradients_of[i] = gradients_.offset(static_cast<std::size_t>(item));
    }
    return std::move(sequence_);
  }
  std::vector<PlannedCall> calls() { return std::move(calls_); }

 private:
  struct Reduction {
    int unit;
    std::size_t item;
    std::size_t call;
    bool is_last;
  };

  /// A tick is a pass through a block that reads weights. Gathered weights take memory from `prefetch` ticks
  /// before their first use, when the gather starts, until their last use. Weights that are used again within
  /// `prefetch` ticks stay; without `reshard`, so do weights that the same micro-batch uses again.
  void place_weights() {
    struct Use {
      int unit;
      std::int64_t first, last;  // ticks
      int micro_batch;
      std::size_t item;
    };
    std::vector<Use> uses;
    std::map<int, std::size_t> newest;  // use by unit
    std::vector<std::size_t> starts;    // first acquisition of each tick
    RepeatingPlaces places;
    std::size_t acquisition = 0;
    int visit = -1;
    for (const UnitEvent& event : events_) {
      const auto* acquired = std::get_if<UnitAcquisition>(&event);
      if (acquired == nullptr) continue;
      const std::size_t number = acquisition++;
      if (!acquired->access.reads_weights) continue;
      if (acquired->visit != visit) starts.push_back(number);
      visit = acquired->visit;
      const std::int64_t tick = std::ssize(starts) - 1;
      const int unit = acquired->access.unit;
      const auto found = newest.find(unit);
      const auto stays = [&](const Use& use) {
        const bool is_of_micro_batch = acquired->micro_batch >= 0 && use.micro_batch == acquired->micro_batch;
        return tick - use.last <= config_.prefetch || (!config_.reshard && is_of_micro_batch);
      };
      if (found == newest.end() || !stays(uses[found->second])) {
        newest[unit] = uses.size();
        uses.push_back({unit, tick, tick, acquired->micro_batch,
                        places.add(std::max(acquired->micro_batch, 0), layout_.padded(unit))});
      }
      uses[newest[unit]].last = tick;
      uses[newest[unit]].micro_batch = acquired->micro_batch;
    }
    for (const Use& use : uses)
      places.ticks(use.item) = {std::max<std::int64_t>(use.first - config_.prefetch, 0), use.last};
    layout_.gathered_size = std::max(layout_.gathered_size, places.solve());
    for (const Use& use : uses) {
      const auto first = static_cast<std::size_t>(places.ticks(use.item).first);
      sequence_.gathers.push_back(
          {.unit = use.unit, .offset = places.offset(use.item), .start = starts[first]});
    }
  }

  void run() {
    sequence_.acquisitions.times = sequence_.completions.times = repeated_.times;
    for (std::size_t i = 0; i < events_.size(); ++i) {
      if (i == repeated_.begin) mark(&Repetition::begin);
      if (i == repeated_.end) mark(&Repetition::end);
      times_ = i >= repeated_.begin && i < repeated_.end ? repeated_.times : 1;
      if (const auto* acquired = std::get_if<UnitAcquisition>(&events_[i])) {
        acquire(*acquired);
      } else {
        complete(std::get<GradientCompletion>(events_[i]));
      }
    }
    finish_reduction();
    for (const std::size_t call : summing_) calls_[call].until = calls_.size();
  }

  /// Puts the beginning or the end of the repetition before the next event.
  void mark(std::size_t Repetition::*edge) {
    sequence_.acquisitions.*edge = gradient_items_.size();
    sequence_.completions.*edge = sequence_.is_last.size();
  }

  void acquire(const UnitAcquisition& acquired) {
    const std::size_t number = gradient_items_.size();
    if (config_.divides_weights() && acquired.access.reads_weights) {
      for (; next_gather_ < sequence_.gathers.size() && sequence_.gathers[next_gather_].start <= number;
           ++next_gather_) {
        const int unit = sequence_.gathers[next_gather_].unit;
        gather_calls_[unit] =
            call({Axis::shard}, CommOperation::all_gather, layout_.unit(unit).part, scope_.compute_type);
      }
      PlannedCall& gather = calls_[gather_calls_.at(acquired.access.unit)];
      if (gather.until == 0) gather.until = calls_.size();
    }
    const bool has_item = acquired.access.adds_gradients && config_.divides_gradients();
    gradient_items_.push_back(has_item ? gradient_item(acquired) : -1);
    sequence_.gradients_of.push_back(-1);
  }

  /// A gradient begins after the unit's previous reduction has been waited for.
  std::int64_t gradient_item(const UnitAcquisition& acquired) {
    const int unit = acquired.access.unit;
    if (const auto held = held_.find(unit); held != held_.end())
      return static_cast<std::int64_t>(held->second);
    if (reducing_ && reducing_->unit == unit) finish_reduction();
    const std::size_t item = gradients_.add(std::max(acquired.micro_batch, 0), layout_.padded(unit));
    gradients_.ticks(item).first = std::ssize(gradient_items_);
    held_[unit] = item;
    return static_cast<std::int64_t>(item);
  }

  void complete(const GradientCompletion& completion) {
    if (!config_.divides_gradients() && !completion.is_last) return;
    sequence_.is_last.push_back(completion.is_last);
    const int unit = completion.range.unit;
    if (completion.range.begin != layout_.unit(unit).last_completed) return;
    const std::size_t made =
        call({Axis::shard}, CommOperation::reduce_scatter, layout_.unit(unit).part, scope_.gradient_type);
    const std::size_t item = config_.divides_gradients() ? held_.at(unit) : 0;
    held_.erase(unit);
    finish_reduction();
    reducing_ = Reduction{unit, item, made, completion.is_last};
  }

  /// Plans the wait for the reduction under way, if there is one, and the sum over the replicas that may
  /// follow.
  void finish_reduction() {
    if (!reducing_) return;
    calls_[reducing_->call].until = calls_.size();
    if (config_.divides_gradients()) gradients_.ticks(reducing_->item).last = std::ssize(gradient_items_) - 1;
    if (reducing_->is_last && scope_.coordinates.extent(replica_axes) > 1)
      summing_.push_back(call(replica_axes, CommOperation::all_reduce, layout_.unit(reducing_->unit).part,
                              scope_.gradient_type));
    reducing_.reset();
  }

  std::size_t call(AxisSet group, CommOperation operation, std::int64_t count, DType dtype) {
    calls_.push_back(
        {.group = group, .operation = operation, .count = count, .dtype = dtype, .times = times_});
    return calls_.size() - 1;
  }

  const ZeroConfig& config_;
  const ExchangeScope& scope_;
  ZeroLayout& layout_;
  const std::vector<UnitEvent>& events_;
  const Repetition& repeated_;
  std::size_t times_ = 1;  // of the current calls
  ZeroLayout::Sequence sequence_;
  std::vector<PlannedCall> calls_;
  std::map<int, std::size_t> gather_calls_;  // the latest by unit
  std::size_t next_gather_ = 0;
  RepeatingPlaces gradients_;
  std::vector<std::int64_t> gradient_items_;  // by acquisition
  std::map<int, std::size_t> held_;           // whole gradients before their reduction: item by unit
  std::optional<Reduction> reducing_;         // under way
  std::vector<std::size_t> summing_;          // calls over the replicas
};

std::vector<GradientRange> gaps_of(const ParameterTable& table, int unit) {
  std::vector<GradientRange> gaps;
  std::int64_t end = 0;
  for (const int index : table.unit(unit).parameters) {
    const Parameter& parameter = table.parameters()[static_cast<std::size_t>(index)];
    if (parameter.offset > end) gaps.push_back({unit, end, parameter.offset});
    end = parameter.offset + parameter.padded_size();
  }
  if (table.unit(unit).size > end) gaps.push_back({unit, end, table.unit(unit).size});
  return gaps;
}

}  // namespace

ZeroLayout::ZeroLayout(const ZeroConfig& config, const ExchangeScope& scope)
    : ranks(scope.coordinates.extent(Axis::shard)), rank(scope.coordinates.index(Axis::shard)) {
  const ParameterTable& table = scope.table;
  for (int index = 0; index < table.num_units(); ++index) {
    constexpr std::int64_t alignment = ParameterTable::alignment;
    const std::int64_t grain = alignment * ranks;
    const std::int64_t part = (table.unit(index).size + grain - 1) / grain * alignment;
    units.push_back({.part = part, .whole = whole_size, .own = own_size, .gaps = gaps_of(table, index)});
    whole_size += part * ranks;
    own_size += part;
  }
  for (const GradientRange& range : completions_of(scope.events)) {
    has_gradients = true;
    units[static_cast<std::size_t>(range.unit)].last_completed = range.begin;
  }
  weight_size = config.divides_weights() ? own_size : whole_size;
  if (has_gradients) gradient_size = config.divides_gradients() ? own_size : whole_size;
  for (std::size_t i = 0; i < num_unit_sequences; ++i) {
    SequencePlanner planner(config, scope, *this, scope.events[i]);
    sequences[i] = planner.plan();
    if (i == static_cast<std::size_t>(UnitSequence::step)) calls = planner.calls();
  }
  if (ranks == 1 || config.divides_weights() || !has_gradients) return;
  const std::size_t first = calls.size();
  for (const UnitPlace& place : units) {
    calls.push_back({.group = {Axis::shard},
                     .operation = CommOperation::all_gather,
                     .count = place.part,
                     .dtype = scope.compute_type,
                     .until = first + units.size()});
  }
}

UnitPart ZeroLayout::owned(const ParameterTable& table, int index) const {
  const std::int64_t begin = std::min(rank * unit(index).part, table.unit(index).size);
  const std::int64_t end = std::min(begin + unit(index).part, table.unit(index).size);
  return {index, begin, end - begin};
}

std::vector<UnitPart> ZeroLayout::owned(const ParameterTable& table) const {
  std::vector<UnitPart> parts;
  for (int index = 0; index < table.num_units(); ++index) parts.push_back(owned(table, index));
  return parts;
}

}  // namespace mylos
