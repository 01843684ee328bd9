// SPDX-License-Identifier: BSD-3-Clause
#include "app/command_line.hpp"

#include <sstream>

#include <boost/lexical_cast.hpp>
#include <boost/program_options.hpp>

#include "core/base/error.hpp"

namespace mylos {

namespace po = boost::program_options;

namespace {

/// A Boost option value of type T.
template <class T>
po::typed_value<T>* value_of(const CommandOption& option) {
  auto* value = po::value<T>();
  const auto parsed = [](const std::string& text) { return boost::lexical_cast<T>(text); };
  if (option.default_value) value->default_value(parsed(*option.default_value), *option.default_value);
  if (option.implicit_value) value->implicit_value(parsed(*option.implicit_value), *option.implicit_value);
  return value;
}

const po::value_semantic* semantic_of(const CommandOption& option) {
  switch (option.kind) {
    case OptionKind::flag:
      return po::bool_switch();
    case OptionKind::integer:
      return value_of<std::int64_t>(option);
    case OptionKind::real:
      return value_of<double>(option);
    case OptionKind::text:
      return value_of<std::string>(option);
  }
  fail(ExitCode::internal, "an option of no kind");
}

po::options_description described(const std::string& title, const std::vector<CommandOption>& options) {
  po::options_description description(title);
  for (const CommandOption& option : options)
    description.add_options()(option.name.c_str(), semantic_of(option), option.doc.c_str());
  return description;
}

/// Removes every `--section.key=value` from `words` and returns it: Boost accepts no empty values.
std::vector<std::pair<std::string, std::string>> take_overrides(std::vector<std::string>& words) {
  std::vector<std::pair<std::string, std::string>> overrides;
  std::erase_if(words, [&](const std::string& word) {
    const std::size_t equals = word.find('=');
    if (!word.starts_with("--") || equals == std::string::npos || word.find('.') > equals) return false;
    overrides.emplace_back(word.substr(2, equals - 2), word.substr(equals + 1));
    return true;
  });
  return overrides;
}

/// Throws for an option that Boost did not recognise.
void check_known(const CommandSyntax& syntax, const std::vector<po::option>& options) {
  for (const po::option& option : options) {
    if (!option.unregistered) continue;
    if (syntax.takes_overrides && option.string_key.find('.') != std::string::npos)
      fail(ExitCode::usage, "--{} needs a value: --{}=VALUE", option.string_key, option.string_key);
    fail(ExitCode::usage, "{} has no option {}; see {}", syntax.name,
         option.original_tokens.empty() ? option.string_key : option.original_tokens.front(), syntax.help);
  }
}

}  // namespace

const std::string& CommandLine::argument(std::size_t index, const char* what) const {
  if (index >= arguments.size()) fail(ExitCode::usage, "{} needs {}; see {}", name, what, help);
  return arguments[index];
}

CommandLine parse_words(const CommandSyntax& syntax, std::vector<std::string> words) {
  CommandLine line;
  if (syntax.takes_overrides) line.overrides = take_overrides(words);
  line.name = syntax.name;
  line.help = syntax.help;
  po::options_description all = described("", syntax.options);
  all.add_options()("argument", po::value<std::vector<std::string>>(&line.arguments));
  po::positional_options_description positional;
  positional.add("argument", -1);
  po::variables_map given;
  try {
    using style = po::command_line_style::style_t;
    const po::parsed_options parsed = po::command_line_parser(words)
                                          .options(all)
                                          .positional(positional)
                                          .style(style::unix_style & ~style::allow_guessing)
                                          .allow_unregistered()
                                          .run();
    po::store(parsed, given);
    po::notify(given);
    check_known(syntax, parsed.options);
  } catch (const po::error& error) {
    fail(ExitCode::usage, "{}: {}", syntax.name, error.what());
  }
  for (const CommandOption& option : syntax.options) {
    const po::variable_value& value = given[option.name];
    if (value.empty()) continue;
    switch (option.kind) {
      case OptionKind::flag:
        line.options[option.name] = value.as<bool>();
        break;
      case OptionKind::integer:
        line.options[option.name] = value.as<std::int64_t>();
        break;
      case OptionKind::real:
        line.options[option.name] = value.as<double>();
        break;
      case OptionKind::text:
        line.options[option.name] = value.as<std::string>();
        break;
    }
  }
  if (line.arguments.size() > syntax.max_arguments) {
    fail(ExitCode::usage, "{}: one argument too many: {}; see {}", syntax.name,
         line.arguments[syntax.max_arguments], syntax.help);
  }
  return line;
}

std::string options_text(const std::string& title, const std::vector<CommandOption>& options) {
  std::ostringstream text;
  text << described(title, options);
  return text.str();
}

}  // namespace mylos
