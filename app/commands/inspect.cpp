// SPDX-License-Identifier: BSD-3-Clause
#include "io/inspect.hpp"

#include "app/commands/commands.hpp"
#include "app/commands/help.hpp"
#include "core/plugin.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace mylos {

namespace {

std::vector<CommandOption> options() {
  return {
      {.name = "verify", .kind = OptionKind::flag, .doc = "check the digests of a checkpoint"},
  };
}

int run(const CommandLine& line) {
  const std::filesystem::path path = line.argument(0, "a path");
  if (path.extension() == ".so") {
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
                              .summary = "show a run, checkpoint, token file, metrics file or plugin",
                              .options = options,
                              .run = run};

}  // namespace mylos
