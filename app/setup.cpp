// SPDX-License-Identifier: BSD-3-Clause
#include "app/setup.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <thread>

#include <mpi.h>

#include "app/session.hpp"
#include "io/agree.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace {

/// "libmylos_compute_cuda.so" -> "cuda": the section that a plugin which cannot be loaded would have
/// declared.
std::string section_of_file(const std::filesystem::path& file) {
  const std::string stem = file.stem();
  return stem.substr(stem.rfind('_') + 1);
}

}  // namespace

void Setup::choose(int world_size, int ranks_sharing_cores) {
  config.backend = choose_backends(plugins, config.backend, world_size, ranks_sharing_cores);
  values.set("backend.compute", config.backend.compute);
  values.set("backend.comm", config.backend.comm);
  values.set("backend.threads", config.backend.threads);
}

std::string read_deck(const std::string& file) {
  if (!std::filesystem::exists(file)) fail(ExitCode::usage, "there is no deck {}", file);
  return read_text_file(file);
}

Setup make_setup(const std::string& deck_text, const std::string& deck_name, const DeckOverrides& overrides,
                 const std::string& plugin_path, const JobSize& job, DeckOrigin origin) {
  Setup setup;
  setup.plugins = PluginRegistry::discover(plugin_search_path(plugin_path));
  const auto own = deck_params();
  setup.specs.assign(own.begin(), own.end());
  std::vector<std::pair<std::string, std::string>> unavailable;
  for (const PluginInfo& plugin : setup.plugins.found()) {
    if (plugin.descriptor == nullptr) {
      unavailable.emplace_back(section_of_file(plugin.path), plugin.problem);
      continue;
    }
    const auto& d = *plugin.descriptor;
    setup.specs.insert(setup.specs.end(), d.params, d.params + d.num_params);
  }
  DeckErrors errors;
  setup.deck = Deck::parse(deck_text, deck_name, errors);
  if (origin == DeckOrigin::checkpoint) setup.deck.keep_declared(setup.specs);
  for (const auto& [key, value] : overrides) setup.deck.set(key, value, errors);
  setup.config = make_run_config(setup.deck, setup.specs, job, errors, setup.values, unavailable);
  errors.throw_if_any(origin == DeckOrigin::checkpoint ? ExitCode::bad_data : ExitCode::usage);
  return setup;
}

namespace {

/// `--ranks`, or the layout of the deck: one rank if the deck leaves it open.
std::int64_t planned_ranks(const CommandLine& line, const std::string& text, const std::string& name) {
  if (line.has("ranks")) {
    const std::int64_t ranks = line.integer("ranks");
    if (ranks < 1) fail(ExitCode::usage, "--ranks={} must be at least 1", ranks);
    return ranks;
  }
  DeckErrors reported_later;
  Deck deck = Deck::parse(text, name, reported_later);
  for (const auto& [key, value] : line.overrides) deck.set(key, value, reported_later);
  const auto extent = [&](const char* key) {
    const DeckEntry* entry = deck.find(key);
    return entry != nullptr ? std::max<std::int64_t>(1, std::atoll(entry->value.c_str())) : 1;
  };
  return extent("parallel.data") * extent("parallel.tensor");
}

}  // namespace

Setup planned_setup(const CommandLine& line, const std::string& deck_name) {
  const std::string text = read_deck(deck_name);
  JobSize job{planned_ranks(line, text, deck_name)};
  if (line.has("ranks-per-node")) job.ranks_per_node = line.integer("ranks-per-node");
  if (job.ranks_per_node < 1 || job.ranks % job.ranks_per_node != 0)
    fail(ExitCode::usage, "--ranks-per-node={} must divide --ranks={}", job.ranks_per_node, job.ranks);
  return make_setup(text, deck_name, line.overrides, line.text("plugin-path"), job);
}

RunPlan plan_of(const Setup& setup) {
  const RunConfig& config = setup.config;
  const auto plugins = compute_plugins(setup.plugins, config);
  return make_plan(config, {.algorithm = config.comm.algorithm,
                            .threads = config.backend.threads,
                            .communicator = plan_communicator(setup.plugins, config, setup.values),
                            .plan_compute = plugins.empty() ? nullptr : plugins.front()->plan_compute,
                            .keeps_snapshot = config.checkpoint.async});
}

int run_agreed(const MpiRuntime& mpi, const std::function<void()>& work) {
  try {
    agreed(MPI_COMM_WORLD, work);
    return 0;
  } catch (const Error& error) {
    if (mpi.rank() == 0) fmt::print(stderr, "mylos: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}

void abort_job(ExitCode code) {
  // A launcher drops the output that it has not read when a rank aborts.
  constexpr std::chrono::milliseconds reading_time{150};
  std::this_thread::sleep_for(reading_time);
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  std::abort();
}

void end_job(const MpiRuntime& mpi, const std::exception& error,
             const std::function<void(ExitCode, const std::string&)>& record) {
  constexpr std::chrono::milliseconds head_start{300};
  constexpr int most_waits = 10;
  std::this_thread::sleep_for(head_start * std::min(mpi.rank(), most_waits));
  ExitCode code = ExitCode::internal;
  std::string message = error.what();
  if (const auto* known = dynamic_cast<const Error*>(&error)) code = known->code();
  if (dynamic_cast<const std::filesystem::filesystem_error*>(&error) != nullptr) code = ExitCode::io;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) message = "out of memory";
  record(code, message);
  fmt::print(stderr, "mylos: rank {}: {}\n", mpi.rank(), message);
  std::fflush(stderr);
  abort_job(code);
}

}  // namespace mylos
