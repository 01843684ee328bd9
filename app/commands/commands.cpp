// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/commands.hpp"

#include <algorithm>
#include <cstdio>

#include "core/base/error.hpp"

namespace mylos {

namespace {

constexpr const Command* all_commands[] = {
    &train_command,   &eval_command,   &generate_command, &tokenize_command,
    &inspect_command, &report_command, &help_command,
};

const Command& command_named(const std::string& name) {
  for (const Command* command : all_commands) {
    if (name == command->name) return *command;
  }
  fail(ExitCode::usage, "unknown command \"{}\"\n{}", name, usage_text());
}

std::vector<CommandOption> options_of(const Command& command) {
  std::vector<CommandOption> options = {
      {"plugin-path", OptionKind::text, "folders to search first for plugins, separated by ':'", ""}};
  std::ranges::copy(command.options(), std::back_inserter(options));
  return options;
}

}  // namespace

int run_command(int argc, const char* const* argv) {
  std::string name = argc > 1 ? argv[1] : "help";
  if (name == "--help" || name == "-h") name = "help";
  const Command* command = &command_named(name);
  std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);
  if (std::ranges::find(words, "--help") != words.end()) {
    words = {name};
    command = &help_command;
  }
  const int code = command->run(parse_words({.name = fmt::format("mylos {}", command->name),
                                             .help = fmt::format("mylos help {}", command->name),
                                             .options = options_of(*command),
                                             .max_arguments = command->max_arguments,
                                             .takes_overrides = command->takes_overrides},
                                            words));
  if (!command->may_lose_output && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0))
    fail(ExitCode::io, "the output cannot be written");
  return code;
}

std::string usage_text() {
  std::string text = "mylos trains GPT-2 on MPI ranks from an input deck.\n\n";
  for (const Command* command : all_commands) {
    text += fmt::format("  mylos {:<9} {:<16} {}\n", command->name, command->arguments, command->summary);
  }
  text +=
      "\nmylos help COMMAND shows the options of a command; mylos help deck shows every parameter of a "
      "deck.\n";
  return text;
}

std::string command_help(const std::string& name) {
  const Command& command = command_named(name);
  return fmt::format("mylos {} {}: {}\n\n{}", command.name, command.arguments, command.summary,
                     options_text("Options", options_of(command)));
}

}  // namespace mylos
