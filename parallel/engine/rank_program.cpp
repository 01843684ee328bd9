// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/engine/rank_program.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "parallel/schedule/messages.hpp"

namespace mylos {

namespace {

/// The ranks of those that sum their squares that own the same elements of a parameter.
int owners_of(const Parameter& parameter, const Holding& holding, const Coordinates& coordinates) {
  int ranks = 1;
  for (int i = 0; i < num_axes; ++i) {
    const auto axis = static_cast<Axis>(i);
    const HeldUnit& held = holding.units[static_cast<std::size_t>(parameter.unit)];
    if (!holding.norm_axes.contains(axis) || held.divided_axes.contains(axis)) continue;
    if (axis == Axis::pipeline) {
      if (parameter.is_on_both_ends()) ranks *= coordinates.extent(Axis::embedding);
      continue;
    }
    if (!parameter.is_split(axis)) ranks *= coordinates.extent(axis);
  }
  return ranks;
}

/// Elements [begin, begin + count) of an owned part.
struct PartRange {
  std::size_t part = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

/// The ranges of which each rank along `axis` still holds only a term of the gradient after the exchange's
/// reduction. Neighbouring ranges are joined.
std::vector<PartRange> remaining_terms(const ParameterTable& table, const std::vector<UnitPart>& owned,
                                       Axis axis) {
  std::vector<PartRange> ranges;
  for (std::size_t part = 0; part < owned.size(); ++part) {
    bool is_joined = false;
    for (const Piece& piece : pieces_of(table, owned[part])) {
      const bool has_terms = piece.parameter.along(axis).kind == Placement::Kind::summed;
      if (has_terms && !is_joined) ranges.push_back({.part = part, .begin = piece.offset});
      if (has_terms) ranges.back().count = piece.offset + piece.count - ranges.back().begin;
      is_joined = has_terms;
    }
  }
  return ranges;
}

struct NormRange {
  PartRange range;
  int copies = 1;  ///< number of ranks that add the squares of the same elements
};

/// All owned parts, divided where the number of copies changes.
std::vector<NormRange> norm_ranges(const ParameterTable& table, const Holding& holding,
                                   const Coordinates& coordinates) {
  std::vector<NormRange> ranges;
  const std::vector<UnitPart> owned = holding.owned();
  for (std::size_t i = 0; i < owned.size(); ++i) {
    const std::vector<Piece> pieces = pieces_of(table, owned[i]);
    const auto copies_of = [&](const Piece& piece) {
      return owners_of(piece.parameter, holding, coordinates);
    };
    ranges.push_back({.range = {.part = i, .begin = 0, .count = owned[i].count},
                      .copies = pieces.empty() ? 1 : copies_of(pieces.front())});
    for (const Piece& piece : pieces) {
      PartRange& last = ranges.back().range;
      const int copies = copies_of(piece);
      if (ranges.back().copies == copies) continue;
      const std::int64_t end = last.begin + last.count;
      last.count = piece.offset - last.begin;  // the padding between parameters is zero
      ranges.push_back(
          {.range = {.part = i, .begin = piece.offset, .count = end - piece.offset}, .copies = copies});
    }
  }
  return ranges;
}

/// The guard's configuration of one rank: the factor of the loss.
GuardConfig guard_config(const StepConfig& config, const Holding& holding, const Coordinates& coordinates) {
  GuardConfig guard = config.guard;
  // Only the stage with the last chunk computes the loss. Of its ranks, those that differ only along axes
  // outside `loss_axes` compute the same terms.
  const AxisSet same = holding.norm_axes.without(loss_axes).without({Axis::pipeline});
  // The loss is the mean over the tokens of the ranks whose losses are summed: one of so many groups.
  const int groups = coordinates.extent(loss_axes) / coordinates.extent(loss_axes.common(holding.norm_axes));
  guard.loss_factor =
      config.per_token() * static_cast<float>(groups) / static_cast<float>(coordinates.extent(same));
  return guard;
}

StepScalars* placeholder() {
  static StepScalars scalars;
  return &scalars;
}

/// The storage that a message of a step carries.
int message_of(const Action& action, const ModelPrograms& programs) {
  const ChunkPrograms& chunk = programs.chunks[static_cast<std::size_t>(action.chunk)];
  if (action.kind == ActionKind::send_forward) return chunk.output;
  if (action.kind == ActionKind::receive_forward) return chunk.input;
  return action.kind == ActionKind::send_backward ? chunk.input_gradient : chunk.output_gradient;
}

Entry entry_of_message(const Action& action, int storage, const Storages& storages, AxisSet stages) {
  require(storage >= 0, "a message carries the residual stream or its gradient between chunks");
  const auto bytes = static_cast<std::int64_t>(storages.at(storage).bytes);
  const TensorRef buffer = Storages::flat(storage, 0, DType::uint8, bytes);
  Entry entry;
  if (is_sent(action.kind)) {
    entry.operation = SendCall{.buffer = buffer, .group = stages, .peer = action.peer};
  } else {
    entry.operation = ReceiveCall{.buffer = buffer, .group = stages, .peer = action.peer};
  }
  entry.where = std::source_location::current();
  return entry;
}

/// The schedules of stages that pass `micro_batches` forward through all chunks.
std::vector<Schedule> forward_schedules(const std::vector<int>& stages_of_chunks, int stages,
                                        int micro_batches) {
  std::vector<Schedule> schedules(static_cast<std::size_t>(stages));
  for (int chunk = 0; chunk < std::ssize(stages_of_chunks); ++chunk) {
    Schedule& own = schedules[static_cast<std::size_t>(stages_of_chunks[static_cast<std::size_t>(chunk)])];
    for (int m = 0; m < micro_batches; ++m) own.actions.push_back({ActionKind::forward, m, chunk});
  }
  for (Schedule& own : schedules) {
    own.micro_batches = micro_batches;
    own.chunks = static_cast<int>(stages_of_chunks.size());
  }
  return stages == 1 ? schedules : with_messages(schedules);
}

const Program& program_of(const Action& action, const ModelPrograms& programs) {
  const ChunkPrograms& chunk = programs.chunks[static_cast<std::size_t>(action.chunk)];
  if (action.kind == ActionKind::forward) return chunk.forward;
  return action.kind == ActionKind::backward_weight ? chunk.backward.back() : chunk.backward.front();
}

/// Inserts an Await of each call before the next entry that uses its result or changes its input, in
/// whichever pass that is.
class AwaitInserter {
 public:
  /// `gradients` is a storage of which there are two sets; -1 for none.
  AwaitInserter(const Storages& storages, std::vector<Entry>& pool, int gradients)
      : storages_(storages), pool_(pool), gradients_(gradients), touched_(storages.all().size()) {}

