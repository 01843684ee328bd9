// SPDX-License-Identifier: BSD-3-Clause
#include "app/text/schedule_text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "app/text/plan_text.hpp"
#include "app/text/stage_plans_text.hpp"
#include "core/base/join.hpp"
#include "core/base/number_text.hpp"
#include "core/base/statistics.hpp"
#include "parallel/plan/unit_costs.hpp"
#include "parallel/schedule/schedule_file.hpp"

namespace mylos {

void set_pass_times(RunConfig& config, const std::string& text) {
  const std::vector<std::string_view> words = split(text, ',');
  std::vector<double> times;
  try {
    for (const std::string_view word : words) times.push_back(parse_real(word));
  } catch (const Error& error) {
    fail(ExitCode::usage, "--pass-times={} {}; write F,I,W, such as 1,1,1", text, error.what());
  }
  constexpr double most = 1e12;
  if (times.size() != 3 || std::ranges::min(times) <= 0.0 || std::ranges::max(times) > most) {
    fail(ExitCode::usage,
         "--pass-times={} must be three times above 0 and at most 1e12, F,I,W, such as 1,1,1", text);
  }
  const PassTimes all{.forward = times[0], .input = times[1], .weight = times[2]};
  config.parallel.times.assign(static_cast<std::size_t>(config.cuts().chunks), all);
  config.time_unit = TimeUnit::given;
}

void check_is_one_step(const RunConfig& config) {
  if (!config.parallel.is_asynchronous()) return;
  fail(ExitCode::usage,
       "--write-schedule writes the passes of one step, but with schedule = {} steps overlap",
       config.parallel.schedule->name);
}

std::vector<Schedule> passes_of_step(const RunConfig& config) {
  return config.parallel.schedule->make(config.parallel.scope(config.train.accumulation));
}

namespace {

/// The passes that are played: of a step or, if steps overlap, of several, with the versions of the weights.
std::vector<Schedule> played_passes(const RunConfig& config) {
  const ParallelLayout& layout = config.parallel;
  std::vector<Schedule> stages =
      unrolled(passes_of_step(config), std::max(4 * static_cast<int>(layout.pipeline),
                                                2 * layout.scope(config.train.accumulation).micro_batches));
  if (!layout.schedule->is_asynchronous()) return stages;
  for (Schedule& stage : stages)
    stage.rules = layout.schedule->rules(layout.scope(config.train.accumulation));
  return stages;
}

bool is_whole(double number) {
  constexpr double most = 1e15;
  return number < most && std::floor(number) == number;
}

/// The part of passes in the simulation that takes time.
bool is_pass(const Action& action) {
  return is_of_micro_batch(action.kind) && !is_message(action.kind);
}

/// A simulated step and what its times mean.
class SimulatedStep {
 public:
  explicit SimulatedStep(const RunConfig& config)
      : config_(config), units_(unit_costs(config)), stages_(played_passes(config)) {
    std::vector<PassTimes> times = config.parallel.times;
    if (times.empty()) times = pass_times(units_, config.cuts());
    simulation_ = simulate(stages_, times, message_time());
  }

  const std::vector<Schedule>& stages() const { return stages_; }
  const Simulation& simulation() const { return simulation_; }
  double stages_time() const { return static_cast<double>(stages_.size()) * simulation_.makespan; }
  double busy() const {
    double busy = 0.0;
    for (const Simulation::Stage& stage : simulation_.stages) busy += stage.busy;
    return busy;
  }

