// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/command_line.hpp"

#include <algorithm>
#include <sstream>

#include <boost/program_options.hpp>

#include "core/base/error.hpp"
#include "core/base/nearest.hpp"
#include "core/base/number_text.hpp"

namespace mylos {

namespace po = boost::program_options;

namespace {

/// Returns the value that `text` stands for. Throws ExitCode::usage, naming the option.
OptionValue value_of(const CommandOption& option, const std::string& text) {
  try {
    if (option.kind == OptionKind::real) {
      const double number = parse_real(text);
      if (number < option.least) fail(ExitCode::usage, "must be at least {}", option.least);
      return number;
    }
    if (option.kind != OptionKind::integer) return text;
    const std::optional<std::int64_t> number = parse_integer(text);
    if (!number) fail(ExitCode::usage, "does not fit 64 bits");
    if (static_cast<double>(*number) < option.least)
      fail(ExitCode::usage, "must be at least {}", option.least);
    return *number;
  } catch (const Error& error) {
    fail(ExitCode::usage, "--{}={} {}", option.name, text, error.what());
  }
}

/// Has Boost store the value of `option` in `line.options`.
const po::value_semantic* semantic_of(const CommandOption& option, CommandLine& line) {
  const auto store = [&](const auto& given) { line.options[option.name] = given; };
  if (option.kind == OptionKind::flag) return po::bool_switch()->notifier(store);
  if (option.kind == OptionKind::texts) return po::value<std::vector<std::string>>()->notifier(store);
  auto* value = po::value<std::string>();
  if (option.default_value) value->default_value(*option.default_value);
  if (option.implicit_value) value->implicit_value(*option.implicit_value);
  return value->notifier(
      [&](const std::string& text) { line.options[option.name] = value_of(option, text); });
}

po::options_description described(const std::string& title, const std::vector<CommandOption>& options,
                                  CommandLine& line) {
  po::options_description description(title);
  for (const CommandOption& option : options)
    description.add_options()(option.name.c_str(), semantic_of(option, line), option.doc.c_str());
  return description;
}

bool is_deck_key(const CommandSyntax& syntax, const std::string& name) {
  return syntax.takes_overrides && name.find('.') != std::string::npos;
}

const CommandOption* find_option(const CommandSyntax& syntax, std::string_view name) {
  const auto found = std::ranges::find(syntax.options, name, &CommandOption::name);
  return found == syntax.options.end() ? nullptr : &*found;
}

bool needs_value(const CommandSyntax& syntax, std::string_view name) {
  const CommandOption* option = find_option(syntax, name);
  return option != nullptr && option->kind != OptionKind::flag && !option->implicit_value;
}

/// Whether `word` is one of the options, with or without a value.
bool is_option(const CommandSyntax& syntax, std::string_view word) {
  return word.starts_with("--") && find_option(syntax, word.substr(2, word.find('=') - 2)) != nullptr;
}

/// Takes what Boost does not: `--name=value` with an empty value, and `--section.name value`, which it does
/// not know to have a value.
std::vector<po::option> take_option(const CommandSyntax& syntax, std::vector<std::string>& words) {
  const std::string word = words.front();
  const std::size_t equals = word.find('=');
  const bool has_value = equals != std::string::npos;
  if (!word.starts_with("--") || word == "--") return {};
  po::option option;
  option.string_key = word.substr(2, has_value ? equals - 2 : equals);
  option.original_tokens = {word};
  if (!has_value && !is_deck_key(syntax, option.string_key)) {
    if (needs_value(syntax, option.string_key) && words.size() > 1 && is_option(syntax, words[1]))
      fail(ExitCode::usage, "{}: --{} needs a value: --{}=VALUE", syntax.name, option.string_key,
           option.string_key);
    return {};
  }
  if (option.string_key.empty())
    fail(ExitCode::usage, "{} has no option {}; see {}", syntax.name, word, syntax.help);
  words.erase(words.begin());
  if (has_value) {
    option.value = {word.substr(equals + 1)};
  } else if (!words.empty() && !words.front().starts_with("--")) {
    option.value = {words.front()};
    words.erase(words.begin());
  }
  return {option};
}

/// Returns " (did you mean --name?)", or where an option belongs that this command does not have.
std::string advice(const CommandSyntax& syntax, const std::string& name) {
  if (const auto found = syntax.elsewhere.find(name); found != syntax.elsewhere.end())
    return fmt::format(" ({})", found->second);
  std::vector<std::string_view> names;
  for (const CommandOption& option : syntax.options) names.emplace_back(option.name);
  const std::string guess = nearest(name, names);
  return guess.empty() ? "" : fmt::format(" (did you mean --{}?)", guess);
}

/// Moves the deck parameters from `options` to the result. Throws ExitCode::usage for other options that
/// Boost did not recognise.
std::vector<std::pair<std::string, std::string>> take_overrides(const CommandSyntax& syntax,
                                                                const std::vector<po::option>& options) {
  std::vector<std::pair<std::string, std::string>> overrides;
  for (const po::option& option : options) {
    if (!option.unregistered) continue;
    const std::string& name = option.string_key;
    if (!is_deck_key(syntax, name)) {
      fail(ExitCode::usage, "{} has no option {}{}; see {}", syntax.name,
           option.original_tokens.empty() ? name : option.original_tokens.front(), advice(syntax, name),
           syntax.help);
    }
    if (option.value.empty()) fail(ExitCode::usage, "--{} needs a value: --{}=VALUE", name, name);
    overrides.emplace_back(name, option.value.front());
  }
  return overrides;
}

/// Says in mylos' words what Boost found wrong with an option.
std::string problem_of(const po::error_with_option_name& error) {
  const std::string name = error.get_option_name();
  const auto* syntax = dynamic_cast<const po::invalid_command_line_syntax*>(&error);
  if (dynamic_cast<const po::multiple_occurrences*>(&error) != nullptr) return name + " is given twice";
  if (syntax != nullptr && syntax->kind() == po::invalid_syntax::missing_parameter)
    return fmt::format("{} needs a value: {}=VALUE", name, name);
  if (syntax != nullptr && syntax->kind() == po::invalid_syntax::extra_parameter)
    return name + " takes no value";
  return error.what();
}

}  // namespace

const std::string& CommandLine::argument(std::size_t index, const char* what) const {
  if (index >= arguments.size()) fail(ExitCode::usage, "{} needs {}; see {}", name, what, help);
  return arguments[index];
}

CommandLine parse_words(const CommandSyntax& syntax, const std::vector<std::string>& words) {
  CommandLine line;
  line.name = syntax.name;
  line.help = syntax.help;
  for (const CommandOption& option : syntax.options) {
    if (!option.may_differ) line.common_options.push_back(option.name);
  }
  po::options_description all = described("", syntax.options, line);
  all.add_options()("argument", po::value<std::vector<std::string>>(&line.arguments));
  po::positional_options_description positional;
  positional.add("argument", -1);
  po::variables_map given;
  try {
    using style = po::command_line_style::style_t;
    const po::parsed_options parsed =
        po::command_line_parser(words)
            .options(all)
            .positional(positional)
            .style(style::unix_style & ~style::allow_guessing)
            .extra_style_parser([&](std::vector<std::string>& rest) { return take_option(syntax, rest); })
            .allow_unregistered()
            .run();
    line.overrides = take_overrides(syntax, parsed.options);
    po::store(parsed, given);
    po::notify(given);
  } catch (const po::error_with_option_name& error) {
    fail(ExitCode::usage, "{}: {}", syntax.name, problem_of(error));
  } catch (const po::error& error) {
    fail(ExitCode::usage, "{}: {}", syntax.name, error.what());
  }
  if (line.arguments.size() > syntax.max_arguments) {
    fail(ExitCode::usage, "{}: unexpected argument {}; see {}", syntax.name,
         line.arguments[syntax.max_arguments], syntax.help);
  }
  return line;
}

std::optional<std::int64_t> parse_step(const std::string& option, const std::string& text) {
  constexpr std::string_view prefix = "step_";
  if (text == "newest") return std::nullopt;
  const std::string number = text.starts_with(prefix) ? text.substr(prefix.size()) : text;
  const bool has_digits = !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
  const std::optional<std::int64_t> step = has_digits ? parse_integer(number) : std::nullopt;
  if (!step) fail(ExitCode::usage, "--{}={} must be newest, a step N or step_N", option, text);
  return step;
}

std::string options_text(const std::string& title, const std::vector<CommandOption>& options) {
  std::ostringstream text;
  CommandLine unread;
  text << described(title, options, unread);
  return text.str();
}

}  // namespace mylos
