// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/choose_cuts.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/base/error.hpp"
#include "parallel/schedule/simulation.hpp"

namespace mylos {

namespace {

/// ModelCuts::places. As the embedding is in the first chunk and the head in the last, a cut divides the
/// units of a model into chunks of at least one, and the places are those of the first units.
using Cut = std::vector<int>;

/// Steps that are longer than the shortest by at most this part are as good.
constexpr double same_step = 0.01;
/// Steps that differ by less than this part are equal: sums are rounded.
constexpr double tolerance = 1e-9;
constexpr double bytes_per_parameter = 16.0;
/// How many cuts are simulated if the lists are made for each.
constexpr std::size_t most_lists = 200;

double work_of(const UnitCost& cost) {
  return cost.forward + cost.input + cost.weight;
}

/// The most bytes of activations that a stage keeps at one time.
std::int64_t most_kept(const Schedule& schedule, const std::vector<UnitCost>& chunks) {
  std::int64_t kept = 0;
  std::int64_t most = 0;
  for (const Action& action : schedule.actions) {
    const std::int64_t bytes = chunks[static_cast<std::size_t>(action.chunk)].kept_bytes;
    if (action.kind == ActionKind::forward) most = std::max(most, kept += bytes);
    if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) kept -= bytes;
  }
  return most;
}

class CutChoice {
 public:
  CutChoice(const std::vector<UnitCost>& units, const ScheduleKind& kind, const ScheduleScope& scope)
      : units_(units),
        kind_(kind),
        scope_(scope),
        num_chunks_(scope.num_chunks()),
        num_units_(static_cast<int>(units.size())),
        stages_(kind.stages_of_chunks(scope)) {
    require(num_chunks_ <= num_units_, "every chunk has a unit");
    const int most = 8 * scope.stages;
    if (kind.is_asynchronous()) {
      // The order of the passes does not depend on the length of a step.
      int unit = 1;
      for (int stage = 0; stage < scope.stages; ++stage) unit = std::lcm(unit, scope.replicas_of(stage));
      sizes_ = {(std::min(scope.micro_batches, most) + unit - 1) / unit * unit};
    } else if (scope.micro_batches > most && scope.file.empty()) {
      sizes_ = {most / 2, most};
    } else {
      sizes_ = {scope.micro_batches};
    }
    lists_.resize(sizes_.size());
  }

  /// Whether there are at most so many cuts.
  bool has_at_most(std::size_t cuts) const {
    const int places = std::min(num_chunks_ - 1, num_units_ - num_chunks_);
    std::size_t number = 1;  // of ways to choose so many of the places
    for (int i = 1; i <= places && number <= cuts; ++i)
      number = number * static_cast<std::size_t>(num_units_ - i) / static_cast<std::size_t>(i);
    return number <= cuts;
  }

  /// Simulates all cuts, or those with the least work on the busiest stage, the best first.
  void try_all() {
    std::vector<std::pair<double, Cut>> cuts;
    Cut cut(static_cast<std::size_t>(num_chunks_) - 1);
    std::iota(cut.begin(), cut.end(), 1);
    do {
      cuts.emplace_back(least_step(cut), cut);
    } while (go_to_next(cut));
    std::ranges::sort(cuts);
    if (kind_.follows_times && cuts.size() > most_lists) cuts.resize(most_lists);
    for (const auto& [least, own] : cuts) {
      if (!is_good(least)) break;
      cost_of(own);
    }
  }

  /// Simulates cuts near a good one: one whose busiest stage has little work.
  void search() {
    const Cut even = improve(smallest_chunks(), [&](const Cut& cut) { return least_step(cut); });
    improve(even, [&](const Cut& cut) { return cost_of(cut).step; });
  }

  /// The best of the cuts that were simulated.
  Cut best() const {
    const auto order = [&](const auto& cut) {
      return std::tuple(!is_good(cut.second.step), cut.second.memory, cut.second.step);
    };
    return std::ranges::min_element(costs_, {}, order)->first;
  }

 private:
  struct Cost {
    double step = 0.0;    ///< time
    double memory = 0.0;  ///< bytes of the stage that needs the most
  };
  /// The cost if a step had another number of micro-batches.
  struct SimulatedCost {
    double step = 0.0;
    std::vector<double> memory;  ///< by stage
  };

