// SPDX-License-Identifier: BSD-3-Clause
#include "benchmarks/step/measurement.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <mpi.h>

#include "app/commands/random_tokens.hpp"
#include "core/base/statistics.hpp"
#include "parallel/engine/list_check.hpp"

namespace mylos {

namespace {

/// Provides random tokens and counts the traffic of a step until its gradients are reduced.
class CountedTokens final : public RandomTokens {
 public:
  CountedTokens(const RunConfig& config, const TrafficCounter& traffic)
      : RandomTokens(config.model.vocab, config.train.seq_len), traffic_(traffic) {}

  /// Call before a step.
  void begin() { before_ = traffic_.table(); }
  void after(const Action& action, std::int64_t /*step*/) override {
    if (action.kind == ActionKind::reduce) after_ = traffic_.table();
  }

  /// The collectives and messages of the step until its gradients are reduced.
  std::vector<TrafficRow> reduce_traffic() const { return subtract(after_, before_); }

 private:
  const TrafficCounter& traffic_;
  std::vector<TrafficRow> before_, after_;
};

/// The elementwise maximum over all ranks.
template <std::size_t N>
void take_maximum(std::array<double, N>& values) {
  MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(N), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

StepCost over_ranks(double seconds, const PhaseSeconds& phases) {
  std::array<double, num_step_phases + 2> values{};
  std::ranges::copy(phases, values.begin());
  values[num_step_phases] = seconds;
  values[num_step_phases + 1] = -std::accumulate(phases.begin(), phases.end(), 0.0) / seconds;
  take_maximum(values);
  StepCost cost;
  std::copy_n(values.begin(), num_step_phases, cost.phases.begin());
  cost.seconds = values[num_step_phases];
  cost.coverage = -values[num_step_phases + 1];
  return cost;
}

void visit(Session& session, const RunConfig& config, const Repetitions& repetitions,
           Measurement& measurement) {
  const std::size_t in_use_before = session.compute().device_bytes_in_use();
  const RankProgram program(config, session.grid().coordinates());
  check_lists(session.compute(), session.grid(), program);
  TrainingStep training(session.compute(), session.ledger(), session.grid(), program, session.trace());
  training.initialise();
  CountedTokens driver(config, session.traffic());
  const int first_traced = repetitions.warm_up + repetitions.steps + 1;
  int num_read = 0;
  const auto read_results = [&] {
    training.read_results();
    ++num_read;
    const StepResults& results = training.results();
    // Taking the maximum also makes the ranks queue the next step together.
    const StepCost cost = over_ranks(results.seconds, results.phase_seconds);
    if (results.scalars.skip != 0) {
      fail(ExitCode::numerical, "step {} was not applied: loss {}, gradient norm {}", num_read,
           results.scalars.loss, results.scalars.gradient_norm);
    }
    if (num_read > repetitions.warm_up && num_read < first_traced) measurement.steps.push_back(cost);
  };
  for (int step = 1; step < first_traced + repetitions.traced; ++step) {
    const bool is_traced = step >= first_traced;
    driver.begin();
    if (is_traced) session.trace().start();
    training.run(step, step, driver);
    session.trace().stop();
    if (is_traced) measurement.profiles.push_back(profile_of(session.trace()));
    // Steps are queued ahead, as in a training run, except that the queue is empty before and after a traced
    // step.
    const std::size_t to_leave = step + 1 < first_traced ? training.num_to_leave_unread() : 0;
    while (training.num_unread() > to_leave) read_results();
  }
  measurement.parameters = training.table().num_parameters();
  measurement.reduce_calls = measurement.reduce_bytes = 0;
  for (const TrafficRow& row : driver.reduce_traffic()) {
    measurement.reduce_calls += row.calls;
    measurement.reduce_bytes += row.payload_bytes;
  }
  std::array<double, num_memory_categories + 1> memory{};
  for (std::size_t i = 0; i < num_memory_categories; ++i) {
    memory[i] = static_cast<double>(session.ledger().current(static_cast<MemoryCategory>(i)));
  }
  memory.back() =
      static_cast<double>(session.compute().device_bytes_in_use()) - static_cast<double>(in_use_before);
  take_maximum(memory);
  const auto whole = [](double bytes) { return static_cast<std::int64_t>(bytes); };
  std::transform(memory.begin(), memory.end() - 1, measurement.memory.begin(), whole);
  measurement.device_bytes = whole(memory.back());
}

double seconds_of(const StepCost& step) {
  return step.seconds;
}

auto seconds_of_phase(StepPhase phase) {
  return [phase](const StepCost& step) { return step.phases[static_cast<std::size_t>(phase)]; };
}

}  // namespace

double Measurement::quantile(double q, const Value& value) const {
  std::vector<double> values(steps.size());
  std::ranges::transform(steps, values.begin(), value);
  return mylos::quantile(std::move(values), q);
}

double Measurement::ratio(const Measurement& first, const Value& value) const {
  std::vector<double> ratios(steps.size());
  std::ranges::transform(steps, first.steps, ratios.begin(), [&](const StepCost& own, const StepCost& other) {
    return value(own) / value(other);
  });
  return mylos::quantile(std::move(ratios), 0.5);
}

double Measurement::step_seconds(double q) const {
  return quantile(q, seconds_of);
}

double Measurement::phase_seconds(StepPhase phase) const {
  return quantile(0.5, seconds_of_phase(phase));
}

double Measurement::step_ratio(const Measurement& first) const {
  return ratio(first, seconds_of);
}

double Measurement::phase_ratio(const Measurement& first, StepPhase phase) const {
  return ratio(first, seconds_of_phase(phase));
}

double Measurement::coverage() const {
  return quantile(0.5, [](const StepCost& step) { return step.coverage; });
}

std::vector<Measurement> measure(Session& session, const std::vector<Configuration>& configurations,
                                 const Repetitions& repetitions) {
  std::vector<Measurement> measurements(configurations.size());
  for (int round = 0; round < repetitions.rounds; ++round) {
    for (std::size_t i = 0; i < configurations.size(); ++i) {
      visit(session, configurations[i].config, repetitions, measurements[i]);
      if (session.rank() != 0) continue;
      fmt::print(stderr, "round {} of {}, {}: {:.1f} ms\n", round + 1, repetitions.rounds,
                 configurations[i].name, 1e3 * measurements[i].steps.back().seconds);
    }
  }
  return measurements;
}

}  // namespace mylos
