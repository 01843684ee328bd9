// SPDX-License-Identifier: BSD-3-Clause
#include "app/command_line.hpp"

#include <sstream>

#include <boost/lexical_cast.hpp>
#include <boost/program_options.hpp>

#include "core/base/error.hpp"

namespace mylos {

namespace po = boost::program_options;

namespace {

/// Gives `value` the default and implicit values of `option` and has Boost store the result in
/// `line.options`.
template <class T>
po::typed_value<T>* value_of(po::typed_value<T>* value, const CommandOption& option, CommandLine& line) {
  const auto parsed = [](const std::string& text) { return boost::lexical_cast<T>(text); };
  if (option.default_value) value->default_value(parsed(*option.default_value), *option.default_value);
  if (option.implicit_value) value->implicit_value(parsed(*option.implicit_value), *option.implicit_value);
  return value->notifier([&](const T& given) { line.options[option.name] = given; });
}

const po::value_semantic* semantic_of(const CommandOption& option, CommandLine& line) {
  switch (option.kind) {
    case OptionKind::flag:
      return value_of(po::bool_switch(), option, line);
    case OptionKind::integer:
      return value_of(po::value<std::int64_t>(), option, line);
    case OptionKind::real:
      return value_of(po::value<double>(), option, line);
    case OptionKind::text:
      return value_of(po::value<std::string>(), option, line);
  }
  fail(ExitCode::internal, "an option of an unknown kind");
}

po::options_description described(const std::string& title, const std::vector<CommandOption>& options,
                                  CommandLine& line) {
  po::options_description description(title);
  for (const CommandOption& option : options)
    description.add_options()(option.name.c_str(), semantic_of(option, line), option.doc.c_str());
  return description;
}

/// Moves every `--section.key=value` from `words` to the result, because Boost would reject an empty value.
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

/// Throws ExitCode::usage for an option that Boost did not recognise.
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
  po::options_description all = described("", syntax.options, line);
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
  if (line.arguments.size() > syntax.max_arguments) {
    fail(ExitCode::usage, "{}: unexpected argument {}; see {}", syntax.name,
         line.arguments[syntax.max_arguments], syntax.help);
  }
  return line;
}

std::string options_text(const std::string& title, const std::vector<CommandOption>& options) {
  std::ostringstream text;
  CommandLine unread;
  text << described(title, options, unread);
  return text.str();
}

}  // namespace mylos
