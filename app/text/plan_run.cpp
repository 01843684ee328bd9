// SPDX-License-Identifier: BSD-3-Clause
#include "app/text/plan_run.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <system_error>
#include <vector>

#include "app/launch/run_directory.hpp"
#include "app/text/plan_report.hpp"
#include "app/text/plan_text.hpp"
#include "app/text/planned_setup.hpp"
#include "core/base/join.hpp"
#include "core/base/statistics.hpp"
#include "io/io_thread.hpp"
#include "io/metrics/metrics.hpp"

namespace mylos {

namespace {

/// The steps of the last launch, without the first ones, in which memory is touched and kernels are chosen.
class MeasuredSteps {
 public:
  MeasuredSteps(const MetricsTable& steps, double first_step) {
    constexpr std::size_t first_ones = 2;
    const std::vector<double>& numbers = steps.at("step");
    const auto begin = std::ranges::upper_bound(numbers, first_step) - numbers.begin();
    const std::size_t all = numbers.size() - static_cast<std::size_t>(begin);
    first_ = static_cast<std::size_t>(begin) + std::min(first_ones, all > 0 ? all - 1 : 0);
    count_ = numbers.size() - std::min(first_, numbers.size());
    for (const auto& [name, values] : steps) {
      std::vector<double> own(values.begin() + static_cast<std::ptrdiff_t>(first_), values.end());
      std::erase_if(own, [](double value) { return std::isnan(value); });
      if (!own.empty()) medians_[name] = median(own);
    }
  }
  std::size_t count() const { return count_; }
  std::optional<double> of(const std::string& column) const {
    const auto found = medians_.find(column);
    return found == medians_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::map<std::string, double> medians_;
};

/// The rows of the comparison.
class Comparison {
 public:
  void bytes(const std::string& name, double planned, std::optional<double> found) {
    add(name, planned, found, [](double value) { return fmt::format("{:.0f}", value); });
  }
  void seconds(const std::string& name, double planned, std::optional<double> found) {
    add(name, planned, found, [](double value) { return fmt::format("{:.6f}", value); });
  }
  std::string text() const { return aligned(rows_); }

 private:
  void add(const std::string& name, double planned, std::optional<double> found, const auto& text_of) {
    std::string difference = "not recorded";
    if (found) {
      difference = planned == *found ? "the same"
                   : *found == 0.0   ? "none in the run"
                                     : fmt::format("{:+.1f} %", 100.0 * (planned / *found - 1.0));
    }
    rows_.push_back({name, text_of(planned), found ? text_of(*found) : "-", difference});
  }

