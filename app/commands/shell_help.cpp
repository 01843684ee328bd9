// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/shell_help.hpp"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/core.h>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/base/version.hpp"

namespace mylos {

namespace {

/// The words that begin options of a command: "--dry-run --ranks=".
std::vector<std::string> option_words(const Command& command) {
  std::vector<std::string> words;
  for (const CommandOption& option : options_of(command)) {
    const bool may_have_none = option.kind == OptionKind::flag || option.implicit_value;
    if (may_have_none) words.push_back("--" + option.name);
    if (option.kind != OptionKind::flag) words.push_back("--" + option.name + "=");
  }
  words.emplace_back("--help");
  return words;
}

/// The case of a shell script in which the choices "a|b" of --NAME are words; "" if there are none.
std::string case_of(std::string_view name, std::string choices) {
  std::ranges::replace(choices, '|', ' ');
  return choices.empty() ? "" : fmt::format("      --{}) words='{}' ;;\n", name, choices);
}

/// Escapes what troff would read as its own.
std::string roff(std::string_view text) {
  std::string escaped;
  for (const char letter : text) {
    if (letter == '\\') {
      escaped += "\\e";
    } else if (letter == '-') {
      escaped += "\\-";
    } else if ((letter == '.' || letter == '\'') && (escaped.empty() || escaped.back() == '\n')) {
      escaped += std::string("\\&") + letter;
    } else {
      escaped += letter;
    }
  }
  return escaped;
}

std::string item(std::string_view term, std::string_view text) {
  return fmt::format(".TP\n.B {}\n{}\n", roff(term), roff(text));
}

std::string exit_codes() {
  constexpr std::pair<ExitCode, std::string_view> codes[] = {
      {ExitCode::done, "done"},
      {ExitCode::usage, "command line, deck or plugin cannot be used, or the run may not start"},
      {ExitCode::numerical, "skipped steps, differing replicas, values that are not finite, a loss too high"},
      {ExitCode::bad_data, "a token file, checkpoint or other input is invalid"},
      {ExitCode::internal, "a broken invariant, out of memory, or a failure of a library or device"},
      {ExitCode::io, "reading or writing failed or hung"},
      {ExitCode::preempted, "stopped by a signal or a time limit; restart to continue"},
      {ExitCode::watchdog, "a rank hung or died, or ranks differ in what they do"},
  };
  std::string text = ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : codes) text += item(std::to_string(static_cast<int>(code)), meaning);
  return text;
}

std::string term_of(const CommandOption& option) {
  const char* value = option.kind == OptionKind::integer ? "N"
                      : option.kind == OptionKind::real  ? "X"
                                                         : "TEXT";
  if (option.kind == OptionKind::flag) return fmt::format("--{}", option.name);
  return option.implicit_value ? fmt::format("--{}[={}]", option.name, value)
                               : fmt::format("--{}={}", option.name, value);
}

}  // namespace

std::string bash_completion(std::span<const ParamSpec> keys) {
  std::string options;
  std::string values;
  for (const Command* command : commands()) {
    for (const CommandOption& option : options_of(*command)) values += case_of(option.name, option.choices);
    std::vector<std::string> words = option_words(*command);
    if (command->takes_overrides) {
      for (const ParamSpec& key : keys) words.push_back(fmt::format("--{}.{}=", key.section, key.name));
    }
    options += fmt::format("    {}) words='{}' ;;\n", command->name, join(words, " "));
  }
  for (const ParamSpec& key : keys) {
    values += case_of(fmt::format("{}.{}", key.section, key.name),
                      key.type == ParamType::boolean ? "true|false" : key.choices);
  }
  return fmt::format(R"(# Completion of mylos for bash, as `mylos help completion` prints it.
_mylos() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} key='' words=''
  local commands='{}'
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "$commands --help --version" -- "$cur")
    return
  fi
  # If = breaks words, KEY=VALUE is three of them.
  if [[ $cur == = ]]; then
    key=${{COMP_WORDS[COMP_CWORD - 1]}} cur=
  elif [[ ${{COMP_WORDS[COMP_CWORD - 1]}} == = ]]; then
    key=${{COMP_WORDS[COMP_CWORD - 2]}}
  elif [[ $cur == --*=* ]]; then
    key=${{cur%%=*}} cur=${{cur#*=}}
  fi
  if [[ -n $key ]]; then
    case $key in
{}      *)
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    return
  fi
  if [[ $cur != -* ]]; then
    if [[ ${{COMP_WORDS[1]}} == help ]]; then
      mapfile -t COMPREPLY < <(compgen -W "$commands deck plugins completion man" -- "$cur")
    else
      compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
  if ((${{#COMPREPLY[@]}} == 1)) && [[ ${{COMPREPLY[0]}} == *= ]]; then compopt -o nospace; fi
}}
complete -F _mylos mylos
)",
                     join(command_names(), " "), values, options);
}

std::string man_page(const Command* command) {
  const std::string name = command == nullptr ? "mylos" : fmt::format("mylos-{}", command->name);
  std::string title = name;
  std::ranges::transform(title, title.begin(), [](char letter) {
    return letter >= 'a' && letter <= 'z' ? letter - 'a' + 'A' : letter;
  });
  std::string text = fmt::format(".TH {} 1 \"\" \"mylos {}\" \"mylos\"\n.SH NAME\n", roff(title), version());
  if (command == nullptr) {
    text += roff(name) + " \\- trains GPT\\-2 on MPI ranks from an input deck\n";
    text += ".SH SYNOPSIS\n.B mylos\n.I COMMAND\n[ARGUMENTS] [OPTIONS]\n.SH COMMANDS\n";
    for (const Command* own : commands())
      text += item(fmt::format("{} {}", own->name, own->arguments), own->summary);
    text += ".SH SEE ALSO\n";
    for (const Command* own : commands())
      text += fmt::format(".BR mylos\\-{} (1){}\n", own->name, own == commands().back() ? "" : ",");
    return text + ".PP\n.B mylos help deck\nshows every parameter of a deck.\n" + exit_codes();
  }
  text += fmt::format("{} \\- {}\n.SH SYNOPSIS\n.B mylos {}\n{} [OPTIONS]{}\n.SH OPTIONS\n", roff(name),
                      roff(command->summary), command->name, roff(command->arguments),
                      command->takes_overrides ? " [\\-\\-SECTION.KEY=VALUE ...]" : "");
  for (const CommandOption& option : options_of(*command)) {
    std::string doc = option.doc;
    if (option.default_value && !option.default_value->empty())
      doc += fmt::format(" (default: {})", *option.default_value);
    text += item(term_of(option), doc);
  }
  if (command->takes_overrides) {
    text += item("--SECTION.KEY=VALUE",
                 "a parameter of the deck, instead of the deck's value; mylos help deck shows all");
  }
  return text + exit_codes() + ".SH SEE ALSO\n.BR mylos (1)\n";
}

}  // namespace mylos
