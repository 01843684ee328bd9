// SPDX-License-Identifier: BSD-3-Clause
// CommandLine: the arguments, options and deck overrides given to a program or a subcommand.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace mylos {

enum class OptionKind : std::uint8_t { flag, integer, real, text, texts };

/// `--name`, with a value unless the option is a flag; one of several texts may be given several times. With
/// an `implicit_value`, the value may be omitted.
struct CommandOption {
  std::string name;
  OptionKind kind = OptionKind::flag;
  std::string doc = {};
  std::optional<std::string> default_value = {};            ///< without a default, the option may be absent
  std::optional<std::string> implicit_value = {};           ///< the value of `--name` alone
  double least = -std::numeric_limits<double>::infinity();  ///< smallest value of an integer or real
  const char* choices = "";  ///< of a text, for completion: "auto|live"; the command checks them
  bool may_differ = false;   ///< ranks may have different values
};

using OptionValue = std::variant<bool, std::int64_t, double, std::string, std::vector<std::string>>;

/// The options and arguments that a program or a subcommand accepts.
struct CommandSyntax {
  std::string name;  ///< "mylos train"
  std::string help;  ///< the command that shows its options: "mylos help train"
  std::vector<CommandOption> options;
  std::size_t max_arguments = 1;
  bool takes_overrides = false;  ///< --section.key=value
  /// Options that the command does not have, and what to say of them: "it belongs to mylos eval".
  std::map<std::string, std::string> elsewhere = {};
};

/// A parsed command line: `[ARGUMENTS] [--option ...] [--section.key=value ...]`, in any order.
struct CommandLine {
  std::string name, help;  ///< as in CommandSyntax
  std::vector<std::string> arguments;
  /// The options that were given or have a default, and all flags.
  std::map<std::string, OptionValue> options;
  std::vector<std::string> common_options;  ///< given or not, those that must be the same on all ranks
  std::vector<std::pair<std::string, std::string>> overrides;  ///< deck keys and values

  bool has(const std::string& option) const { return options.contains(option); }
  /// The value of an option of this kind; the option must be present.
  bool flag(const std::string& option) const { return std::get<bool>(options.at(option)); }
  std::int64_t integer(const std::string& option) const { return std::get<std::int64_t>(options.at(option)); }
  double real(const std::string& option) const { return std::get<double>(options.at(option)); }
  const std::string& text(const std::string& option) const {
    return std::get<std::string>(options.at(option));
  }
  /// The values of an option of several texts; none if it was not given.
  std::vector<std::string> texts(const std::string& option) const {
    return has(option) ? std::get<std::vector<std::string>>(options.at(option)) : std::vector<std::string>();
  }
  /// Returns the argument at `index`. Throws ExitCode::usage, naming `what`, if the argument is missing.
  const std::string& argument(std::size_t index, const char* what) const;
};

/// Parses `words`. Throws ExitCode::usage for anything that `syntax` does not allow.
CommandLine parse_words(const CommandSyntax& syntax, const std::vector<std::string>& words);

/// Returns the step of a checkpoint that `text`, the value of --`option`, names: "6", "step_6" or
/// "step_000006"; empty for "newest". Throws ExitCode::usage for another text.
std::optional<std::int64_t> parse_step(const std::string& option, const std::string& text);

/// Returns the part of a help text that lists `options` under `title`.
std::string options_text(const std::string& title, const std::vector<CommandOption>& options);

}  // namespace mylos
