// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/commands.hpp"

#include <algorithm>
#include <cstdio>

#include "app/deck/run_config.hpp"
#include "app/launch/launcher.hpp"
#include "app/launch/setup.hpp"
#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/base/nearest.hpp"

namespace mylos {

namespace {

constexpr const Command* all_commands[] = {
    &train_command,   &plan_command,    &measure_command, &eval_command, &generate_command, &tokenize_command,
    &inspect_command, &convert_command, &report_command,  &help_command, &version_command,
};

const Command* find_command(std::string_view name) {
  const auto* const found =
      std::ranges::find_if(all_commands, [&](const Command* command) { return name == command->name; });
  return found == std::end(all_commands) ? nullptr : *found;
}

/// The options of other commands and, if this one takes deck parameters, their names without a section.
std::map<std::string, std::string> options_elsewhere(const Command& command) {
  std::map<std::string, std::string> elsewhere;
  for (const Command* other : all_commands) {
    for (const CommandOption& option : other->options())
      elsewhere.try_emplace(option.name, fmt::format("mylos {} has it", other->name));
  }
  for (const ParamSpec& spec : deck_params()) {
    if (command.takes_overrides)
      elsewhere.try_emplace(spec.name, fmt::format("did you mean --{}.{}?", spec.section, spec.name));
  }
  return elsewhere;
}

/// Whether `words` ask for help, which a word after `--` does not.
bool asks_for_help(const std::vector<std::string>& words) {
  const auto end = std::ranges::find(words, "--");
  return std::any_of(words.begin(), end,
                     [](const std::string& word) { return word == "--help" || word == "-h"; });
}

}  // namespace

std::span<const Command* const> commands() {
  return all_commands;
}

const Command& command_named(const std::string& name) {
  if (const Command* command = find_command(name)) return *command;
  const std::vector<std::string_view> names = command_names();
  const std::string guess = nearest(name, names);
  fail(ExitCode::usage, "unknown command \"{}\"; {}", name,
       guess.empty() ? fmt::format("the commands are {}", join(names, ", "))
                     : fmt::format("did you mean {}?", guess));
}

std::vector<CommandOption> options_of(const Command& command) {
  std::vector<CommandOption> options = {
      {.name = "plugin-path",
       .kind = OptionKind::text,
       .doc = "folders to search first for plugins, separated by ':'",
       .default_value = "",
       .may_differ = true},
      {.name = "alone",
       .doc = "this process is a job of its own, whatever launcher started it",
       .may_differ = true}};
  std::ranges::copy(command.options(), std::back_inserter(options));
  return options;
}

int run_command(int argc, const char* const* argv) {
  std::string name = argc > 1 ? argv[1] : "help";
  if (name == "--help" || name == "-h") name = "help";
  if (name == "--version" || name == "-V") name = "version";
  const Command* command = &command_named(name);
  std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);
  if (asks_for_help(words)) {
    words = {name};
    command = &help_command;
  }
  const CommandLine line = parse_words({.name = fmt::format("mylos {}", command->name),
                                        .help = fmt::format("mylos help {}", command->name),
                                        .options = options_of(*command),
                                        .max_arguments = command->max_arguments,
                                        .takes_overrides = command->takes_overrides,
                                        .elsewhere = options_elsewhere(*command)},
                                       words);
  if (line.flag("alone")) forget_launcher();
  if (command->processes == Processes::only) check_only_process(command->name);
  if (command->processes == Processes::first && launched_rank() > 0) return 0;
  const int code = command->run(line);
  const bool is_lost = code == static_cast<int>(ExitCode::io);  // which has been said
  if (!command->may_lose_output && !is_lost) flush_output();
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

std::vector<std::string_view> command_names() {
  std::vector<std::string_view> names;
  for (const Command* command : all_commands) names.emplace_back(command->name);
  return names;
}

std::string command_help(const std::string& name) {
  const Command& command = command_named(name);
  return fmt::format("mylos {} {}: {}\n\n{}", command.name, command.arguments, command.summary,
                     options_text("Options", options_of(command)));
}

}  // namespace mylos
