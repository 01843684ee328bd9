// SPDX-License-Identifier: BSD-3-Clause
#include "io/inspect.hpp"

#include "app/commands/commands.hpp"
#include "app/commands/help.hpp"
#include "app/program_text.hpp"
#include "core/plugin.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/tokens/content_kind.hpp"

namespace mylos {

namespace {

std::vector<CommandOption> options() {
  return {
      {"verify", OptionKind::flag, "check the digests of a checkpoint"},
      {"program", OptionKind::flag,
       "show the operations that a rank runs for a deck, with tensors, FLOPs, bytes and backend"},
      {"ranks", OptionKind::integer,
       "with --program: the number of ranks to plan for; by default parallel.data times "
       "parallel.tensor, where 0 counts as 1"},
      {"ranks-per-node", OptionKind::integer,
       "with --program: the number of ranks per node; by default all ranks are on one node"},
  };
}

int run(const CommandLine& line) {
  const std::filesystem::path path = line.argument(0, "a path");
  if (line.flag("program")) {
    if (line.flag("verify")) fail(ExitCode::usage, "--verify is for checkpoints, --program for decks");
    fmt::print("{}", program_text(planned_setup(line, path)));
    return 0;
  }
  if (line.has("ranks") || line.has("ranks-per-node") || !line.overrides.empty())
    fail(ExitCode::usage, "--ranks, --ranks-per-node and deck parameters are for inspect --program");
  std::error_code error;
  const bool is_library =
      path.extension() == ".so" || (std::filesystem::is_regular_file(path, error) &&
                                    known_format(content_head(path)).name == library_kind);
  if (is_library) {
    const PluginInfo plugin = PluginRegistry::open(path);
    fmt::print("{}", plugin_text(plugin));
    return plugin.problem.empty() ? 0 : static_cast<int>(ExitCode::usage);
  }
  IoThread io;
  fmt::print("{}", inspect(io, path));
  if (line.flag("verify")) {
    const std::vector<std::string> problems = verify_checkpoint(path);
    for (const std::string& problem : problems) fmt::print(stderr, "mylos: {}\n", problem);
    if (!problems.empty()) return static_cast<int>(ExitCode::bad_data);
    fmt::print("verified: every digest matches\n");
  }
  return 0;
}

}  // namespace

const Command inspect_command{.name = "inspect",
                              .arguments = "PATH",
                              .summary =
                                  "show a run, checkpoint, llm.c token file, metrics file or plugin; with "
                                  "--program, a deck's operations",
                              .options = options,
                              .run = run,
                              .takes_overrides = true};

}  // namespace mylos
