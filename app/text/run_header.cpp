// SPDX-License-Identifier: BSD-3-Clause
#include "app/text/run_header.hpp"

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "app/launch/environment.hpp"
#include "app/text/planned_setup.hpp"
#include "core/base/clock.hpp"
#include "core/base/host.hpp"
#include "core/base/join.hpp"
#include "core/base/processors.hpp"

namespace mylos {

namespace {

/// "2 ranks on 2 nodes (n1, n2), Slurm job 17, restart 1, ends in 3:58:10"
std::string placement_text(const MpiRuntime& mpi, std::optional<std::int64_t> end_time) {
  constexpr std::size_t most_names = 8;
  std::vector<std::string> names = mpi.hosts();
  const auto count = [](std::size_t number, const char* what) {
    return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
  };
  const std::string nodes = count(names.size(), "node");
  if (names.size() > most_names) {
    names.resize(most_names);
    names.emplace_back("...");
  }
  std::string text = fmt::format("{} on {} ({})", count(static_cast<std::size_t>(mpi.size()), "rank"), nodes,
                                 join(names, ", "));
  if (const std::optional<SlurmJob> job = slurm_job()) {
    text += fmt::format(", Slurm job {}", job->id);
    if (job->restarts > 0) text += fmt::format(", restart {}", job->restarts);
  }
  if (end_time) text += ", ends in " + clock_text(static_cast<double>(*end_time - std::time(nullptr)));
  return text;
}

/// The layout that the partitioner has chosen: "2 stages of 8,4 blocks with 2,1 replicas".
std::string chosen_stages_text(const ParamValues& values) {
  const std::int64_t stages = values.integer("parallel.pipeline");
  if (stages == 1) return "one stage, plain data parallelism";
  const std::string& replicas = values.text("parallel.replicas");
  return fmt::format("{} stages of {} blocks with {} replicas{}", stages, values.text("parallel.stages"),
                     replicas.empty() ? std::to_string(values.integer("parallel.data")) : replicas,
                     replicas.empty() ? " each" : "");
}

}  // namespace

void print_header(Console& console, const MpiRuntime& mpi, const Setup& setup, Session& session,
                  double peak_tflops) {
  if (mpi.rank() > 0) return;  // the plans of all stages take a while
  const RunConfig& c = setup.config;
  const RunPlan plan = plan_of(setup);
  console.line(fmt::format("mylos: {} parameters, {} steps of {} tokens, {}, {:.3f} GB per rank",
                           plan.parameters, c.limits.steps, plan.tokens_per_step, name_of(c.train.dtype),
                           1e-9 * static_cast<double>(plan.memory_total())));
  const std::string algorithm = session.algorithm() == "native" ? "" : " by " + session.algorithm();
  console.line("       " + placement_text(mpi, c.limits.end_time));
  console.line(fmt::format("       comm {}{}, compute {}: {}", c.backend.comm, algorithm, c.backend.compute,
                           session.compute().description()));
  const DeckEntry* replicas = setup.deck.find("parallel.replicas");
  if (replicas != nullptr && replicas->value == "auto")
    console.line("       chosen: " + chosen_stages_text(setup.values));
  const std::string& limit = c.backend.threads_limit;
  console.line(fmt::format("       {} thread{} per rank{}, rank 0 on cores {}", c.backend.threads,
                           c.backend.threads == 1 ? "" : "s", limit.empty() ? "" : " (" + limit + ")",
                           text_of(own_processors())));
  console.line(fmt::format("       MFU refers to {:.3f} TFLOP/s per rank, {}", peak_tflops,
                           c.peak_tflops > 0.0 ? "from the deck" : "a measured matrix product"));
}

}  // namespace mylos