  std::string unit() const {
    if (config_.time_unit == TimeUnit::given) return "";
    return config_.time_unit == TimeUnit::flops ? " GFLOP" : " s";
  }
  /// A time, without its unit.
  std::string text_of(double time) const {
    if (config_.time_unit == TimeUnit::given)
      return is_whole(time) ? fmt::format("{:.0f}", time) : fmt::format("{:.6g}", time);
    return fmt::format("{:.4g}", config_.time_unit == TimeUnit::flops ? 1e-9 * time : time);
  }
  std::string text_with_unit(double time) const {
    std::string text = text_of(time) + unit();
    if (config_.time_unit == TimeUnit::flops && config_.peak_tflops > 0.0)
      text += fmt::format(" ({:.4g} s at [machine] peak_tflops = {})", time / flops_per_second(),
                          config_.peak_tflops);
    return text;
  }
  std::string times_text() const;
  std::string bubble_text() const;
  /// Of steps that overlap: when the pipeline fills and drains, and what a micro-batch takes in between.
  std::string phases_text() const;
  /// A time that shows each pass as one or a few columns of a diagram.
  double column() const;

 private:
  double flops_per_second() const { return 1e12 * config_.peak_tflops; }
  /// How many units of time a second has; nothing if that is not known.
  std::optional<double> units_per_second() const {
    if (config_.time_unit == TimeUnit::seconds) return 1.0;
    if (config_.time_unit == TimeUnit::given || config_.peak_tflops == 0.0) return std::nullopt;
    return flops_per_second();
  }
  MessageTime message_time() const {
    const std::optional<LinkModel>& link = config_.comm.simulated_link;
    const std::optional<double> second = units_per_second();
    if (!link || !second) return {};
    // All messages are the residual stream between two blocks, or its gradient.
    const double bits = 8.0 * static_cast<double>(units_.front().output_bytes);
    return {.alpha = *second * link->latency, .seconds = *second * bits * 1e-9 / link->gigabits_per_second};
  }

  const RunConfig& config_;
  std::vector<UnitCost> units_;
  std::vector<Schedule> stages_;
  Simulation simulation_;
};

std::string SimulatedStep::times_text() const {
  const bool has_link = config_.comm.simulated_link.has_value();
  std::string messages = "take no time";
  if (has_link && units_per_second()) {
    messages = "take what [comm] simulate_alpha and simulate_gbps say";
  } else if (has_link) {
    messages += config_.time_unit == TimeUnit::given
                    ? ": --pass-times has no unit"
                    : ": [machine] peak_tflops does not say what a FLOP takes";
  }
  switch (config_.time_unit) {
    case TimeUnit::flops:
      return fmt::format("FLOPs of the operations; messages {}", messages);
    case TimeUnit::seconds:
      return fmt::format("seconds of the {}; messages {}",
                         config_.unit_profile.empty() ? "machine file" : "profile", messages);
    case TimeUnit::given:
      break;
  }
  const PassTimes& own = config_.parallel.times.front();
  return fmt::format("of every chunk F {}, I {}, W {}, B {}; messages {}", text_of(own.forward),
                     text_of(own.input), text_of(own.weight), text_of(own.backward()), messages);
}

std::string SimulatedStep::bubble_text() const {
  const double all = stages_time();
  const double idle = all - busy();
  std::string share = fmt::format("{:.2f} %, the idle share of all stages", 100.0 * idle / all);
  if (config_.time_unit != TimeUnit::given || !is_whole(all) || !is_whole(idle)) return share;
  const auto divisor = std::gcd(static_cast<std::int64_t>(idle), static_cast<std::int64_t>(all));
  return fmt::format("{}/{} = {}", static_cast<std::int64_t>(idle) / divisor,
                     static_cast<std::int64_t>(all) / divisor, share);
}

std::string SimulatedStep::phases_text() const {
  const std::vector<Action>& actions = stages_.front().actions;
  const auto& played = simulation_.stages.front().actions;
  double filled = -1.0;                      // the first backward pass of the first stage begins
  double drains = 0.0;                       // its last forward pass ends
  std::vector<std::pair<int, double>> ends;  // of its backward passes: micro-batch and time
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == ActionKind::forward) drains = std::max(drains, played[i].end);
    if (!is_backward(actions[i].kind)) continue;
    if (filled < 0.0) filled = played[i].begin;
    ends.emplace_back(actions[i].micro_batch, played[i].end);
  }
  std::vector<double> between;
  for (std::size_t i = 1; i < ends.size() && ends[i].second <= drains; ++i)
    between.push_back((ends[i].second - ends[i - 1].second) / (ends[i].first - ends[i - 1].first));
  std::string steady;
  if (!between.empty()) steady = fmt::format(", {}{} per micro-batch", text_of(median(between)), unit());
  return fmt::format("startup until {}, steady state until {}{}, drain until {}", text_of(filled),
                     text_of(drains), steady, text_of(simulation_.makespan));
}

