// SPDX-License-Identifier: BSD-3-Clause
// CommandLine: the arguments, options and deck overrides that a program or a subcommand was given.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace mylos {

enum class OptionKind : std::uint8_t { flag, integer, real, text };

/// `--name`, followed by a value unless it is a flag.
struct CommandOption {
  std::string name;
  OptionKind kind = OptionKind::flag;
  std::optional<std::string> default_value = {};   ///< without one the option may be absent
  std::optional<std::string> implicit_value = {};  ///< of `--name` alone
  std::string doc = {};
};

/// What a program or a subcommand takes.
struct CommandSyntax {
  std::string name;  ///< "mylos train"
  std::string help;  ///< what shows its options: "mylos help train"
  std::vector<CommandOption> options;
  std::size_t most_arguments = 1;
  bool takes_overrides = false;  ///< --section.key=value
};

/// `[ARGUMENTS] [--option ...] [--section.key=value ...]`.
struct CommandLine {
  std::string name, help;  ///< of its syntax
  std::vector<std::string> arguments;
  /// Those that were given or have a default, and all flags.
  std::map<std::string, std::variant<bool, std::int64_t, double, std::string>> options;
  std::vector<std::pair<std::string, std::string>> overrides;  ///< deck keys and values

  bool has(const std::string& option) const { return options.contains(option); }
  /// The value of an option of that kind, which must be there.
  bool flag(const std::string& option) const { return std::get<bool>(options.at(option)); }
  std::int64_t integer(const std::string& option) const { return std::get<std::int64_t>(options.at(option)); }
  double real(const std::string& option) const { return std::get<double>(options.at(option)); }
  const std::string& text(const std::string& option) const {
    return std::get<std::string>(options.at(option));
  }
  /// The argument at `index`; throws ExitCode::usage that says what is missing.
  const std::string& argument(std::size_t index, const char* what) const;
};

/// Arguments, options and overrides of `words`. Throws ExitCode::usage for what `syntax` does not have.
CommandLine parse_words(const CommandSyntax& syntax, std::vector<std::string> words);

/// The options for a help text, under a title.
std::string options_text(const std::string& title, const std::vector<CommandOption>& options);

}  // namespace mylos
