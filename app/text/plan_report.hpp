// SPDX-License-Identifier: BSD-3-Clause
// PlanReport: what `mylos plan` says of a deck: memory, payload, FLOPs and, with a machine file, time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/launch/setup.hpp"
#include "io/json.hpp"
#include "parallel/plan/played_step.hpp"
#include "parallel/plan/run_plan.hpp"

namespace mylos {

/// FLOPs per token.
struct FlopsOfToken {
  double executed = 0.0;  ///< by all ranks, recomputation included
  double causal = 0.0;    ///< 6N + 6LCT: scores of the pairs that a causal model uses
  double whole = 0.0;     ///< 6N + 12LCT
  // Shares of `whole`.
  double projections = 0.0;  ///< of attention
  double feed_forward = 0.0;
  double scores = 0.0;
  double head = 0.0;
};

class PlanReport {
 public:
  /// Plans the run of `setup`. `keeps_events`: for `write_traces`.
  PlanReport(const Setup& setup, bool keeps_events);

  const RunPlan& plan() const { return largest_of(plans_); }
  const PlayedStep& played() const { return played_; }
  /// Whether there is a machine file, and hence times.
  bool has_times() const { return machine_ != nullptr; }
  double tokens_per_second() const { return static_cast<double>(plan().tokens_per_step) / played_.step; }

  /// What the machine file lacks, and what is used instead.
  std::vector<std::string> assumed() const;
  std::string text() const;
  Json json() const;
  /// A header and a row per number: section, name, value, unit.
  std::string csv() const;
  /// Writes trace-RANK.json for each rank of those that differ; makes the folder.
  void write_traces(const std::filesystem::path& folder) const;

 private:
  struct Number {
    std::string section, name;
    double value = 0.0;
    std::string unit;
  };
  /// All numbers of the report.
  std::vector<Number> numbers() const;
  bool has_pass_times() const { return config_.time_unit == TimeUnit::given; }
  /// Whether runs on the machine use a backend that is not installed here.
  bool is_backend_elsewhere() const;
  std::string memory_left_text() const;
  std::string flops_text() const;
  std::string time_text() const;
  /// Tokens of a rank's micro-batch from which on communication is hidden; 0: there is none.
  struct Hiding {
    double rate = 0.0;                               ///< FLOP/s of products
    double gather_tokens = 0.0, gather_speed = 0.0;  ///< of weights; bytes/s
    double sum_tokens = 0.0, sum_speed = 0.0;        ///< of gradients
  };
  Hiding hiding() const;
  std::string hiding_text() const;
  std::string run_text() const;
  double peak() const;
  double mfu() const;
  double hfu() const;
  /// FLOPs of a rank and step, of the mean rank.
  double executed_flops() const;

  const Setup& setup_;
  const RunConfig& config_;
  const Machine* machine_;
  std::vector<RunPlan> plans_;
  PlayedStep played_;
  FlopsOfToken flops_;
  /// What a step would take without something, by its name, the shortest first.
  std::vector<std::pair<std::string, double>> without_;
};

/// The planned step, as a traced run names it.
inline constexpr const char* planned_trace = "trace-0.json";

/// `planned_setup`, on nodes as the machine file has them unless --ranks-per-node says otherwise. Throws
/// ExitCode::usage if a node has fewer ranks, or the ranks do not fill nodes.
Setup setup_on_machine(CommandLine line, const std::string& name);

/// How a deck's run is played: nodes, algorithm, graphs, simulated link.
PlayOptions play_options(const RunConfig& config, const Machine* machine);

}  // namespace mylos
