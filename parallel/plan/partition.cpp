// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/plan/partition.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "core/base/error.hpp"
#include "parallel/schedule/schedule.hpp"

namespace mylos {

namespace {

std::size_t index_of(int number) {
  return static_cast<std::size_t>(number);
}

/// Replicas [first, first + number) of all, which one stage has.
struct Replicas {
  int first = 0;
  int number = 1;

  int end() const { return first + number; }
};

/// The costs of single stages and links.
class StageCosts {
 public:
  explicit StageCosts(const PartitionProblem& problem) : problem_(problem) {
    work_.push_back(0.0);
    parameters_.push_back(0.0);
    kept_.push_back(0.0);
    for (const UnitCost& unit : problem.units) {
      work_.push_back(work_.back() + unit.forward + unit.input + unit.weight);
      parameters_.push_back(parameters_.back() + static_cast<double>(unit.parameters));
      kept_.push_back(kept_.back() + static_cast<double>(unit.kept_bytes));
    }
  }

  double passes(int first, int end, int replicas) const { return sum(work_, first, end) / replicas; }
  /// Of a step's gradients, per micro-batch.
  double gradients(int first, int end, const Replicas& own) const {
    if (own.number == 1) return 0.0;
    const double bytes = problem_.gradient_bytes * sum(parameters_, first, end);
    const double share = 2.0 * (own.number - 1) / own.number;
    return seconds(share * bytes, own.first, own.end()) / problem_.micro_batches;
  }
  /// Of a micro-batch's activations and their gradient between the stage that ends with a unit and the next.
  double link(int last_unit, const Replicas& own, const Replicas& next) const {
    const auto bytes = static_cast<double>(problem_.units[index_of(last_unit)].output_bytes);
    return seconds(2.0 * bytes, own.first, next.end());
  }
  double memory(int first, int end, int replicas, int versions, int in_flight) const {
    const int sets = replicas > 1 && versions > 1 ? 2 : 1;
    const double per_parameter =
        versions * problem_.weight_bytes + sets * problem_.gradient_bytes + problem_.state_bytes;
    return per_parameter * sum(parameters_, first, end) + in_flight * sum(kept_, first, end);
  }
  bool fits(double memory) const { return problem_.memory_bytes == 0.0 || memory <= problem_.memory_bytes; }

 private:
  static double sum(const std::vector<double>& before, int first, int end) {
    return before[index_of(end)] - before[index_of(first)];
  }
  /// What ranks of the replicas [first, end) take to exchange so many bytes.
  double seconds(double bytes, int first, int end) const {
    const double bandwidth = are_on_one_node(first, end) ? problem_.node_bandwidth : problem_.link_bandwidth;
    return bandwidth > 0.0 ? bytes / bandwidth : 0.0;
  }
  /// Whether the ranks of the replicas [first, end) that have the same place along the tensor axis are.
  bool are_on_one_node(int first, int end) const {
    const int own = problem_.ranks_per_node;
    if (own == 0) return end - first == 1;
    for (int place = 0; place < problem_.ranks_per_replica; ++place) {
      if ((first * problem_.ranks_per_replica + place) / own !=
          ((end - 1) * problem_.ranks_per_replica + place) / own)
        return false;
    }
    return true;
  }

