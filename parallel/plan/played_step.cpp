// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/played_step.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include <fmt/core.h>

#include "core/base/error.hpp"
#include "core/base/kinds.hpp"
#include "parallel/collectives/algorithm_choice.hpp"
#include "parallel/collectives/schedule_cost.hpp"
#include "parallel/engine/rank_program.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

const PlayedStep::Lane& PlayedStep::busiest() const {
  return *std::ranges::max_element(lanes, {}, &Lane::busy);
}

double PlayedStep::bubble() const {
  double idle = 0.0;
  for (const Lane& lane : lanes) idle += lane.idle;
  return idle / (step * static_cast<double>(lanes.size()));
}

namespace {

using Lane = PlayedStep::Lane;

/// By what another program's traffic differs from that of mylos' entries.
class Traffic {
 public:
  Traffic(const StepConfig& config, const Machine& machine) {
    if (!machine.software) return;
    const Software& software = *machine.software;
    StepConfig one = config;
    one.model.layers = 1;
    one.model.experts = {};
    one.model.depths = {};
    one.parallel.pipeline = one.parallel.data = one.parallel.expert = 1;
    one.parallel.shard = one.parallel.emulated_stages = 1;
    one.parallel.cuts = {};
    one.parallel.placement = {};
    one.parallel.replicas = {};
    one.parallel.times = {};
    one.parallel.schedule = &find_kind(schedules(), "accumulate");
    one.train.recompute = Recompute::none;
    one.train.accumulation = 1;
    one.train.global_batch = one.train.micro_batch;
    const RankProgram program(one, one.parallel.coordinates(0));
    const ChunkPrograms& chunk = program.programs().chunks.front();
    double forward = 0.0;
    double backward = 0.0;
    double loss = 0.0;
    const auto add = [&](const Program& own, bool is_backward) {
      for (const Entry& entry : own.entries) {
        const std::string_view name = name_of(entry);
        if (kernel_kind(name) == KernelKind::loss) loss += moved_bytes(entry);
        if (!is_scaled(entry, 1)) continue;
        if (!is_backward) forwards_.insert(std::string(name));
        (is_backward ? backward : forward) += moved_bytes(entry);
      }
    };
    add(chunk.forward, false);
    add(chunk.backward.front(), true);
    const double tokens = static_cast<double>(one.train.micro_batch * one.train.seq_len);
    const double channels = tokens * static_cast<double>(one.model.width);
    const auto tensor = static_cast<double>(config.parallel.tensor);
    const auto of_rank = [&](double all, double divided) {
      return config.parallel.splits.sequence ? all / tensor : all - divided + divided / tensor;
    };
    const auto factor = [](double wanted, double own) {
      return wanted > 0.0 && own > 0.0 ? wanted / own : 1.0;
    };
    forward_ = factor(of_rank(software.forward_bytes, software.forward_divided) * channels, forward);
    backward_ = factor(of_rank(software.backward_bytes, software.backward_divided) * channels, backward);
    const double entries = tokens * static_cast<double>(one.model.padded_vocab());
    loss_ = factor(software.loss_bytes * entries / (config.parallel.splits.vocab ? tensor : 1.0), loss);
  }

  /// How much more an entry of the `layers` blocks moves.
  double factor(const Entry& entry, std::int64_t layers) const {
    const std::string_view name = name_of(entry);
    if (kernel_kind(name) == KernelKind::loss) return loss_;
    if (!is_scaled(entry, layers)) return 1.0;
    return forwards_.contains(std::string(name)) ? forward_ : backward_;
  }

 private:
  static bool is_scaled(const Entry& entry, std::int64_t layers) {
    return entry.block >= 1 && entry.block <= layers && !communicates(entry) && !product_of(entry) &&
           !attention_of(entry) && kernel_kind(name_of(entry)) != KernelKind::optimizer;
  }