  /// Goes to the next cut in lexicographic order; returns false after the last.
  bool go_to_next(Cut& cut) const {
    int highest = num_units_ - 1;
    for (auto place = cut.end(); place != cut.begin(); --highest) {
      if (*--place == highest) continue;
      std::iota(place, cut.end(), *place + 1);
      return true;
    }
    return false;
  }
  bool is_legal(const Cut& cut) const {
    return cut.front() > 0 && cut.back() < num_units_ &&
           std::ranges::adjacent_find(cut, std::greater_equal()) == cut.end();
  }
  /// The chunks between the two keep their numbers of blocks.
  static Cut with_unit_moved(Cut cut, int from, int to) {
    for (int chunk = std::min(from, to); chunk < std::max(from, to); ++chunk)
      cut[static_cast<std::size_t>(chunk)] += from < to ? -1 : 1;
    return cut;
  }
  /// Moves single units from chunk to chunk as long as a time, which is at least `least_step`, gets shorter.
  Cut improve(Cut cut, const auto& time_of) {
    for (bool is_shorter = true; is_shorter;) {
      is_shorter = false;
      for (int from = 0; from < num_chunks_; ++from) {
        for (int to = 0; to < num_chunks_; ++to) {
          const Cut moved = with_unit_moved(cut, from, to);
          const double enough = time_of(cut) * (1.0 - tolerance);
          if (!is_legal(moved) || least_step(moved) >= enough || time_of(moved) >= enough) continue;
          cut = moved;
          is_shorter = true;
        }
      }
    }
    return cut;
  }
  /// The cut whose largest chunk has the least work, by dynamic programming.
  Cut smallest_chunks() const;

  std::vector<UnitCost> chunks_of(const Cut& cut) const {
    return chunk_costs(units_, {.chunks = num_chunks_, .places = cut});
  }
  /// The sums of a value over the chunks of each stage.
  std::vector<double> by_stage(const std::vector<UnitCost>& chunks, const auto& value_of) const {
    std::vector<double> sums(static_cast<std::size_t>(scope_.stages));
    for (std::size_t chunk = 0; chunk < chunks.size(); ++chunk)
      sums[static_cast<std::size_t>(stages_[chunk])] += value_of(chunks[chunk]);
    return sums;
  }
  /// The time for which the busiest stage works: no step is shorter.
  double least_step(const Cut& cut) const {
    std::vector<double> work = by_stage(chunks_of(cut), work_of);
    for (std::size_t stage = 0; stage < work.size(); ++stage) work[stage] /= replicas_of(stage);
    return num_micro_batches() * std::ranges::max(work);
  }
  int replicas_of(std::size_t stage) const { return scope_.replicas_of(static_cast<int>(stage)); }
  /// Of the step whose time is looked for: of an asynchronous pipeline, as many as are simulated.
  int num_micro_batches() const {
    if (!kind_.is_asynchronous()) return scope_.micro_batches;
    return (8 * scope_.stages + sizes_.front() - 1) / sizes_.front() * sizes_.front();
  }
  bool is_good(double step) const { return step <= shortest_ * (1.0 + same_step); }

  /// The cost of a cut, which is simulated unless it was before.
  const Cost& cost_of(const Cut& cut);
  SimulatedCost simulate_step(const Cut& cut, std::size_t size);

