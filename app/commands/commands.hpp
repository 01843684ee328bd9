// SPDX-License-Identifier: BSD-3-Clause
// Command: a subcommand of mylos. Dispatch, parsing and help are derived from the list of subcommands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/deck/command_line.hpp"

namespace mylos {

/// What a command does in each of the processes that a launcher starts.
enum class Processes : std::uint8_t {
  ranks,  ///< they are the ranks of one job
  only,   ///< it is for one process and refuses to be several
  first,  ///< it acts in the first one; the others return 0
};

struct Command {
  const char* name;
  const char* arguments;  ///< as shown by the help
  const char* summary;
  std::vector<CommandOption> (*options)();  ///< in addition to those of every command
  int (*run)(const CommandLine& line);      ///< returns the exit code of the process, or throws
  std::size_t max_arguments = 1;
  bool takes_overrides = false;  ///< --section.key=value
  bool may_lose_output = false;  ///< `run_command` ignores a failure to print the output
  Processes processes = Processes::ranks;
};

extern const Command train_command, plan_command, measure_command, eval_command, generate_command,
    tokenize_command, inspect_command, convert_command, report_command, help_command, version_command;

/// Runs the subcommand that the arguments name, by default `help`, and returns its exit code. Throws
/// ExitCode::usage for an unknown command or option, ExitCode::io if the output cannot be written.
int run_command(int argc, const char* const* argv);

/// All subcommands.
std::span<const Command* const> commands();
/// The options of a command, with those that every command has.
std::vector<CommandOption> options_of(const Command& command);
/// Throws ExitCode::usage, with what was probably meant, if there is no such command.
const Command& command_named(const std::string& name);
/// The names of all subcommands.
std::vector<std::string_view> command_names();
/// Returns the text of `mylos help`.
std::string usage_text();
/// Returns the text of `mylos help COMMAND`. Throws ExitCode::usage for an unknown command.
std::string command_help(const std::string& name);

}  // namespace mylos