  double forward_ = 1.0;
  double backward_ = 1.0;
  double loss_ = 1.0;
  std::set<std::string> forwards_;
};

class StepPlayer final : public ClockSource {
 public:
  StepPlayer(const PlayableStep& lists, const Machine& machine, const PlayOptions& options)
      : config_(lists.config()),
        machine_(machine),
        options_(options),
        times_(machine),
        traffic_(lists.config(), machine),
        world_(static_cast<int>(lists.config().parallel.world_size())),
        places_(lists.places()) {
    for (const PlayableStep::List& list : lists.lists()) lanes_.emplace_back(*list.program, list.rank);
    clock_ = std::make_unique<LogicalClock>(lanes_.size(), lanes_.size() * lanes_.size(), machine.overlap);
    const int ahead = lanes_.front().program->schedule().ahead();
    // The first steps differ: what the step before leaves under way is missing.
    measured_ = ahead == 0 ? 2 : 4 + 2 * ahead;
    periods_ = ahead == 0 ? 3 : 2 * measured_;
    for (PlayingLane& lane : lanes_) {
      const int more = ahead == 0 ? 0 : ahead + 2;
      for (std::int64_t step = 1; step <= periods_ + more; ++step) {
        lane.program->schedule().for_each_action(step, step > 1, periods_ + more + ahead,
                                                 [&](const Occurrence& occurrence) {
                                                   lane.occurrences.push_back({occurrence, step});
                                                 });
      }
      lane.ends.resize(static_cast<std::size_t>(periods_ + more) + 1);
    }
  }

  PlayedStep play() {
    clock_->play(*this);
    PlayedStep played;
    double begin = 0.0;
    double end = 0.0;
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      PlayingLane& lane = lanes_[i];
      require(lane.ends[static_cast<std::size_t>(periods_)] > 0.0, "all ranks reach the end of a step");
      begin = std::max(begin, lane.ends[static_cast<std::size_t>(measured_)]);
      end = std::max(end, lane.ends[static_cast<std::size_t>(periods_)]);
      average(lane.result, periods_ - measured_);
      played.lanes.push_back(std::move(lane.result));
    }
    played.step = (end - begin) / (periods_ - measured_);
    if (machine_.software) {
      const double factor = machine_.software->factor;
      played.step *= factor;
      for (Lane& lane : played.lanes) scale(lane, factor);
    }
    played.fallbacks = times_.fallbacks();
    played.labels = std::move(labels_);
    return played;
  }

 private:
  /// A collective or message of a lane.
  struct Call {
    ListedCall listed;
    std::string label;
    std::vector<std::size_t> members{};  // lanes
    ClockEvent event{};
    bool is_message = false;
    bool is_network = false;
    std::size_t from = 0, to = 0;  // lanes
  };
  struct Item {
    const Entry* entry = nullptr;
    ClockItem item{};
    int call = -1;  // of `calls`
    int slot = -1;  // Insertion::slot
  };
  /// Memory of a storage, or within an arena.
  struct Memory {
    ArenaKey arena{};
    int storage = -1;
    std::int64_t offset = 0;
    auto operator<=>(const Memory&) const = default;
  };
  struct PlayingLane {
    PlayingLane(const RankProgram& own, int rank)
        : coordinates(own.coordinates()), program(&own), slots(own.schedule()) {
      result.rank = rank;
      result.stage = coordinates.index(Axis::pipeline);
    }
    Coordinates coordinates;
    const RankProgram* program;
    SlotAssignment slots;
    std::map<const Pass*, std::vector<Item>> passes;
    std::vector<Call> calls;
    std::map<const Entry*, int> call_of_entry;
    std::vector<std::pair<Occurrence, std::int64_t>> occurrences;  // with their period
    std::vector<double> ends;                                      // of periods, counted from 1
    // What is played.
    std::size_t occurrence = 0;
    std::size_t number = 0;                    // of the item
    const std::vector<Item>* items = nullptr;  // of the occurrence
    int slot = 0;
    ClockItem current;
    const Item* source = nullptr;  // of `current`
    double last = 0.0;             // end of the item before
    double begin = 0.0;            // of the action
    std::string waits_for;
    double awaited_seconds = 0.0;  // that the call takes, if it has sides; otherwise more than any wait
    int waited_for = -1;           // event that another program waits for at once
    std::map<Memory, std::pair<int, int>> in_flight;  // event, call by place
    std::vector<int> deferred;                        // events not yet posted, the first one last
    std::map<std::string, std::int64_t> ordinals;     // of calls that several lanes share
    Lane result;
  };