double SimulatedStep::column() const {
  constexpr double most = 6.0;  // columns of a pass
  double longest = 0.0;
  double shortest = simulation_.makespan;
  std::int64_t common = 0;  // divisor of all times
  for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
    for (std::size_t i = 0; i < stages_[stage].actions.size(); ++i) {
      if (!is_pass(stages_[stage].actions[i])) continue;
      const auto [begin, end] = simulation_.stages[stage].actions[i];
      longest = std::max(longest, end - begin);
      shortest = std::min(shortest, end - begin);
      if (is_whole(end)) common = std::gcd(common, static_cast<std::int64_t>(end));
      if (!is_whole(end)) common = 1;
    }
  }
  const auto exact = static_cast<double>(common);
  if (config_.time_unit == TimeUnit::given && is_whole(longest) && longest <= most * exact) return exact;
  return std::max(shortest, longest / most);
}

/// Whether the passes of a diagram need the numbers of their chunks.
bool names_chunks(std::span<const Schedule> stages) {
  return std::ranges::any_of(stages, [](const Schedule& stage) { return stage.held_chunks().size() > 1; });
}

/// The name of a list: "stage 1" or, of replicas, "stage 1/0".
std::string name_of(std::span<const Schedule> lists, std::size_t list) {
  if (lists.front().rules.empty() || std::ssize(lists) <= lists.front().chunks)
    return fmt::format("stage {}", list);
  const auto stage_of = [&](std::size_t other) { return *lists[other].held_chunks().begin(); };
  std::size_t first = list;
  while (first > 0 && stage_of(first - 1) == stage_of(list)) --first;
  return fmt::format("stage {}/{}", stage_of(list), list - first);
}

/// Columns [first, last) of a diagram.
struct ColumnRange {
  std::int64_t first = 0;
  std::int64_t last = 0;
};

/// Draws a simulated step.
class Diagram {
 public:
  Diagram(std::span<const Schedule> stages, const Simulation& simulation, double column)
      : stages_(stages), simulation_(simulation), column_(column) {
    for (const Schedule& stage : stages) {
      for (const Action& action : stage.actions) {
        if (is_pass(action)) width_ = std::max(width_, cell_of(action).size() + 1);
      }
    }
  }
  std::size_t width() const { return width_; }

  /// The number of every fifth column.
  std::string numbers(ColumnRange range) const {
    std::string text;
    for (std::int64_t number = range.first; number < range.last; ++number) {
      text.resize(std::max(text.size(), static_cast<std::size_t>(number - range.first) * width_), ' ');
      if (number % 5 == 0) text += std::to_string(number);
    }
    text.resize(static_cast<std::size_t>(range.last - range.first) * width_, ' ');
    return text;
  }

  std::string row(std::size_t stage, ColumnRange range) const {
    std::string idle = ".";
    idle.resize(width_, ' ');
    std::vector<std::string> cells(static_cast<std::size_t>(range.last - range.first), idle);
    for (std::size_t i = 0; i < stages_[stage].actions.size(); ++i) {
      const Action& action = stages_[stage].actions[i];
      if (!is_pass(action)) continue;
      const auto [begin, end] = columns_of(simulation_.stages[stage].actions[i]);
      for (std::int64_t at = std::max(begin, range.first); at < std::min(end, range.last); ++at) {
        std::string& cell = cells[static_cast<std::size_t>(at - range.first)];
        cell = at == begin ? cell_of(action) : "";
        cell.resize(width_ - 1, end - begin > 1 ? '-' : ' ');
        cell += at + 1 < end ? '-' : ' ';
      }
    }
    return join(cells, "");
  }