  const PartitionProblem& problem_;
  // Sums over the units before each.
  std::vector<double> work_;
  std::vector<double> parameters_;
  std::vector<double> kept_;
};

int steps_of(int micro_batches, int delay) {
  return VersionRule{.micro_batches = micro_batches, .delay = delay}.versions() - 1;
}

}  // namespace

Partition with_costs(const PartitionProblem& problem, Partition division) {
  const StageCosts costs(problem);
  const int stages = division.stages();
  std::vector<int> in_flight(division.replicas.size());
  std::vector<int> steps(division.replicas.size());  // that the weights may be behind
  int following = 0;
  for (int s = stages - 1; s >= 0; --s) {
    const int own = division.replicas[index_of(s)];
    in_flight[index_of(s)] = in_flight_before(own, following);
    following = own * in_flight[index_of(s)];
    steps[index_of(s)] = steps_of(problem.micro_batches, delay_of(own, in_flight[index_of(s)]));
  }
  if (stages == 1) steps.front() = 0;
  if (stages > 1 && problem.versions == VersionsKept::double_buffered) std::ranges::fill(steps, 1);
  if (problem.versions == VersionsKept::vertical_sync) std::ranges::fill(steps, steps.front());
  division.delay = std::ranges::max(steps);
  division.time = division.passes = division.memory = 0.0;
  const auto take = [&](double time, Bottleneck bound, int stage) {
    if (time <= division.time) return;
    division.time = time;
    division.bound = bound;
    division.bound_stage = stage;
  };
  Replicas own{.first = 0, .number = 0};
  for (int s = 0; s < stages; ++s) {
    const int first = division.first_units[index_of(s)];
    const bool is_last = s + 1 == stages;
    const int end = is_last ? static_cast<int>(problem.units.size()) : division.first_units[index_of(s) + 1];
    own = {.first = own.end(), .number = division.replicas[index_of(s)]};
    division.passes = std::max(division.passes, costs.passes(first, end, own.number));
    take(costs.passes(first, end, own.number), Bottleneck::passes, s);
    take(costs.gradients(first, end, own), Bottleneck::sum, s);
    if (!is_last) {
      const Replicas next{.first = own.end(), .number = division.replicas[index_of(s) + 1]};
      take(costs.link(end - 1, own, next), Bottleneck::link, s);
    }
    division.memory = std::max(division.memory, costs.memory(first, end, own.number, steps[index_of(s)] + 1,
                                                             in_flight[index_of(s)]));
  }
  return division;
}

namespace {

/// The dynamic program for several stages.
class Search {
 public:
  /// `versions`: how many every stage keeps; 0: as many as its own micro-batches need. `limit`: sums and
  /// links may take that long, and count as nothing if they do not take longer; 0: they count like passes.
  Search(const PartitionProblem& problem, int most_stages, int versions, double limit = 0.0)
      : problem_(problem),
        costs_(problem),
        versions_(versions),
        limit_(limit),
        num_units_(static_cast<int>(problem.units.size())) {
    for (int number = 1; number <= problem.replicas; ++number) {
      if (problem.micro_batches % number == 0) numbers_.push_back(number);
    }
    for (int stages = 1; stages <= most_stages; ++stages) {
      layers_.emplace_back(index_of(problem.replicas + 1) * index_of(num_units_ + 1) * numbers_.size());
      if (stages == 1) {
        prepend_stages({.first_unit = num_units_}, {});
        continue;
      }
      for_each_place(stages - 1, [&](const Place& place) {
        for (std::size_t i = 0; i < tails(place).size(); ++i) prepend_stages(place, i);
      });
    }
  }

  std::optional<Partition> best(int stages) const {
    const Tail* best = nullptr;
    Place best_place;
    for (int choice = 0; choice < std::ssize(numbers_); ++choice) {
      const Place place{.stages = stages, .used = problem_.replicas, .choice = choice};
      for (const Tail& tail : tails(place)) {
        if (best != nullptr && best->time <= tail.time) continue;
        best = &tail;
        best_place = place;
      }
    }
    if (best == nullptr) return std::nullopt;
    Partition division;
    Place place = best_place;
    for (const Tail* tail = best;; tail = &tails(place)[tail->index]) {
      division.first_units.push_back(place.first_unit);
      division.replicas.push_back(numbers_[index_of(place.choice)]);
      place = tail->next;
      if (place.stages == 0) return with_costs(problem_, std::move(division));
    }
  }

 private:
  /// The last so many stages, which begin at a unit and use so many replicas in all; their first has
  /// numbers_[choice].
  struct Place {
    int stages = 0;
    int used = 0;
    int first_unit = 0;
    int choice = 0;
  };
  /// A division into the last stages.
  struct Tail {
    int in_flight = 0;  ///< micro-batches of all replicas of its first stage
    double time = 0.0;
    Place next{};           ///< the stages after its first one,
    std::size_t index = 0;  ///< and which of their divisions
  };

  std::vector<Tail>& tails(const Place& place) { return layers_[index_of(place.stages) - 1][offset(place)]; }
  const std::vector<Tail>& tails(const Place& place) const {
    return layers_[index_of(place.stages) - 1][offset(place)];
  }
  std::size_t offset(const Place& place) const {
    return (index_of(place.used) * index_of(num_units_ + 1) + index_of(place.first_unit)) * numbers_.size() +
           index_of(place.choice);
  }
  void for_each_place(int stages, const auto& visit) const {
    for (int used = stages; used < problem_.replicas; ++used) {
      for (int first = 1; first <= num_units_ - stages; ++first) {
        for (int choice = 0; choice < std::ssize(numbers_); ++choice)
          visit(Place{.stages = stages, .used = used, .first_unit = first, .choice = choice});
      }
    }
  }