  /// Follows a pass on a slot of activations and a set of gradients. Calls that are awaited already are left
  /// as they are.
  void follow(Pass& pass, int slot, int set = 0) {
    set_ = set;
    std::vector<Insertion> inserted;
    auto next = pass.inserted.begin();
    for_each_entry(pass, pool_, [&](const Entry& entry, const EntryPlace& place) {
      Insertion insertion{.index = static_cast<std::uint32_t>(place.index)};
      if (place.is_inserted) insertion = *next++;
      slot_ = insertion.slot < 0 ? slot : insertion.slot;
      // The pool may grow and move.
      const Entry copy = place.is_inserted ? entry : Entry();
      const Entry& own = place.is_inserted ? copy : entry;
      if (const auto* await = std::get_if<Await>(&own.operation)) {
        if (!finish(*await, own)) return;  // awaited earlier
      } else {
        for (const int call : calls_used_by(own)) {
          insertion.entry = await_of_call(call);
          inserted.push_back(insertion);
          erase(call);
        }
        start(own);
      }
      if (place.is_inserted) inserted.push_back(*std::prev(next));
    });
    pass.inserted = std::move(inserted);
  }
  /// Whether anything but messages is under way.
  bool are_collectives_in_flight() const {
    return std::ranges::any_of(in_flight_,
                               [](const auto& numbered) { return !numbered.second.uses_activations; });
  }
  /// All calls have ended.
  void settle() {
    while (!in_flight_.empty()) erase(in_flight_.begin()->first);
  }
  /// Awaits, after everything else in the pass, the calls that use activations, of whatever slot.
  void await_activations_after(Pass& pass) {
    for (const auto& [number, call] : in_flight_) {
      if (call.uses_activations)
        pass.inserted.push_back(
            {.index = UINT32_MAX, .is_after = true, .entry = await_of_call(number), .slot = call.slot});
    }
  }
  /// The same before anything else in the pass.
  void await_activations(Pass& pass) {
    std::vector<int> due;
    for (const auto& [number, call] : in_flight_) {
      if (call.uses_activations) due.push_back(number);
    }
    for (const int call : due) {
      const Insertion await{.index = 0, .entry = await_of_call(call), .slot = in_flight_.at(call).slot};
      if (std::ranges::find(pass.inserted, await) == pass.inserted.end())
        pass.inserted.insert(pass.inserted.begin(), await);
    }
  }