  /// The passes that have no column.
  std::size_t num_hidden() const {
    std::size_t hidden = 0;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      for (std::size_t i = 0; i < stages_[stage].actions.size(); ++i) {
        const auto [begin, end] = columns_of(simulation_.stages[stage].actions[i]);
        hidden += is_pass(stages_[stage].actions[i]) && begin == end ? 1 : 0;
      }
    }
    return hidden;
  }

 private:
  std::pair<std::int64_t, std::int64_t> columns_of(const Simulation::Interval& interval) const {
    return {std::llround(interval.begin / column_), std::llround(interval.end / column_)};
  }
  std::string cell_of(const Action& pass) const {
    std::string cell = fmt::format("{}{}{}", names_chunks(stages_) ? std::to_string(pass.chunk) : "",
                                   letter_of(pass.kind), pass.micro_batch);
    const std::vector<VersionRule>& rules = stages_.front().rules;
    if (!rules.empty()) {
      const VersionRule& rule = rules[static_cast<std::size_t>(pass.chunk)];
      cell += fmt::format(":{}", rule.version_of(pass.micro_batch));
    }
    return cell;
  }

  std::span<const Schedule> stages_;
  const Simulation& simulation_;
  double column_;
  std::size_t width_ = 0;
};

}  // namespace

std::string diagram_text(std::span<const Schedule> stages, const Simulation& simulation, double column) {
  constexpr std::size_t most_characters = 240;
  const Diagram diagram(stages, simulation, column);
  const std::int64_t all = std::max<std::int64_t>(1, std::llround(simulation.makespan / column));
  const auto most = static_cast<std::int64_t>(most_characters / diagram.width());
  std::vector<ColumnRange> ranges = {{0, all}};
  if (all > most) ranges = {{0, most / 2}, {all - most / 2, all}};
  std::string text;
  const auto add_line = [&](const std::string& name, const auto& part_of) {
    std::vector<std::string> parts;
    for (const ColumnRange& range : ranges) parts.push_back(part_of(range));
    const std::string line = fmt::format("  {:<8} {}", name, join(parts, "... "));
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  add_line("column", [&](ColumnRange range) { return diagram.numbers(range); });
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    add_line(name_of(stages, stage), [&](ColumnRange range) { return diagram.row(stage, range); });
  }
  if (ranges.size() > 1)
    text += fmt::format("  columns {} to {} of {} are left out\n", ranges[0].last, ranges[1].first - 1, all);
  if (const std::size_t hidden = diagram.num_hidden(); hidden > 0)
    text += fmt::format("  {} passes are too short to be drawn\n", hidden);
  return text;
}

