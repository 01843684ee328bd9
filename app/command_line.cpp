// SPDX-License-Identifier: BSD-3-Clause
#include "app/command_line.hpp"

#include <algorithm>
#include <sstream>

#include "core/base/error.hpp"

namespace mylos {

namespace po = boost::program_options;

namespace {

struct Command {
  const char* name;
  const char* arguments;
  const char* summary;
  std::size_t most_arguments = 1;
};

constexpr Command commands[] = {
    {"train", "DECK", "train from an input deck; --section.key=value overrides the deck"},
    {"eval", "RUN|CHECKPOINT", "validation loss and accuracy of a checkpoint, on any number of ranks"},
    {"generate", "RUN|CHECKPOINT", "text from a checkpoint"},
    {"tokenize", "TEXT", "make a token file"},
    {"inspect", "PATH", "show a run, checkpoint, token file, metrics file or plugin"},
    {"report", "RUN", "write RUN/report.html"},
    {"help", "[TOPIC]", "TOPIC is a command, deck, deck SECTION or plugins", 2},
};

po::options_description options_of(const std::string& command) {
  po::options_description options("Options");
  auto add = options.add_options();
  add("plugin-path", po::value<std::string>()->default_value(""),
      "folders to search for plugins first, by ':'");
  if (command == "train") {
    add("restart", po::value<std::string>()->implicit_value("newest"),
        "continue from the newest whole checkpoint, or --restart=step_N");
    add("dry-run", po::bool_switch(), "check the deck, print the plan and stop; needs no launcher");
    add("ranks", po::value<int>(), "with --dry-run: the number of ranks to plan for");
    add("progress", po::value<std::string>()->default_value("auto"), "console: auto, live, plain or none");
  } else if (command == "eval") {
    add("data", po::value<std::string>(), "token file; the run's validation file by default");
    add("step", po::value<std::int64_t>(), "of the checkpoint in a run; the newest by default");
    add("max-loss", po::value<double>(), "exit with 17 where the loss is larger");
  } else if (command == "generate") {
    add("prompt", po::value<std::string>()->default_value(""), "text to continue");
    add("tokens", po::value<std::int64_t>()->default_value(200), "how many to generate");
    add("temperature", po::value<double>()->default_value(0.8, "0.8"), "0 takes the most likely token");
    add("top-k", po::value<std::int64_t>()->default_value(40), "draw from the k most likely; 0 from all");
    add("seed", po::value<std::uint64_t>()->default_value(1), "of the draws");
    add("step", po::value<std::int64_t>(), "of the checkpoint in a run; the newest by default");
  } else if (command == "tokenize") {
    add("tokenizer", po::value<std::string>()->default_value("bytes"), "bytes");
    add("output", po::value<std::string>(), "token file to write (required)");
    add("valid-output", po::value<std::string>(), "token file for the held-out end of the text");
    add("valid-fraction", po::value<double>()->default_value(0.1, "0.1"), "share of the text held out");
  } else if (command == "inspect") {
    add("verify", po::bool_switch(), "check the digests of a checkpoint");
  } else if (command == "report") {
    add("output", po::value<std::string>(), "the file to write; RUN/report.html by default");
  } else if (command == "help") {
    add("markdown", po::bool_switch(), "the deck reference as docs/deck.md");
  }
  return options;
}

/// `--section.key=value`: what Boost did not recognise.
std::vector<std::pair<std::string, std::string>> deck_overrides(const CommandSyntax& syntax,
                                                                const std::vector<po::option>& options) {
  std::vector<std::pair<std::string, std::string>> overrides;
  for (const po::option& option : options) {
    if (!option.unregistered) continue;
    const bool is_key = option.string_key.find('.') != std::string::npos;
    if (!is_key || !syntax.takes_overrides) {
      fail(ExitCode::usage, "{} has no option {}; see {}", syntax.name,
           option.original_tokens.empty() ? option.string_key : option.original_tokens.front(), syntax.help);
    }
    if (option.value.empty())
      fail(ExitCode::usage, "--{} needs a value: --{}=VALUE", option.string_key, option.string_key);
    overrides.emplace_back(option.string_key, option.value.front());
  }
  return overrides;
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
  po::options_description hidden;
  hidden.add_options()("argument", po::value<std::vector<std::string>>(&line.arguments));
  po::options_description both;
  both.add(syntax.options).add(hidden);
  po::positional_options_description positional;
  positional.add("argument", -1);
  try {
    using style = po::command_line_style::style_t;
    const po::parsed_options parsed = po::command_line_parser(words)
                                          .options(both)
                                          .positional(positional)
                                          .style(style::unix_style & ~style::allow_guessing)
                                          .allow_unregistered()
                                          .run();
    po::store(parsed, line.options);
    po::notify(line.options);
    line.overrides = deck_overrides(syntax, parsed.options);
  } catch (const po::error& error) {
    fail(ExitCode::usage, "{}: {}", syntax.name, error.what());
  }
  if (line.arguments.size() > syntax.most_arguments) {
    fail(ExitCode::usage, "{}: one argument too many: {}; see {}", syntax.name,
         line.arguments[syntax.most_arguments], syntax.help);
  }
  return line;
}

CommandLine parse_command_line(int argc, const char* const* argv) {
  std::string command = argc > 1 ? argv[1] : "help";
  if (command == "--help" || command == "-h") command = "help";
  const auto known = std::ranges::find_if(commands, [&](const Command& c) { return command == c.name; });
  if (known == std::end(commands)) fail(ExitCode::usage, "unknown command \"{}\"\n{}", command, usage_text());

  std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);
  if (std::ranges::find(words, "--help") != words.end()) {
    words = {command};
    command = "help";
  }
  CommandLine line = parse_words({.name = "mylos " + command,
                                  .help = "mylos help " + command,
                                  .options = options_of(command),
                                  .most_arguments = known->most_arguments,
                                  .takes_overrides = command == "train"},
                                 words);
  line.command = command;
  return line;
}

std::string usage_text() {
  std::string text = "mylos trains GPT-2 from an input deck, on MPI ranks.\n\n";
  for (const Command& command : commands) {
    text += fmt::format("  mylos {:<9} {:<16} {}\n", command.name, command.arguments, command.summary);
  }
  text += "\nmylos help COMMAND shows a command's options, mylos help deck every deck parameter.\n";
  return text;
}

std::string command_help(const std::string& command) {
  for (const Command& known : commands) {
    if (command != known.name) continue;
    std::ostringstream text;
    text << fmt::format("mylos {} {}: {}\n\n", known.name, known.arguments, known.summary)
         << options_of(command);
    return text.str();
  }
  fail(ExitCode::usage, "unknown command \"{}\"\n{}", command, usage_text());
}

}  // namespace mylos