 private:
  using Key = std::tuple<const void*, const void*, int>;  ///< input, output, slot of activations or -1
  struct InFlight {
    Entry call;
    Key key;
    bool uses_activations = false;
    int set = 0;                                             ///< of the gradients
    int slot = 0;                                            ///< of the activations
    std::vector<std::pair<Storages::Extent, bool>> extents;  ///< one per storage; whether the call writes it
  };
  struct Touch {
    std::int64_t begin = 0;
    int number = 0;
    bool writes = false;
  };

  bool is_of_slot(int storage) const { return storages_.at(storage).kind == StorageKind::activation; }
  Key key_of(const TensorRef& input, const TensorRef& output) const {
    const int storage = storages_.extent_of(output).storage;
    return {input.data, output.data, is_of_slot(storage) ? slot_ : storage == gradients_ ? set_ : -1};
  }

  /// The accesses of an entry, with whether they write; an operation that works in place changes the operand
  /// whose memory its result shares.
  void for_each_access(const Entry& entry, const auto& visit) const {
    std::visit(
        [&]<class Op>(const Op& op) {
          Op::operands(op, [&](const char*, const TensorRef& tensor, Access access, const auto&...) {
            if (tensor) visit(storages_.extent_of(tensor), access != Access::read);
          });
        },
        entry.operation);
    for_each_in_place(entry, [&](const TensorRef& /*result*/, const TensorRef& operand) {
      visit(storages_.extent_of(operand), true);
    });
  }

  std::vector<int> calls_used_by(const Entry& entry) const {
    std::vector<int> used;
    if (in_flight_.empty()) return used;
    for_each_access(entry, [&](const Storages::Extent& extent, bool writes) {
      // The calls in flight on a storage have separate extents, or read the same one.
      const auto& touched = touched_[static_cast<std::size_t>(extent.storage)];
      for (auto own = touched.upper_bound(extent.begin); own != touched.end(); ++own) {
        const Touch& touch = own->second;
        if (touch.begin >= extent.end) break;
        if (!writes && !touch.writes) continue;
        if (is_of_slot(extent.storage) && in_flight_.at(touch.number).slot != slot_) continue;
        if (extent.storage == gradients_ && in_flight_.at(touch.number).set != set_) continue;
        if (std::ranges::find(used, touch.number) == used.end()) used.push_back(touch.number);
      }
    });
    std::ranges::sort(used);
    return used;
  }

  void start(const Entry& entry) {
    const std::optional<GroupedCall> started = call_of(entry);
    if (!started) return;
    const int number = next_++;
    InFlight call{.call = entry,
                  .key = key_of(started->call.input, started->call.output),
                  .set = set_,
                  .slot = slot_,
                  .extents = {}};
    for_each_access(entry, [&](const Storages::Extent& extent, bool writes) {
      call.uses_activations = call.uses_activations || is_of_slot(extent.storage);
      for (auto& [own, is_written] : call.extents) {
        if (own.storage != extent.storage) continue;
        own = {own.storage, std::min(own.begin, extent.begin), std::max(own.end, extent.end)};
        is_written = is_written || writes;
        return;
      }
      call.extents.emplace_back(extent, writes);
    });
    for (const auto& [extent, writes] : call.extents)
      touched_[static_cast<std::size_t>(extent.storage)].emplace(extent.end,
                                                                 Touch{extent.begin, number, writes});
    by_key_[call.key] = number;
    started_.insert(call.key);
    in_flight_.emplace(number, std::move(call));
  }