  static void average(Lane& lane, std::int64_t periods) {
    const double gather = lane.longest_gather;
    scale(lane, 1.0 / static_cast<double>(periods));
    lane.longest_gather = gather;
    for (double* number : {&lane.reduced_bytes, &lane.node_bytes, &lane.network_bytes})
      *number /= static_cast<double>(periods);
    for (auto& [name, operation] : lane.operations) {
      operation.calls /= periods;
      operation.flops /= static_cast<double>(periods);
    }
    for (TrafficRow& row : lane.traffic) {
      row.calls /= static_cast<std::uint64_t>(periods);
      row.payload_bytes /= static_cast<std::uint64_t>(periods);
    }
  }

  /// Scales the times.
  static void scale(Lane& lane, double factor) {
    for (double* number : {&lane.busy, &lane.idle, &lane.host, &lane.forward_work, &lane.longest_gather,
                           &lane.reduced_seconds})
      *number *= factor;
    for (auto* times : {&lane.waits, &lane.communication}) {
      for (auto& [axis, seconds] : *times) seconds *= factor;
    }
    for (double& seconds : lane.phases) seconds *= factor;
    for (auto& [name, operation] : lane.operations) operation.seconds *= factor;
  }

  static bool is_in_group(const Coordinates& a, const Coordinates& b, AxisSet group) {
    const bool is_embedding = group.contains(Axis::embedding);
    if (is_embedding && (a.extent(Axis::embedding) == 1 || b.extent(Axis::embedding) == 1)) return false;
    for (int i = 0; i < num_axes; ++i) {
      const auto axis = static_cast<Axis>(i);
      if (group.contains(axis) || (is_embedding && axis == Axis::pipeline)) continue;
      if (a.index(axis) != b.index(axis)) return false;
    }
    return true;
  }

  GroupPlace place_of_group(const PlayingLane& lane, AxisSet group) {
    const auto found = group_places_.find({lane.result.rank, group});
    if (found != group_places_.end()) return found->second;
    const auto per_node = static_cast<int>(options_.ranks_per_node > 0 ? options_.ranks_per_node : world_);
    GroupPlace place{.ranks = 0};
    std::set<int> nodes;
    int local = 0;
    for (int rank = 0; rank < world_; ++rank) {
      if (!is_in_group(lane.coordinates, places_[static_cast<std::size_t>(rank)], group)) continue;
      ++place.ranks;
      nodes.insert(rank / per_node);
      if (rank / per_node == lane.result.rank / per_node) ++local;
    }
    place.nodes = static_cast<int>(nodes.size());
    place.sharing = std::max(1, std::min(per_node, world_) / std::max(1, local));
    group_places_[{lane.result.rank, group}] = place;
    return place;
  }

  double seconds_of(const ListedCall& call, const GroupPlace& place, const std::string& label) {
    const auto bytes = static_cast<double>(std::max(call.payload_bytes, call.received_bytes));
    double seconds = 0.0;
    const bool is_scheduled =
        std::ranges::find(scheduled_operations, call.operation) != scheduled_operations.end();
    const std::string names = options_.algorithm == "auto" ? "native" : options_.algorithm;
    const Algorithm algorithm = is_scheduled
                                    ? AlgorithmChoice::parse(names).of(call.operation, call.payload_bytes)
                                    : Algorithm::native;
    if (algorithm == Algorithm::native) {
      seconds = times_.of_call(call.operation, bytes, place);
    } else {
      seconds = time_of(
          {call.operation, place.ranks, call.count}, algorithm, size_of(call.dtype),
          [&](double sent) { return message_seconds(sent, place.nodes > 1, place.sharing); },
          [&](double combined) { return times_.of_bytes(KernelKind::elementwise, 3.0 * combined); });
    }
    if (machine_.software && label == "tensor") seconds *= 1.0 - machine_.software->tensor_hidden;
    return seconds;
  }
  double message_seconds(double bytes, bool is_network, int sharing) {
    if (!options_.link) return times_.of_message(bytes, is_network, sharing);
    return options_.link->latency + 8e-9 * bytes / options_.link->gigabits_per_second;
  }