  const std::vector<UnitCost>& units_;
  const ScheduleKind& kind_;
  ScheduleScope scope_;
  int num_chunks_;
  int num_units_;
  std::vector<int> stages_;                   // by chunk
  std::vector<int> sizes_;                    // micro-batches of the steps that are simulated
  std::vector<std::vector<Schedule>> lists_;  // by size and stage
  std::map<Cut, Cost> costs_;
  double shortest_ = std::numeric_limits<double>::infinity();
};

Cut CutChoice::smallest_chunks() const {
  const auto units = static_cast<std::size_t>(num_units_);
  const auto chunks = static_cast<std::size_t>(num_chunks_);
  std::vector<double> before = {0.0};  // by unit: the work of all units before it
  for (const UnitCost& unit : units_) before.push_back(before.back() + work_of(unit));
  // By chunk and its end: the work of the largest chunk up to it, and the first unit of the chunk.
  std::vector<std::vector<double>> largest(
      chunks, std::vector<double>(units + 1, std::numeric_limits<double>::infinity()));
  std::vector<Cut> first(chunks, Cut(units + 1));
  // Replicas of a stage divide its work; only schedules with one chunk per stage have them.
  const auto replicas = [&](std::size_t chunk) { return scope_.replicas.empty() ? 1 : replicas_of(chunk); };
  for (std::size_t end = 0; end <= units; ++end) largest.front()[end] = before[end] / replicas(0);
  for (std::size_t chunk = 1; chunk < chunks; ++chunk) {
    for (std::size_t end = chunk + 1; end <= units; ++end) {
      for (std::size_t begin = chunk; begin < end; ++begin) {
        const double work =
            std::max(largest[chunk - 1][begin], (before[end] - before[begin]) / replicas(chunk));
        if (work >= largest[chunk][end]) continue;
        largest[chunk][end] = work;
        first[chunk][end] = static_cast<int>(begin);
      }
    }
  }
  Cut cut(chunks - 1);
  int end = num_units_;
  for (std::size_t chunk = chunks - 1; chunk > 0; --chunk)
    end = cut[chunk - 1] = first[chunk][static_cast<std::size_t>(end)];
  return cut;
}

const CutChoice::Cost& CutChoice::cost_of(const Cut& cut) {
  const auto [found, is_new] = costs_.try_emplace(cut);
  if (!is_new) return found->second;
  SimulatedCost cost = simulate_step(cut, sizes_.size() - 1);
  if (sizes_.size() > 1) {
    const SimulatedCost half = simulate_step(cut, 0);
    const double times = static_cast<double>(scope_.micro_batches - sizes_[1]) / (sizes_[1] - sizes_[0]);
    cost.step = std::max(cost.step + times * (cost.step - half.step), least_step(cut));
    for (std::size_t stage = 0; stage < cost.memory.size(); ++stage)
      cost.memory[stage] += times * (cost.memory[stage] - half.memory[stage]);
  }
  shortest_ = std::min(shortest_, cost.step);
  return found->second = {.step = cost.step, .memory = std::ranges::max(cost.memory)};
}

CutChoice::SimulatedCost CutChoice::simulate_step(const Cut& cut, std::size_t size) {
  const std::vector<UnitCost> chunks = chunks_of(cut);
  const std::vector<PassTimes> times = pass_times(units_, {.chunks = num_chunks_, .places = cut});
  std::vector<Schedule>& lists = lists_[size];
  if (kind_.follows_times || lists.empty()) {
    ScheduleScope scope = scope_;
    scope.micro_batches = sizes_[size];
    scope.times = times;
    lists = unrolled(kind_.make(scope), 8 * scope.stages);
  }
  SimulatedCost cost{.step = simulate(lists, times).makespan,
                     .memory = by_stage(chunks, [](const UnitCost& chunk) {
                       return bytes_per_parameter * static_cast<double>(chunk.parameters);
                     })};
  for (std::size_t list = 0; list < lists.size(); ++list) {
    const std::size_t stage =
        kind_.is_asynchronous() ? static_cast<std::size_t>(*lists[list].held_chunks().begin()) : list;
    double& memory = cost.memory[stage];
    // Replicas of a stage keep the same.
    if (stage != list && list > 0 && lists[list - 1].held_chunks() == lists[list].held_chunks()) continue;
    memory += static_cast<double>(most_kept(lists[list], chunks));
  }
  return cost;
}

}  // namespace

std::vector<int> choose_cuts(const std::vector<UnitCost>& units, const ScheduleKind& kind,
                             const ScheduleScope& scope, std::size_t most_cuts) {
  if (scope.num_chunks() == 1) return {};
  CutChoice choice(units, kind, scope);
  if (choice.has_at_most(most_cuts)) {
    choice.try_all();
  } else {
    choice.search();
  }
  return choice.best();
}

}  // namespace mylos
