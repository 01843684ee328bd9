// SPDX-License-Identifier: BSD-3-Clause
#include "app/text/planned_setup.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "app/deck/unchecked_deck.hpp"
#include "app/launch/session.hpp"
#include "app/launch/stop_signals.hpp"
#include "app/train/choice_evaluator.hpp"
#include "core/base/join.hpp"
#include "core/base/number_text.hpp"
#include "parallel/layout/axis_kinds.hpp"

namespace mylos {

namespace {

/// Returns the number of ranks of `planned_setup`.
std::int64_t planned_ranks(const CommandLine& line, const std::string& text) {
  if (line.has("ranks")) {
    const std::int64_t ranks = line.integer("ranks");
    if (ranks < 1) fail(ExitCode::usage, "--ranks={} must be at least 1", ranks);
    return ranks;
  }
  const UncheckedDeck deck(text, line.overrides);
  constexpr std::int64_t most = 1 << 20;
  const auto extent = [&](std::string_view key) {
    return std::clamp<std::int64_t>(deck.integer(key), 1, most);
  };
  const std::string& replicas = deck.text("parallel.replicas");
  std::int64_t ranks = 1;
  for (const AxisKind* kind : rank_factors(replicas.empty() ? AxisSet() : replica_axes))
    ranks *= extent(key_of(kind->key));
  if (replicas.empty()) return ranks;
  std::int64_t sum = 0;
  for (const std::string_view word : split(replicas, ',')) {
    try {
      sum += std::clamp<std::int64_t>(parse_integer(word).value_or(1), 1, most);
    } catch (const Error&) {  // reported later
      sum += 1;
    }
  }
  return ranks * sum;
}

}  // namespace

std::string default_ranks_text() {
  std::vector<std::string> keys;
  for (const AxisKind* kind : rank_factors()) keys.push_back(key_of(kind->key));
  return fmt::format("by default {}, where 0 counts as 1, or the sum of parallel.replicas",
                     join(keys, " times "));
}

Setup planned_setup(const CommandLine& line, const std::string& deck_name, const ShapeOfModel& shape_of) {
  const StopSignals signals;
  const std::string text = read_deck(deck_name);
  JobSize job{planned_ranks(line, text)};
  if (line.has("ranks-per-node")) job.ranks_per_node = line.integer("ranks-per-node");
  if (job.ranks_per_node < 1 || job.ranks % job.ranks_per_node != 0)
    fail(ExitCode::usage, "--ranks-per-node={} must divide --ranks={}", job.ranks_per_node, job.ranks);
  Setup setup = make_setup(text, deck_name, line.overrides, line.text("plugin-path"), job, shape_of);
  RunConfig& config = setup.config;
  if (!config.eval.choices.empty())
    config.cache = choice_cache(config.model.context, config.train.micro_batch * config.train.seq_len);
  setup.take_logits_bytes();
  if (config.machine_file != nullptr && config.machine_file->logits > 0.0)
    config.model.logits_bytes = static_cast<std::int64_t>(config.machine_file->logits);
  return setup;
}

std::vector<RunPlan> plans_of(const Setup& setup) {
  const RunConfig& config = setup.config;
  const auto plugins = compute_plugins(setup.plugins, config);
  return make_plans(config, {.algorithm = config.comm.algorithm,
                             .threads = config.backend.threads,
                             .communicator = plan_communicator(setup.plugins, config, setup.values),
                             .plan_compute = plugins.empty() ? nullptr : plugins.front()->plan_compute,
                             .keeps_snapshot = config.checkpoint.async});
}

}  // namespace mylos
