// SPDX-License-Identifier: BSD-3-Clause
// CommandLine: a subcommand, its arguments and options, and the deck overrides.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <boost/program_options.hpp>

namespace mylos {

/// What a program or a subcommand takes.
struct CommandSyntax {
  std::string name;  ///< "mylos train"
  std::string help;  ///< what shows its options: "mylos help train"
  boost::program_options::options_description options;
  std::size_t most_arguments = 1;
  bool takes_overrides = false;  ///< --section.key=value
};

/// `mylos COMMAND [ARGUMENTS] [--option ...] [--section.key=value ...]`.
struct CommandLine {
  std::string command;
  std::string name, help;  ///< of its syntax
  std::vector<std::string> arguments;
  boost::program_options::variables_map options;
  std::vector<std::pair<std::string, std::string>> overrides;  ///< deck keys and values

  bool has(const std::string& option) const { return options.count(option) > 0; }
  template <class T>
  T get(const std::string& option) const {
    return options[option].as<T>();
  }
  /// The argument at `index`; throws ExitCode::usage that says what is missing.
  const std::string& argument(std::size_t index, const char* what) const;
};

/// Arguments, options and overrides of `words`; `command` is left empty. Throws ExitCode::usage for what
/// `syntax` does not have.
CommandLine parse_words(const CommandSyntax& syntax, const std::vector<std::string>& words);

/// Throws ExitCode::usage for an unknown command or option.
CommandLine parse_command_line(int argc, const char* const* argv);

/// The text of `mylos help` and of `mylos help COMMAND`.
std::string usage_text();
std::string command_help(const std::string& command);

}  // namespace mylos