  /// Ends the call that an Await waits for. Returns false if it has been awaited.
  bool finish(const Await& await, const Entry& entry) {
    const Key key = key_of(await.input, await.output);
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      erase(found->second);
      return true;
    }
    if (!started_.contains(key)) {
      fail(ExitCode::internal, "{}:{}: awaits a call that nothing starts", entry.where.file_name(),
           entry.where.line());
    }
    return false;
  }

  void erase(int number) {
    const InFlight& call = in_flight_.at(number);
    for (const auto& [extent, writes] : call.extents) {
      auto& touched = touched_[static_cast<std::size_t>(extent.storage)];
      const auto [begin, end] = touched.equal_range(extent.end);
      touched.erase(std::find_if(begin, end, [&](const auto& own) { return own.second.number == number; }));
    }
    by_key_.erase(call.key);
    in_flight_.erase(number);
  }

  int await_of_call(int number) {
    const auto& [input, output, slot] = in_flight_.at(number).key;
    const auto [found, is_new] = awaits_.try_emplace({input, output}, static_cast<int>(pool_.size()));
    if (is_new) pool_.push_back(await_of(in_flight_.at(number).call).value());
    return found->second;
  }

  const Storages& storages_;
  std::vector<Entry>& pool_;
  int gradients_;
  int set_ = 0;
  std::map<int, InFlight> in_flight_;                        // by number, in the order of the starts
  std::map<Key, int> by_key_;                                // their numbers
  std::vector<std::multimap<std::int64_t, Touch>> touched_;  // by storage and end: what they use
  std::set<Key> started_;
  std::map<std::pair<const void*, const void*>, int> awaits_;  // entries of the pool, by buffers
  int next_ = 0;
  int slot_ = 0;
};

/// The number of steps of the longest run whose sequence of slots differs from those of shorter runs. A round
/// is a number of steps after which the slots are back in the same state. The longest run contains two
/// rounds, so that the plan sees every value that lives from one round to the next.
std::int64_t num_distinct_runs(const Schedule& schedule) {
  if (schedule.ahead() == 0) return 1;
  SlotAssignment slots(schedule);
  std::vector<SlotAssignment::State> states;
  for (std::int64_t step = 1;; ++step) {
    schedule.for_each_action(step, step > 1, std::numeric_limits<std::int64_t>::max(),
                             [&](const Occurrence& occurrence) {
                               if (!is_of_micro_batch(schedule.actions[occurrence.index].kind)) return;
                               slots.of(occurrence);
                               slots.finish(occurrence);
                             });
    states.push_back(slots.state(step));
    const auto round = std::ranges::find(states, states.back());
    if (round + 1 != states.end()) return step + (states.end() - round - 1) + schedule.ahead();
  }
}

}  // namespace

std::optional<ListedCall> listed_call(const Entry& entry) {
  const std::optional<GroupedCall> started = call_of(entry);
  if (!started) return std::nullopt;
  const CommCall& call = started->call;
  return ListedCall{
      .group = started->group,
      .operation = call.operation,
      .count = std::min(call.input.size(), call.output.size()),
      .dtype = call.input.dtype,
      .payload_bytes = call.payload_bytes(),
      .received_bytes = static_cast<std::uint64_t>(std::accumulate(call.recv_counts.begin(),
                                                                   call.recv_counts.end(), std::int64_t{0})) *
                        size_of(call.output.dtype),
      .peer = call.peer};
}

RankProgram::RankProgram(const StepConfig& config, const Coordinates& coordinates, RankRole role)
    : RankProgram(
          config, coordinates, role,
          role == RankRole::inference
              ? Schedule()
              : std::move(config.parallel.schedules(
                    config.train.accumulation,
                    config.model.tied)[static_cast<std::size_t>(config.parallel.list_of(coordinates))])) {}

RankProgram::RankProgram(const StepConfig& config, const Coordinates& coordinates, RankRole role,
                         Schedule schedule)
    : config_(config),
      coordinates_(coordinates),
      schedule_(std::move(schedule)),
      table_(config.table(coordinates)),
      programs_(record_programs(config.model, table_, config.programs(schedule_, coordinates))),
      excerpt_(excerpt_of(schedule_)) {
  divide_updates();
  make_passes();
  Lowering lowering(table_, coordinates_, config.train.dtype, config.train.grad_dtype, programs_.storages,
                    pool_);
  excerpt_.schedule.for_each_action(1, false, 1, [&](const Occurrence& occurrence) {
    const ActionKind kind = excerpt_.schedule.actions[occurrence.index].kind;
    if (is_of_micro_batch(kind) && !is_message(kind)) lowering.step.push_back(&passes_[occurrence.index]);
  });
  for (Pass& pass : evaluation_.passes) lowering.others.push_back(&pass);
  for (ForwardList& list : cached_) {
    for (Pass& pass : list.passes) lowering.others.push_back(&pass);
  }
  holding_ = config.parallel.exchange->lower(config.parallel.values, lowering);
  for (int unit = 0; unit < table_.num_units(); ++unit)
    publish_.entries.insert(publish_.entries.end(), lowering.published(unit).begin(),
                            lowering.published(unit).end());
  // The stages of an asynchronous pipeline do not wait for each other.
  if (!schedule_.rules.empty()) holding_.norm_axes = holding_.norm_axes.without({Axis::pipeline});
  keep_versions(lowering);
  if (schedule_.gradient_sets > 1) keep_second_gradients();
  if (role == RankRole::training) {
    std::vector<SteppedUnit> stepped;
    for (const HeldUnit& held : holding_.units)
      stepped.push_back(
          {.part = held.owned, .divided_axes = held.divided_axes, .share = held.weights.size()});
    optimizer_.emplace(config.optimizer, table_, coordinates_, config.train.dtype, stepped,
                       programs_.storages);
    const auto keep = [&](const char* name, std::size_t bytes) {
      return programs_.storages.add({.name = name,
                                     .kind = StorageKind::kept,
                                     .bytes = bytes,
                                     .persists = true,
                                     .category = MemoryCategory::workspace});
    };
    guard_state_ = keep("guard's state", sizeof(GuardState) * updates_.size());
    step_memory_ = keep("step memory", step_memory_bytes() * updates_.size() *
                                           (1 + static_cast<std::size_t>(schedule_.ahead())));
    record_reduction(lowering);
    for (std::size_t number = 0; number < updates_.size(); ++number) record_update(lowering, number);
  }
  insert_awaits();
  places_.emplace(storages(), pool_, passages());
}

std::size_t RankProgram::num_statistics() const {
  return (storages().at(Storages::guard_input_storage).bytes - sizeof(GuardInput)) / sizeof(float);
}

std::size_t RankProgram::step_memory_bytes() const {
  const std::size_t bytes = sizeof(StepMemory) + num_statistics() * sizeof(float);
  return (bytes + alignof(StepMemory) - 1) / alignof(StepMemory) * alignof(StepMemory);
}

double RankProgram::flops_per_step() const {
  double flops = 0.0;
  for (std::size_t i = 0; i < schedule_.actions.size(); ++i) {
    if (!is_of_micro_batch(schedule_.actions[i].kind)) continue;
    for (const Entry& entry : pass_of(i).program->entries) flops += flops_of(entry);
  }
  return flops;
}

int RankProgram::update_of(int chunk) const {
  if (updates_.size() == 1) return 0;
  return static_cast<int>(std::ranges::find(updates_, chunk, &Update::chunk) - updates_.begin());
}

void RankProgram::divide_updates() {
  const std::set<int> held = schedule_.held_chunks();
  if (schedule_.rules.empty() || held.size() == 1) {
    Update& all = updates_.emplace_back();
    if (!schedule_.rules.empty()) all.chunk = *held.begin();
    for (int unit = 0; unit < table_.num_units(); ++unit) all.units.push_back(unit);
    return;
  }
  // The rank holds the whole model.
  for (const int chunk : held) {
    const std::set<int> units = config_.cuts().units(config_.model, {chunk});
    updates_.push_back({.chunk = chunk, .units = {units.begin(), units.end()}});
  }
}

void RankProgram::make_passes() {
  publication_.program = &publish_;
  const std::vector<ChunkPrograms>& chunks = programs_.chunks;
  struct Forward {
    const Program& program;
    int input, output;
  };
  // If a stage has several chunks, a micro-batch comes back to it, and others fill the time until then.
  const int stages = coordinates_.extent(Axis::pipeline);
  const int evaluated = std::ssize(chunks) > stages ? stages : 1;
  evaluation_ = forward_list(
      [&](std::size_t chunk) {
        return Forward{chunks[chunk].evaluate, chunks[chunk].input, chunks[chunk].output};
      },
      evaluated);
  for (std::size_t pass = 0; pass < config_.cache.passes.size(); ++pass) {
    cached_.push_back(forward_list(
        [&](std::size_t chunk) {
          const ChunkForward& own = chunks[chunk].cached[pass];
          return Forward{own.program, own.input, own.output};
        },
        1));
  }
  const Schedule& few = excerpt_.schedule;
  passes_.resize(few.actions.size());
  std::set<std::pair<int, bool>> contributed;  // by chunk and part of the backward pass
  few.for_each_action(1, false, 1, [&](const Occurrence& occurrence) {
    const Action& action = few.actions[occurrence.index];
    Pass& pass = passes_[occurrence.index];
    if (action.kind == ActionKind::reduce) {
      pass.program = &reduce_;
    } else if (action.kind == ActionKind::step) {
      pass.program = &updates_[static_cast<std::size_t>(update_of(action.chunk))].program;
    } else if (is_message(action.kind)) {
      pass.program = &messages_.emplace_back();
      messages_.back().entries.push_back(entry_of_message(
          action, message_of(action, programs_), programs_.storages, config_.parallel.message_axes()));
      pass.micro_batch = action.micro_batch;
    } else {
      pass.program = &program_of(action, programs_);
      pass.micro_batch = action.micro_batch;
      if (!is_backward(action.kind)) return;
      pass.is_first = contributed.emplace(action.chunk, action.kind == ActionKind::backward_weight).second;
      pass.is_last = few.is_last(occurrence.index);
    }
  });
}

template <class Of>
ForwardList RankProgram::forward_list(const Of& of, int micro_batches) {
  const std::vector<int> stages = config_.parallel.stages_of_chunks();
  const std::vector<Schedule> all =
      forward_schedules(stages, coordinates_.extent(Axis::pipeline), micro_batches);
  ForwardList list{.actions = all[static_cast<std::size_t>(coordinates_.index(Axis::pipeline))].actions,
                   .passes = {},
                   .micro_batches = micro_batches};
  // If the stages have unequal numbers of replicas, the first of each takes part.
  const bool is_uneven = coordinates_.is_uneven();
  if (is_uneven && coordinates_.index(Axis::replicate) > 0) list.actions.clear();
  for (Action& action : list.actions) {
    if (is_uneven && is_message(action.kind)) action.peer = config_.parallel.first_replica(action.peer);
    const auto& forward = of(static_cast<std::size_t>(action.chunk));
    Pass& pass = list.passes.emplace_back();
    pass.program = &forward.program;
    if (!is_message(action.kind)) continue;
    const int storage = is_sent(action.kind) ? forward.output : forward.input;
    pass.program = &messages_.emplace_back();
    messages_.back().entries.push_back(
        entry_of_message(action, storage, programs_.storages,
                         is_uneven ? config_.parallel.message_axes() : AxisSet{Axis::pipeline}));
  }
  return list;
}

void RankProgram::keep_versions(const Lowering& lowering) {
  const auto num_units = static_cast<std::size_t>(table_.num_units());
  versions_.resize(num_units);
  for (int unit = 0; unit < table_.num_units(); ++unit)
    versions_[static_cast<std::size_t>(unit)] = {Storages::weights_storage(unit)};
  if (schedule_.rules.empty()) return;
  Storages& storages = programs_.storages;
  previous_.resize(num_units);
  for (const Update& update : updates_) {
    const int versions = schedule_.rules[static_cast<std::size_t>(update.chunk)].versions();
    for (const int unit : update.units) {
      const Storage first = storages.at(Storages::weights_storage(unit));
      if (!first.persists || !lowering.published(unit).empty())
        fail(ExitCode::usage,
             "several versions of weights need an exchange that keeps and changes them whole");
      for (int version = 1; version < versions; ++version) {
        versions_[static_cast<std::size_t>(unit)].push_back(
            storages.add({.name = fmt::format("version {} of {}", version, first.name),
                          .kind = StorageKind::kept,
                          .bytes = first.bytes,
                          .persists = true,
                          .category = MemoryCategory::weight_versions}));
      }
      previous_[static_cast<std::size_t>(unit)] =
          storages.add({.name = "previous " + first.name, .kind = StorageKind::bound, .bytes = first.bytes});
    }
  }
}

void RankProgram::keep_second_gradients() {
  Storages& storages = programs_.storages;
  gradients_ = storages.at(Storages::gradients_storage(0)).within;
  require(gradients_ >= 0, "an exchange that keeps the gradients of all units together");
  Storage second = storages.at(gradients_);
  second.name = "second " + second.name;
  second_gradients_ = storages.add(std::move(second));
}

void RankProgram::record_reduction(const Lowering& lowering) {
  // With two sets of gradients, the sums are awaited where they are used: by the update.
  for (const Entry& entry : lowering.reduced()) {
    if (schedule_.gradient_sets == 1 || !std::holds_alternative<Await>(entry.operation))
      reduce_.entries.push_back(entry);
  }
  UpdateRecorder run(reduce_.entries);
  std::vector<Entry> awaits;
  const std::vector<UnitPart> owned = holding_.owned();
  const auto sum = [&](Axis placed_along, AxisSet group) {
    if (coordinates_.extent(group) == 1) return;
    for (const auto& [part, begin, count] : remaining_terms(table_, owned, placed_along)) {
      run(AllReduceCall{.buffer = holding_.gradient(owned[part]).flat(begin, count), .group = group});
      awaits.push_back(await_of(reduce_.entries.back()).value());
    }
  };
  sum(Axis::tensor, {Axis::tensor});
  sum(Axis::pipeline, {Axis::embedding});
  if (schedule_.gradient_sets == 1)
    reduce_.entries.insert(reduce_.entries.end(), awaits.begin(), awaits.end());
}

void RankProgram::record_update(const Lowering& lowering, std::size_t number) {
  Storages& storages = programs_.storages;
  Update& update = updates_[number];
  UpdateRecorder run(update.program.entries);
  const std::vector<UnitPart> owned = holding_.owned();
  const auto is_own = [&](int unit) { return std::ranges::find(update.units, unit) != update.units.end(); };
  // What has no head adds nothing to the loss.
  const int last_chunk = schedule_.chunks - 1;
  if (schedule_.rules.empty() ? !schedule_.held_chunks().contains(last_chunk) : update.chunk != last_chunk)
    run(Fill{.y = storages.loss_sum(), .value = 0.0F});
  bool accumulates = false;
  for (const auto& [range, copies] : norm_ranges(table_, holding_, coordinates_)) {
    if (!is_own(owned[range.part].unit)) continue;
    run(SumOfSquares{.x = holding_.gradient(owned[range.part]).flat(range.begin, range.count),
                     .out = storages.norm_squared(),
                     .factor = 1.0F / static_cast<float>(copies),
                     .accumulate = std::exchange(accumulates, true)});
  }
  if (coordinates_.extent(holding_.norm_axes) > 1)
    run(AllReduceCall{.buffer = storages.guard_input(), .group = holding_.norm_axes});
  run(GuardStep{.config = guard_config(config_, holding_, coordinates_),
                .input = storages.guard_input(),
                .state = Storages::flat(guard_state_, static_cast<std::int64_t>(number * sizeof(GuardState)),
                                        DType::uint8, sizeof(GuardState)),
                .scalars = placeholder()});
  std::vector<UpdatedPart> parts;
  for (std::size_t i = 0; i < owned.size(); ++i) {
    const int unit = owned[i].unit;
    if (!is_own(unit)) continue;
    const TensorRef weights = holding_.weights(owned[i]);
    TensorRef previous;
    if (versions_of_weights(unit).size() > 1)
      previous =
          Storages::flat(previous_weights(unit), place_of(weights).offset, weights.dtype, weights.size());
    parts.push_back(
        {.index = i, .weights = weights, .previous = previous, .gradient = holding_.gradient(owned[i])});
  }
  optimizer_->record(parts, placeholder(), run, [&](std::size_t i) {
    const std::vector<Entry>& published = lowering.published(owned[i].unit);
    update.program.entries.insert(update.program.entries.end(), published.begin(), published.end());
  });
}

void RankProgram::insert_awaits() {
  AwaitInserter inserter(storages(), pool_, gradients_);
  inserter.follow(publication_, 0);
  const Schedule& few = excerpt_.schedule;
  const bool overlaps = few.ahead() > 0;
  const auto follow = [&](const Occurrence& occurrence, SlotAssignment& slots) {
    const Action& action = few.actions[occurrence.index];
    Pass& pass = passes_[occurrence.index];
    int slot = 0;
    if (is_of_micro_batch(action.kind)) {
      slot = slots.of(occurrence);
      slots.finish(occurrence);
    }
    // The activations of a step may be overwritten after it.
    if (action.kind == ActionKind::reduce && !overlaps) inserter.await_activations(pass);
    inserter.follow(pass, slot, static_cast<int>(occurrence.step % few.gradient_sets));
  };
  if (overlaps) {
    // A run that comes to its steady state. What is awaited there is not under way at its beginning and end.
    SlotAssignment slots(few);
    const std::int64_t last = num_distinct_runs(few);
    for (std::int64_t step = 1; step <= last; ++step)
      few.for_each_action(step, step > 1, last, [&](const Occurrence& own) { follow(own, slots); });
    if (inserter.are_collectives_in_flight())
      fail(ExitCode::usage,
           "the exchange of this schedule does not allow a step to begin before the one before it ends");
    inserter.settle();
    record_settling();
  } else {
    // Follow two steps: what one leaves under way, the next awaits.
    for (int step = 0; step < 2; ++step) {
      SlotAssignment slots(few);
      few.for_each_action(1, false, 1, [&](const Occurrence& own) { follow(own, slots); });
    }
  }
  AwaitInserter(inserter).follow(publication_, 0);
  const auto follow_list = [&](ForwardList& list) {
    AwaitInserter own = inserter;
    for (std::size_t i = 0; i < list.passes.size(); ++i)
      own.follow(list.passes[i], list.actions[i].micro_batch);
    if (!list.passes.empty()) own.await_activations_after(list.passes.back());
  };
  follow_list(evaluation_);
  std::ranges::for_each(cached_, follow_list);
}

void RankProgram::record_settling() {
  std::set<const void*> awaited;
  for (std::size_t i = 0; i < passes_.size(); ++i) {
    if (!is_sent(excerpt_.schedule.actions[i].kind)) continue;
    const Entry& send = passes_[i].program->entries.front();
    if (awaited.insert(call_of(send)->call.input.data).second)
      settle_.entries.push_back(await_of(send).value());
  }
  settling_.program = &settle_;
}

std::vector<Passage> RankProgram::passages() const {
  std::vector<Passage> passages;
  const Schedule& few = excerpt_.schedule;
  // Runs of every length, up to the longest distinct one.
  const std::int64_t longest = num_distinct_runs(few);
  for (std::int64_t last = 1; last <= longest; ++last) {
    SlotAssignment slots(few);
    for (std::int64_t step = 1; step <= last; ++step) {
      few.for_each_action(step, step > 1, last, [&](const Occurrence& occurrence) {
        Passage& passage = passages.emplace_back();
        passage.pass = &passes_[occurrence.index];
        passage.loads = 0;
        if (!is_of_micro_batch(few.actions[occurrence.index].kind)) return;
        passage.slot = slots.of(occurrence);
        passage.loads = slots.is_new() ? 1 : 0;
        slots.finish(occurrence);
      });
    }
    for (int slot = 0; slot < slots.num_slots() && !settle_.entries.empty(); ++slot)
      passages.push_back({.pass = &settling_, .slot = slot, .loads = 0});
  }
  // The inputs of all micro-batches are loaded before a list begins.
  const auto add = [&](const ForwardList& list, const std::string& prefix) {
    for (std::size_t i = 0; i < list.passes.size(); ++i) {
      passages.push_back({.pass = &list.passes[i],
                          .slot = list.actions[i].micro_batch,
                          .loads = i == 0 ? list.micro_batches : 0,
                          .prefix = prefix});
    }
  };
  add(evaluation_, "");
  for (std::size_t i = 0; i < cached_.size(); ++i) add(cached_[i], prefix_of(config_.cache.passes[i]));
  return passages;
}

}  // namespace mylos