  int call_of_entry(PlayingLane& lane, const Entry& entry) {
    const auto [found, is_new] = lane.call_of_entry.try_emplace(&entry, std::ssize(lane.calls));
    if (!is_new) return found->second;
    const ListedCall listed = *listed_call(entry);
    Call call{.listed = listed, .label = ProcessGrid::label(lane.coordinates, listed.group)};
    const auto self = static_cast<std::size_t>(&lane - lanes_.data());
    call.is_message = listed.operation == CommOperation::send || listed.operation == CommOperation::recv;
    if (call.is_message) {
      const auto peer = static_cast<std::size_t>(listed.peer);
      const bool sends = listed.operation == CommOperation::send;
      call.from = sends ? self : peer;
      call.to = sends ? peer : self;
      call.members = {self, peer};
      const auto per_node = static_cast<int>(options_.ranks_per_node > 0 ? options_.ranks_per_node : world_);
      call.is_network = lane.result.rank / per_node != lanes_[peer].result.rank / per_node;
      double bytes = static_cast<double>(listed.payload_bytes);
      if (machine_.software && machine_.software->divides_messages && !config_.parallel.splits.sequence)
        bytes /= static_cast<double>(config_.parallel.tensor);
      const int sharing = call.is_network ? std::min(per_node, world_) : 1;
      call.event = {.sides = 2,
                    .link = static_cast<int>(call.from * lanes_.size() + call.to),
                    .seconds = message_seconds(bytes, call.is_network, sharing)};
    } else {
      for (std::size_t other = 0; other < lanes_.size(); ++other) {
        if (is_in_group(lane.coordinates, lanes_[other].coordinates, listed.group))
          call.members.push_back(other);
      }
      const GroupPlace place = place_of_group(lane, listed.group);
      call.is_network = place.nodes > 1;
      const double seconds = seconds_of(listed, place, call.label);
      if (call.members.size() == 1) {
        call.event = {.sides = 0, .link = place.nodes > 1 ? 1 : 0, .seconds = seconds};
      } else {
        call.event = {.sides = static_cast<int>(call.members.size()), .seconds = seconds};
      }
    }
    if (options_.left_out == call.label || !options_.pass_times.empty()) call.event.seconds = 0.0;
    lane.calls.push_back(std::move(call));
    return found->second;
  }

  const std::vector<Item>& items_of(PlayingLane& lane, const Pass& pass, const Action& action) {
    const auto [found, is_new] = lane.passes.try_emplace(&pass);
    if (!is_new) return found->second;
    std::vector<Item>& items = found->second;
    int block = 0;
    for_each_entry(pass, lane.program->pool(), [&](const Entry& entry, const EntryPlace& place) {
      if (!place.is_inserted && std::exchange(block, entry.block) != entry.block)
        add_rest_of_block(lane, action, block, items);
      add_item(lane, entry, place.slot, items);
    });
    if (!options_.pass_times.empty()) take_time_of_pass(found->second, action);
    return found->second;
  }

  void add_item(PlayingLane& lane, const Entry& entry, int slot, std::vector<Item>& items) {
    double host =
        machine_.software && machine_.software->host > 0.0 ? machine_.software->host : machine_.host;
    double graph_host = machine_.graph_host;
    if (options_.left_out == "host") host = graph_host = 0.0;
    Item item{.entry = &entry, .slot = slot};
    if (std::holds_alternative<Await>(entry.operation)) {
      item.item.kind = ClockItem::Kind::wait;
    } else if (communicates(entry)) {
      if (lane.coordinates.extent(listed_call(entry)->group) == 1) return;
      item.item = {.kind = ClockItem::Kind::post, .host = host};
      item.call = call_of_entry(lane, entry);
    } else {
      item.item = {
          .seconds = times_.of_operation(entry, has_gathered_weights(entry, lane.program->storages())) *
                     traffic_.factor(entry, config_.model.layers),
          .host = host};
      if (options_.left_out == "memory" && !product_of(entry) && !attention_of(entry))
        item.item.seconds = 0.0;
      const bool follows_graph = !items.empty() && items.back().item.kind == ClockItem::Kind::work;
      if (options_.has_graphs) item.item.host = follows_graph ? 0.0 : graph_host;
    }
    items.push_back(item);
    if (item.call < 0 || !is_waited_for_at_once(lane.calls[static_cast<std::size_t>(item.call)])) return;
    item.item = {.kind = ClockItem::Kind::wait};
    items.push_back(item);
  }