  std::vector<std::vector<std::string>> rows_ = {{"", "plan", "run", "plan over run"}};
};

/// The blocks of each chunk: "8,4".
std::string blocks_of_chunks(const RunConfig& config) {
  const ModelCuts cuts = config.cuts();
  std::vector<std::int64_t> blocks;
  for (int chunk = 0; chunk < cuts.chunks; ++chunk) {
    const std::int64_t first = std::max(1, cuts.first_block(config.model, chunk));
    const bool is_last = chunk + 1 == cuts.chunks;
    const std::int64_t end = is_last ? config.model.layers + 1 : cuts.first_block(config.model, chunk + 1);
    blocks.push_back(std::max<std::int64_t>(0, end - first));
  }
  return join(blocks, ",");
}

}  // namespace

int plan_run(const CommandLine& line, const std::string& folder) {
  const RunPaths paths{folder};
  std::error_code unknown;
  if (!std::filesystem::exists(paths.resolved_deck(), unknown))
    fail(ExitCode::usage, "{} holds no run: it has no {}", folder, paths.resolved_deck().filename().string());
  if (!std::filesystem::exists(paths.metrics(), unknown))
    fail(ExitCode::usage, "{} has no metrics: {} is missing", folder, paths.metrics().filename().string());
  IoThread io;
  const MetricsTable launches = read_metrics(io, paths.metrics(), "launches");
  const MetricsTable steps = read_metrics(io, paths.metrics(), "steps");
  const bool has_launches = launches.contains("ranks") && !launches.at("ranks").empty();
  if (!has_launches || !steps.contains("step") || steps.at("step").empty())
    fail(ExitCode::usage, "{} has no finished step to compare, or metrics of another version of mylos",
         folder);
  // The last launch that has trained.
  std::size_t launch = launches.at("ranks").size() - 1;
  while (launch > 0 && launches.at("step")[launch] >= steps.at("step").back()) --launch;
  const MeasuredSteps run(steps, launches.at("step")[launch]);
  if (run.count() == 0) fail(ExitCode::usage, "{} has no finished step to compare", folder);
  CommandLine own = line;
  const auto ranks = static_cast<std::int64_t>(launches.at("ranks")[launch]);
  own.options["ranks"] = ranks;
  if (launches.contains("ranks_per_node") && !line.has("ranks-per-node")) {
    const double per_node = launches.at("ranks_per_node")[launch];
    if (per_node > 0.0) own.options["ranks-per-node"] = static_cast<std::int64_t>(per_node);
  }
  const std::string deck = paths.resolved_deck().string();
  // The stages are cut as the run has cut them, without the machine of this plan.
  CommandLine without_machine = own;
  std::erase_if(without_machine.overrides, [](const auto& change) { return change.first == "machine.file"; });
  const RunConfig cut = planned_setup(without_machine, deck).config;
  if (cut.parallel.pipeline > 1) own.overrides.emplace_back("parallel.stages", blocks_of_chunks(cut));
  const Setup setup = setup_on_machine(own, deck);
  const PlanReport report(setup, false);
  const RunPlan rank0 = plans_of(setup).front();
  Comparison rows;
  for (int i = 0; i < num_memory_categories; ++i) {
    const std::string name = fmt::format("memory_{}", name_of(static_cast<MemoryCategory>(i)));
    const auto planned = static_cast<double>(rank0.memory[static_cast<std::size_t>(i)]);
    if (planned > 0.0 || run.of(name).value_or(0.0) > 0.0) rows.bytes(name, planned, run.of(name));
  }
  for (const TrafficRow& row : rank0.traffic) {
    const std::string name = fmt::format("payload_{}_{}", row.axis, name_of(row.operation));
    rows.bytes(name, static_cast<double>(row.payload_bytes), run.of(name));
  }
  if (report.has_times()) {
    // As in metrics, of all ranks the longest.
    std::array<double, 4> longest{};
    std::map<std::string, double> waits;
    for (const PlayedStep::Lane& lane : report.played().lanes) {
      for (std::size_t i = 0; i < longest.size(); ++i) longest[i] = std::max(longest[i], lane.phases[i]);
      for (const auto& [axis, seconds] : lane.waits) waits[axis] = std::max(waits[axis], seconds);
    }
    constexpr std::array<const char*, 4> phases = {"forward", "backward", "communication", "optimizer"};
    for (std::size_t i = 0; i < phases.size(); ++i)
      rows.seconds(fmt::format("time_{}", phases[i]), longest[i], run.of(fmt::format("time_{}", phases[i])));
    for (const auto& [axis, seconds] : waits) {
      const std::string name = fmt::format("wait_{}", axis);
      rows.seconds(name, seconds, run.of(name));
    }
    rows.seconds("rank_time_max", report.played().step, run.of("rank_time_max"));
  }
  fmt::print("{} rank{}, medians of {} step{}\n{}", setup.config.parallel.world_size(),
             setup.config.parallel.world_size() == 1 ? "" : "s", run.count(), run.count() == 1 ? "" : "s",
             rows.text());
  if (!report.has_times()) fmt::print("times are not compared: give a machine file with --machine=FILE\n");
  for (const std::string& what : report.assumed()) fmt::print("assumed      {}\n", what);
  return 0;
}

}  // namespace mylos