namespace {

/// The letters of a diagram.
std::string legend(const std::vector<Schedule>& stages) {
  std::vector<std::string> letters;
  for (const auto& [kind, meaning] :
       {std::pair(ActionKind::forward, "forward"), std::pair(ActionKind::backward, "backward"),
        std::pair(ActionKind::backward_input, "input gradients"),
        std::pair(ActionKind::backward_weight, "weight gradients")}) {
    const auto has_kind = [kind = kind](const Schedule& stage) { return stage.has(kind); };
    if (std::ranges::any_of(stages, has_kind))
      letters.push_back(fmt::format("{} {}", letter_of(kind), meaning));
  }
  return fmt::format("{}, then the micro-batch{}{}", join(letters, ", "),
                     stages.front().rules.empty() ? "" : " and, after a colon, the version of the weights",
                     names_chunks(stages) ? "; before that, the chunk" : "");
}

/// The messages of a stage in one direction.
std::pair<std::uint64_t, std::uint64_t> count_and_bytes(const RunPlan& plan, CommOperation operation) {
  std::pair<std::uint64_t, std::uint64_t> sum;
  for (const TrafficRow& row : plan.traffic) {
    if (row.operation != operation) continue;
    sum.first += row.calls;
    sum.second += row.payload_bytes;
  }
  return sum;
}

std::string stages_text(const RunConfig& config, const SimulatedStep& step, std::span<const RunPlan> plans) {
  const Simulation& simulation = step.simulation();
  std::vector<std::vector<std::string>> rows = {
      {"stage", "units", "parameters", "memory GB", "work" + step.unit(), "of all", "idle" + step.unit(),
       "idle share", "in flight", "sent", "sent MB", "received", "received MB"}};
  const std::vector<VersionRule>& rules = step.stages().front().rules;
  if (plans.size() == rules.size()) rows.front().insert(rows.front().end(), {"delay", "versions"});
  for (std::size_t stage = 0; stage < plans.size(); ++stage) {
    const RunPlan& plan = plans[stage];
    const ParameterTable table = config.table(config.parallel.coordinates(plan.rank));
    std::int64_t parameters = 0;
    for (const Parameter& parameter : table.parameters()) parameters += parameter.size();
    const auto list =
        static_cast<std::size_t>(config.parallel.list_of(config.parallel.coordinates(plan.rank)));
    const Simulation::Stage& own = simulation.stages[list];
    const auto [sent, sent_bytes] = count_and_bytes(plan, CommOperation::send);
    const auto [received, received_bytes] = count_and_bytes(plan, CommOperation::recv);
    const auto percent = [](double share) { return fmt::format("{:.2f} %", 100.0 * share); };
    const auto scaled = [](double value, double scale) { return fmt::format("{:.3f}", scale * value); };
    rows.push_back({std::to_string(stage), units_text(table), std::to_string(parameters),
                    scaled(static_cast<double>(plan.memory_total()), 1e-9), step.text_of(own.busy),
                    percent(own.busy / step.busy()), step.text_of(simulation.makespan - own.busy),
                    percent(simulation.idle_share(list)), std::to_string(own.activations),
                    std::to_string(sent), scaled(static_cast<double>(sent_bytes), 1e-6),
                    std::to_string(received), scaled(static_cast<double>(received_bytes), 1e-6)});
    if (plans.size() != rules.size()) continue;
    rows.back().push_back(std::to_string(rules[stage].delay));
    rows.back().push_back(std::to_string(rules[stage].versions()));
  }
  return aligned(rows);
}

}  // namespace

std::string simulation_text(const RunConfig& config, std::span<const RunPlan> plans) {
  const SimulatedStep step(config);
  const ScheduleScope scope = config.parallel.scope(config.train.accumulation);
  const auto counted = [](int count, std::string_view what) {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
  };
  std::string text =
      fmt::format("schedule     {}: {}, {} per step, {} per stage\n", config.parallel.schedule->name,
                  counted(scope.stages, "stage"),
                  fmt::format("{} micro-batch{}", scope.micro_batches, scope.micro_batches == 1 ? "" : "es"),
                  counted(scope.chunks, "chunk"));
  text += fmt::format("pass times   {}\n", step.times_text());
  text += fmt::format("makespan     {}", step.text_with_unit(step.simulation().makespan));
  const int played = step.stages().front().micro_batches;
  if (played > scope.micro_batches) {
    text += fmt::format(" for {} steps, {} micro-batches\nphases       {}", played / scope.micro_batches,
                        played, step.phases_text());
  }
  text += '\n';
  text += fmt::format("bubble       {}\n", step.bubble_text());
  text += stages_text(config, step, plans);
  const double column = step.column();
  const std::string unit = column == 1.0 && step.unit().empty()
                               ? ""
                               : fmt::format("; a column is {}{}", step.text_of(column), step.unit());
  text += fmt::format("diagram      {}{}\n", legend(step.stages()), unit);
  text += diagram_text(step.stages(), step.simulation(), column);
  return config.partition ? text + "\n" + stage_plans_text(config) : text;
}

}  // namespace mylos