  /// What another program recomputes of a block although no gradient needs it: from the last product on.
  void add_rest_of_block(PlayingLane& lane, const Action& action, int block, std::vector<Item>& items) {
    const bool is_whole = machine_.software && machine_.software->recomputes_whole_blocks &&
                          config_.train.recompute == Recompute::block && is_backward(action.kind) &&
                          action.kind != ActionKind::backward_weight;
    if (!is_whole || block < 1 || block > config_.model.layers) return;
    const std::vector<Entry>& entries =
        lane.program->programs().chunks[static_cast<std::size_t>(action.chunk)].forward.entries;
    const auto is_last = [&](const Entry& entry) { return entry.block == block && product_of(entry); };
    const auto last = std::find_if(entries.rbegin(), entries.rend(), is_last);
    if (last == entries.rend()) return;
    for (auto entry = last.base() - 1; entry != entries.end() && entry->block == block; ++entry)
      add_item(lane, *entry, -1, items);
  }

  /// Gives the first operation of a pass all of its time.
  void take_time_of_pass(std::vector<Item>& items, const Action& action) const {
    double seconds = options_.pass_times[static_cast<std::size_t>(action.chunk)].of(action.kind);
    for (Item& item : items) {
      if (item.item.kind == ClockItem::Kind::work) item.item.seconds = std::exchange(seconds, 0.0);
      item.item.host = 0.0;
    }
    if (seconds > 0.0) items.push_back({.entry = nullptr, .item = {.seconds = seconds}});
  }

  /// Identifies the memory of an operand on a slot.
  static Memory memory_of(const PlayingLane& lane, const void* address, int slot) {
    const Place place = place_of(address);
    const Storages& storages = lane.program->storages();
    const Storage& storage = storages.at(place.storage);
    const int whole = storage.within >= 0 ? storage.within : place.storage;
    if (storages.at(whole).persists || storage.kind == StorageKind::bound)
      return {.storage = whole, .offset = storage.begin + place.offset};
    const StoragePlan& places = lane.program->places();
    if (!places.has(slot, place.storage)) return {.storage = place.storage, .offset = place.offset};
    return {.arena = arena_of(storage),
            .offset = static_cast<std::int64_t>(places.offset(slot, place.storage)) + place.offset};
  }

  int event_of(PlayingLane& lane, const Call& call) {
    if (call.event.sides == 0) return clock_->add(call.event);
    const std::string key = call.is_message ? fmt::format("{}>{}", call.from, call.to)
                                            : fmt::format("{}@{}", call.label, call.members.front());
    const std::int64_t ordinal = lane.ordinals[key]++;
    const auto [found, is_new] = shared_.try_emplace({key, ordinal});
    if (is_new) found->second = clock_->add(call.event);
    return found->second;
  }

  bool is_measured(const PlayingLane& lane) const {
    const std::int64_t period = lane.occurrences[lane.occurrence].second;
    return period > measured_ && period <= periods_;
  }

  const ClockItem* next(std::size_t number) override {
    PlayingLane& lane = lanes_[number];
    while (lane.occurrence < lane.occurrences.size()) {
      const Occurrence& occurrence = lane.occurrences[lane.occurrence].first;
      const Action& action = lane.program->schedule().actions[occurrence.index];
      if (lane.items == nullptr) {
        lane.items = &items_of(lane, lane.program->pass_of(occurrence.index), action);
        lane.number = 0;
        lane.begin = lane.last;
        lane.slot = is_of_micro_batch(action.kind) ? lane.slots.of(occurrence) : 0;
      }
      if (action.kind == ActionKind::reduce && !lane.deferred.empty()) {
        const int event = lane.deferred.back();
        lane.deferred.pop_back();
        lane.source = nullptr;
        lane.current = {.kind = ClockItem::Kind::post, .event = event};
        return &lane.current;
      }
      if (lane.number < lane.items->size()) {
        if (take(lane, action, (*lane.items)[lane.number])) return &lane.current;
        ++lane.number;
        continue;
      }
      if (is_of_micro_batch(action.kind)) lane.slots.finish(occurrence);
      if (options_.keeps_events && is_measured(lane)) {
        static constexpr std::array<std::string_view, 4> phases = {"forward", "backward", "communication",
                                                                   "optimizer"};
        TraceEvent event;
        event.name = phases[phase_of(action.kind)];
        event.kind = TraceKind::phase;
        event.begin = static_cast<std::int64_t>(1e9 * lane.begin);
        event.end = static_cast<std::int64_t>(1e9 * lane.last);
        lane.result.events.push_back(event);
      }
      const std::int64_t period = lane.occurrences[lane.occurrence].second;
      lane.ends[static_cast<std::size_t>(period)] = lane.last;
      ++lane.occurrence;
      lane.items = nullptr;
    }
    return nullptr;
  }

