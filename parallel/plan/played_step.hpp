// SPDX-License-Identifier: BSD-3-Clause
// PlayedStep: the list that a trainer executes, played on a clock.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/trace/trace.hpp"
#include "parallel/collectives/simulated_link.hpp"
#include "parallel/engine/rank_program.hpp"
#include "parallel/engine/step_config.hpp"
#include "parallel/health/traffic.hpp"
#include "parallel/plan/machine.hpp"

namespace mylos {

/// What to play besides the layout.
struct PlayOptions {
  std::int64_t ranks_per_node = 0;   ///< 0: all ranks are on one node
  std::string algorithm = "native";  ///< comm.algorithm
  bool has_graphs = false;           ///< the host queues operations between communications as one graph
  /// Takes no time: the calls of an axis, "host", or "memory", operations that are neither products nor
  /// attention.
  std::string left_out{};
  /// By chunk: what its passes take instead of their operations. Nothing else then takes time.
  std::vector<PassTimes> pass_times{};
  bool keeps_events = false;        ///< for a trace
  std::optional<LinkModel> link{};  ///< comm.simulate_alpha and simulate_gbps
};

/// Seconds of a step; of a rank that stands for several the longest of all.
struct PlayedStep {
  struct Operation {
    double seconds = 0.0;  ///< of the rank with the most
    std::int64_t calls = 0;
    double flops = 0.0;
  };
  /// A rank of those that differ.
  struct Lane {
    int rank = 0;
    int stage = 0;
    double busy = 0.0;                              ///< in operations
    double idle = 0.0;                              ///< waiting for other ranks' sides of calls
    double host = 0.0;                              ///< waiting for the host to queue work
    std::map<std::string, double> waits{};          ///< by axis: waiting with nothing else to do
    std::map<std::string, double> communication{};  ///< by axis: time of its calls, overlapped or not
    std::array<double, 4> phases{};                 ///< forward, backward, communication, optimizer
    double forward_work = 0.0;                      ///< in operations of forward passes
    double longest_gather = 0.0;                    ///< of one all_gather in a forward pass, alone
    double gathered_bytes = 0.0;                    ///< its payload
    double reduced_bytes = 0.0;  ///< payload of sums along the data axis, and what they take
    double reduced_seconds = 0.0;
    double node_bytes = 0.0;  ///< payload of calls within a node, and of others
    double network_bytes = 0.0;
    std::map<std::string, Operation> operations{};
    std::vector<TrafficRow> traffic{};
    std::vector<TraceEvent> events{};  ///< of the step
  };
  double step = 0.0;
  std::vector<Lane> lanes;
  std::set<std::string> fallbacks;
  std::set<std::string> labels;  ///< of axes, to which events refer

  /// The lane with the most work, of equal ones the first.
  const Lane& busiest() const;
  /// The share of all lanes' time in which they wait for others, not for what communication takes.
  double bubble() const;
};

/// The lists of the ranks that differ, which can be played again and again.
class PlayableStep {
 public:
  /// `config` must outlive the object.
  explicit PlayableStep(const StepConfig& config);
  PlayableStep(const PlayableStep&) = delete;
  PlayableStep& operator=(const PlayableStep&) = delete;

  PlayedStep play(const Machine& machine, const PlayOptions& options = {}) const;

  struct List {
    std::unique_ptr<RankProgram> program;
    int rank = 0;
  };
  const StepConfig& config() const { return config_; }
  const std::vector<List>& lists() const { return lists_; }
  /// Of all ranks.
  const std::vector<Coordinates>& places() const { return places_; }

 private:
  const StepConfig& config_;
  std::vector<Coordinates> places_;
  std::vector<List> lists_;
};

inline PlayedStep play_step(const StepConfig& config, const Machine& machine,
                            const PlayOptions& options = {}) {
  return PlayableStep(config).play(machine, options);
}

}  // namespace mylos