  /// How many versions a stage keeps; nothing if its delay is not allowed.
  std::optional<int> versions_of(int delay) const {
    const int own = steps_of(problem_.micro_batches, delay) + 1;
    if (versions_ > 0 && own > versions_) return std::nullopt;
    return versions_ > 0 ? versions_ : own;
  }

  /// What a message counts.
  double counted(double time) const {
    if (limit_ == 0.0) return time;
    return time <= limit_ ? 0.0 : std::numeric_limits<double>::infinity();
  }

  /// Adds every stage that may come before division `index` of the stages at `next`.
  void prepend_stages(const Place& next, std::size_t index) {
    const Tail after = next.stages == 0 ? Tail() : tails(next)[index];
    for (int choice = 0; choice < std::ssize(numbers_); ++choice) {
      const int number = numbers_[index_of(choice)];
      if (next.used + number > problem_.replicas) break;
      const Replicas own{.first = problem_.replicas - next.used - number, .number = number};
      const int in_flight = in_flight_before(number, after.in_flight);
      const std::optional<int> versions = versions_of(delay_of(number, in_flight));
      if (!versions) continue;
      double time = after.time;
      if (next.stages > 0) {
        const Replicas others{.first = own.end(), .number = numbers_[index_of(next.choice)]};
        time = std::max(time, counted(costs_.link(next.first_unit - 1, own, others)));
      }
      for (int first = next.first_unit - 1; first >= 0; --first) {
        const double passes = costs_.passes(first, next.first_unit, number);
        if (limit_ > 0.0 && passes > limit_) break;
        if (!costs_.fits(costs_.memory(first, next.first_unit, number, *versions, in_flight))) break;
        add({.stages = next.stages + 1, .used = next.used + number, .first_unit = first, .choice = choice},
            {.in_flight = number * in_flight,
             .time = std::max({time, passes, counted(costs_.gradients(first, next.first_unit, own))}),
             .next = next,
             .index = index});
      }
    }
  }

  void add(const Place& place, const Tail& tail) {
    if (!std::isfinite(tail.time)) return;
    std::vector<Tail>& known = tails(place);
    const auto undercuts = [](const Tail& a, const Tail& b) {
      return a.time <= b.time && a.in_flight <= b.in_flight;
    };
    if (std::ranges::any_of(known, [&](const Tail& other) { return undercuts(other, tail); })) return;
    std::erase_if(known, [&](const Tail& other) { return undercuts(tail, other); });
    known.push_back(tail);
  }

  const PartitionProblem& problem_;
  StageCosts costs_;
  int versions_;
  double limit_;
  int num_units_;
  std::vector<int> numbers_;                            // of replicas that a stage may have, ascending
  std::vector<std::vector<std::vector<Tail>>> layers_;  // by number of stages less 1, and place
};

}  // namespace

std::vector<std::optional<Partition>> best_partitions(const PartitionProblem& problem, int most_stages) {
  const int units = static_cast<int>(problem.units.size());
  most_stages = std::min({most_stages, problem.replicas, units});
  std::vector<std::optional<Partition>> best(index_of(most_stages));
  if (problem.micro_batches % problem.replicas == 0) {
    const Partition whole = with_costs(problem, {.first_units = {0}, .replicas = {problem.replicas}});
    if (StageCosts(problem).fits(whole.memory)) best.front() = whole;
  }
  const bool has_messages = problem.node_bandwidth > 0.0 || problem.link_bandwidth > 0.0;
  const auto search = [&](int versions) {
    const Search all(problem, most_stages, versions);
    for (int stages = 2; stages <= most_stages; ++stages) {
      std::optional<Partition> found = all.best(stages);
      // Passes are to be even where messages bound the time, too.
      if (found && has_messages) found = Search(problem, stages, versions, found->time).best(stages);
      std::optional<Partition>& known = best[index_of(stages) - 1];
      const auto costs = [](const Partition& plan) { return std::pair(plan.time, plan.passes); };
      if (found && (!known || costs(*found) < costs(*known))) known = found;
    }
  };
  if (problem.versions == VersionsKept::stashed) search(0);
  if (problem.versions == VersionsKept::double_buffered) search(2);
  if (problem.versions != VersionsKept::vertical_sync) return best;
  // No stage has more than two micro-batches in flight per replica of it and of those after it.
  const int most_versions = steps_of(problem.micro_batches, 2 * problem.replicas) + 1;
  for (int versions = problem.memory_bytes > 0.0 ? 2 : most_versions; versions <= most_versions; ++versions)
    search(versions);
  return best;
}

}  // namespace mylos