  /// Whether another program waits for a call where mylos goes on with other work.
  bool is_waited_for_at_once(const Call& call) const { return machine_.software && call.label == "tensor"; }

  /// Whether another program exchanges gradients after the backward passes.
  bool is_exchanged_late() const {
    if (!machine_.software) return false;
    const DataExchange exchange = machine_.software->data_exchange;
    return exchange == DataExchange::after ||
           (exchange == DataExchange::after_stages && config_.parallel.pipeline > 1);
  }

  static void set_awaited(PlayingLane& lane, int number) {
    const Call& call = lane.calls[static_cast<std::size_t>(number)];
    lane.waits_for = call.label;
    lane.awaited_seconds = call.event.sides == 0 ? 1e30 : call.event.seconds;
  }

  /// Makes an item the lane's current one; false if there is nothing to do.
  bool take(PlayingLane& lane, const Action& action, const Item& item) {
    lane.source = &item;
    lane.current = item.item;
    const int slot = item.slot < 0 ? lane.slot : item.slot;
    if (item.item.kind == ClockItem::Kind::post) {
      const Call& call = lane.calls[static_cast<std::size_t>(item.call)];
      const int event = event_of(lane, call);
      const void* output = call_of(*item.entry)->call.output.data;
      if (is_waited_for_at_once(call)) {
        lane.waited_for = event;
      } else {
        const auto [place, is_new] =
            lane.in_flight.try_emplace(memory_of(lane, output, slot), event, item.call);
        require(is_new, "a call is awaited before its buffers are used again");
      }
      lane.current.event = event;
      if (is_measured(lane)) {
        lane.result.communication[call.label] += call.event.seconds;
        count(lane, call, action.kind);
      }
      const bool is_deferred =
          is_exchanged_late() && is_backward(action.kind) && call.label.find("data") != std::string::npos;
      if (is_deferred) lane.deferred.insert(lane.deferred.begin(), event);
      return !is_deferred;
    }
    if (item.item.kind == ClockItem::Kind::wait) {
      if (item.call >= 0) {
        lane.current.event = lane.waited_for;
        set_awaited(lane, item.call);
        return true;
      }
      const auto& await = std::get<Await>(item.entry->operation);
      const auto found = lane.in_flight.find(memory_of(lane, await.output.data, slot));
      if (found == lane.in_flight.end()) return false;
      const auto [event, call] = found->second;
      // What was to wait for the reduction, but is needed here, begins here.
      const auto late = std::ranges::find(lane.deferred, event);
      if (late != lane.deferred.end()) {
        lane.deferred.erase(late);
        lane.source = nullptr;
        lane.current = {.kind = ClockItem::Kind::post, .event = event};
        return true;
      }
      lane.current.event = event;
      set_awaited(lane, call);
      lane.in_flight.erase(found);
    }
    return true;
  }

  /// Whether a group divides or sums what belongs to weights: it has ranks with other samples, and no others.
  static bool is_of_data(const PlayingLane& lane, AxisSet group) {
    const AxisSet used = group.common(lane.coordinates.used_axes());
    return used != AxisSet() && used == used.common(sample_axes);
  }

  void count(PlayingLane& lane, const Call& call, ActionKind action) {
    const auto bytes = static_cast<double>(call.listed.payload_bytes);
    Lane& result = lane.result;
    (call.is_network ? result.network_bytes : result.node_bytes) += bytes;
    const CommOperation operation = call.listed.operation;
    const bool is_of_weights = is_of_data(lane, call.listed.group);
    if (operation == CommOperation::all_gather && action == ActionKind::forward && is_of_weights &&
        call.event.seconds > result.longest_gather) {
      result.longest_gather = call.event.seconds;
      result.gathered_bytes = bytes;
    }
    const bool is_sum = operation == CommOperation::all_reduce || operation == CommOperation::reduce_scatter;
    if (is_sum && is_of_weights) {
      result.reduced_bytes += bytes;
      result.reduced_seconds += call.event.seconds;
    }
    std::vector<TrafficRow>& rows = lane.result.traffic;
    auto row = std::ranges::find_if(rows, [&](const TrafficRow& own) {
      return own.axis == call.label && own.operation == call.listed.operation;
    });
    if (row == rows.end()) row = rows.insert(row, {.axis = call.label, .operation = call.listed.operation});
    row->calls += 1;
    row->payload_bytes += call.listed.payload_bytes;
  }

