// SPDX-License-Identifier: BSD-3-Clause
#include "io/inspect/inspect.hpp"

#include "app/commands/commands.hpp"
#include "app/commands/help.hpp"
#include "app/launch/run_directory.hpp"
#include "app/text/planned_setup.hpp"
#include "app/text/program_text.hpp"
#include "core/base/join.hpp"
#include "core/base/say.hpp"
#include "core/base/what_is_at.hpp"
#include "core/plugin.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/metrics/metrics.hpp"
#include "io/tokens/content_kind.hpp"

namespace mylos {

namespace {

std::vector<CommandOption> options() {
  return {
      {"verify", OptionKind::flag, "check the digests of a checkpoint, or of all checkpoints of a run"},
      {"csv", OptionKind::text,
       "print a table of a run's metrics as CSV: steps, eval, choices, checkpoints or launches"},
      {"program", OptionKind::flag,
       "show the operations that a rank runs for a deck, with tensors, FLOPs, bytes and backend"},
      {"rank", OptionKind::integer, "with --program: the rank to show; 0 by default"},
      {"ranks", OptionKind::integer,
       "with --program: the number of ranks to plan for; " + default_ranks_text()},
      {"ranks-per-node", OptionKind::integer,
       "with --program: the number of ranks per node; by default all ranks are on one node"},
  };
}

/// Prints a table of the metrics of the run, or of the metrics file, at `path`.
int print_table(const std::filesystem::path& path, const std::string& table) {
  std::error_code unknown;
  const std::filesystem::path file =
      std::filesystem::is_directory(path, unknown) ? RunPaths{path}.metrics() : path;
  IoThread io;
  const MetricsTable columns = read_metrics(io, file, table);
  if (columns.empty()) {
    std::vector<std::string> names;
    for (const auto& [name, rows] : metrics_tables(io, file)) names.push_back(name);
    fail(ExitCode::usage, "--csv={}: {} has no such table; it has {}", table, file.string(),
         names.empty() ? "none" : join(names, ", "));
  }
  fmt::print("{}", csv_of(columns));
  return 0;
}

int run(const CommandLine& line) {
  const std::filesystem::path path = line.argument(0, "a path");
  if (line.has("csv") && (line.flag("verify") || line.flag("program")))
    fail(ExitCode::usage, "--csv is for metrics, --verify for checkpoints, --program for decks: choose one");
  if (line.flag("program")) {
    if (line.flag("verify")) fail(ExitCode::usage, "--verify is for checkpoints, --program for decks");
    const Setup setup = planned_setup(line, path);
    const std::int64_t rank = line.has("rank") ? line.integer("rank") : 0;
    const std::int64_t ranks = setup.config.parallel.world_size();
    if (rank < 0 || rank >= ranks)
      fail(ExitCode::usage, "--rank={} must be from 0 to {}, the last of {} ranks", rank, ranks - 1, ranks);
    fmt::print("{}", program_text(setup, static_cast<int>(rank)));
    return 0;
  }
  if (line.has("rank") || line.has("ranks") || line.has("ranks-per-node") || !line.overrides.empty())
    fail(ExitCode::usage, "--rank, --ranks, --ranks-per-node and deck parameters are for inspect --program");
  if (line.has("csv")) return print_table(path, line.text("csv"));
  std::error_code unknown;
  if (line.flag("verify") && std::filesystem::exists(path, unknown) &&
      !std::filesystem::is_directory(path, unknown))
    fail(ExitCode::usage, "--verify is for checkpoints and runs, but at {} there is {}", path.string(),
         what_is_at(path));
  const bool is_library =
      path.extension() == ".so" || (std::filesystem::is_regular_file(path, unknown) &&
                                    known_format(content_head(path)).name == library_kind);
  if (is_library) {
    const PluginInfo plugin = PluginRegistry::open(path);
    fmt::print("{}", plugin_text(plugin));
    return plugin.problem.empty() ? 0 : static_cast<int>(ExitCode::usage);
  }
  IoThread io;
  fmt::print("{}", inspect(io, path));
  if (line.flag("verify")) {
    std::vector<std::filesystem::path> checkpoints = {path};
    if (const auto all = path / "checkpoints"; std::filesystem::exists(all, unknown)) {
      checkpoints.clear();
      for (const std::int64_t step : list_steps(all)) checkpoints.push_back(all / step_name(step));
      if (checkpoints.empty()) fail(ExitCode::bad_data, "{} holds no checkpoint to verify", all.string());
    }
    bool is_whole = true;
    for (const std::filesystem::path& checkpoint : checkpoints) {
      for (const std::string& problem : verify_checkpoint(checkpoint)) {
        say(stderr, "mylos: {}\n", problem);
        is_whole = false;
      }
    }
    if (!is_whole) return static_cast<int>(ExitCode::bad_data);
    fmt::print("verified: every digest matches\n");
  }
  return 0;
}

}  // namespace

const Command inspect_command{
    .name = "inspect",
    .arguments = "PATH",
    .summary =
        "show a run, checkpoint, model, llm.c token file, metrics file or plugin; with "
        "--program, a deck's operations",
    .options = options,
    .run = run,
    .takes_overrides = true,
    .processes = Processes::first};

}  // namespace mylos