  void done(std::size_t number, const ClockItem& item, double begin, double end) override {
    PlayingLane& lane = lanes_[number];
    const Occurrence& occurrence = lane.occurrences[lane.occurrence].first;
    const Action& action = lane.program->schedule().actions[occurrence.index];
    if (is_measured(lane)) {
      Lane& result = lane.result;
      result.phases[phase_of(action.kind)] += end - lane.last;
      result.host += begin - lane.last;
      TraceEvent event;
      event.name = name_of(action.kind);
      if (item.kind == ClockItem::Kind::work && lane.source->entry == nullptr) {
        result.busy += end - begin;  // of a pass without operations
      } else if (item.kind == ClockItem::Kind::work) {
        result.busy += end - begin;
        if (action.kind == ActionKind::forward) result.forward_work += end - begin;
        event.name = name_of(*lane.source->entry);
        if (const auto product = product_of(*lane.source->entry)) event.shape = {product->in, product->out};
        event.by = "plan";
        PlayedStep::Operation& operation = result.operations[std::string(event.name)];
        operation.seconds += end - begin;
        operation.calls += 1;
        operation.flops += flops_of(*lane.source->entry);
      } else if (item.kind == ClockItem::Kind::wait) {
        result.waits[lane.waits_for] += end - begin;
        result.idle += std::max(0.0, end - begin - lane.awaited_seconds);
        event.kind = TraceKind::communication;
        event.name = "wait";
        event.by = labels_.insert(lane.waits_for).first->c_str();
      }
      if (options_.keeps_events && end > begin && item.kind != ClockItem::Kind::post) {
        event.begin = static_cast<std::int64_t>(1e9 * begin);
        event.end = static_cast<std::int64_t>(1e9 * end);
        event.micro_batch = is_of_micro_batch(action.kind) ? action.micro_batch : -1;
        event.chunk = is_of_micro_batch(action.kind) ? action.chunk : -1;
        result.events.push_back(event);
      }
    }
    lane.last = end;
    // Items that stand for none of the list are followed by the one that they precede.
    if (lane.source != nullptr) ++lane.number;
  }

  static std::size_t phase_of(ActionKind kind) {
    if (kind == ActionKind::forward) return 0;
    if (is_backward(kind)) return 1;
    return kind == ActionKind::step ? 3 : 2;
  }

  const StepConfig& config_;
  const Machine& machine_;
  const PlayOptions& options_;
  MachineTimes times_;
  Traffic traffic_;
  int world_ = 1;
  const std::vector<Coordinates>& places_;  // by rank
  std::vector<PlayingLane> lanes_;
  std::unique_ptr<LogicalClock> clock_;
  std::map<std::pair<int, AxisSet>, GroupPlace> group_places_;  // by rank
  std::map<std::pair<std::string, std::int64_t>, int> shared_;  // events, by group and number of the call
  std::set<std::string> labels_;
  std::int64_t measured_ = 0;  // periods until this one are not measured
  std::int64_t periods_ = 0;
};

}  // namespace

PlayableStep::PlayableStep(const StepConfig& config) : config_(config) {
  const ParallelLayout& layout = config.parallel;
  const auto world = static_cast<int>(layout.world_size());
  for (int rank = 0; rank < world; ++rank) places_.push_back(layout.coordinates(rank));
  std::vector<Schedule> schedules = layout.schedules(config.train.accumulation, config.model.tied);
  for (std::size_t list = 0; list < schedules.size(); ++list) {
    const auto place = std::ranges::find_if(
        places_, [&](const Coordinates& at) { return static_cast<std::size_t>(layout.list_of(at)) == list; });
    lists_.push_back({std::make_unique<RankProgram>(config, *place, std::move(schedules[list])),
                      static_cast<int>(place - places_.begin())});
  }
}

PlayedStep PlayableStep::play(const Machine& machine, const PlayOptions& options) const {
  return StepPlayer(*this, machine, options).play();
}

}  // namespace mylos
