// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <filesystem>
#include <vector>

#include "app/commands/commands.hpp"
#include "core/base/error.hpp"
#include "io/file_util.hpp"
#include "io/tokens/token_dataset.hpp"
#include "io/tokens/tokenizer.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

void write_tokens(const std::string& file, const Tokenizer& tokenizer, std::string_view text) {
  TokenFileWriter writer(file);
  writer.append(tokenizer.encode(text));
  const std::uint16_t end = tokenizer.end_of_text();
  writer.append({&end, 1});
  writer.finish();
  fmt::print("{}: {} tokens\n", file, writer.num_tokens());
}

/// Throws if two of the names are one file, there or not yet.
void check_apart(const std::vector<fs::path>& files) {
  const auto place = [](const fs::path& file) { return fs::weakly_canonical(fs::absolute(file)); };
  for (auto a = files.begin(); a != files.end(); ++a) {
    for (auto b = a + 1; b != files.end(); ++b) {
      std::error_code not_there;
      if (!b->empty() && (place(*a) == place(*b) || fs::equivalent(*a, *b, not_there)))
        fail(ExitCode::usage, "{} and {} are one file: the text and the outputs need one each", a->string(),
             b->string());
    }
  }
}

std::vector<CommandOption> options() {
  return {
      {.name = "tokenizer",
       .kind = OptionKind::text,
       .default_value = std::string(tokenizers().front().name),
       .doc = tokenizer_names(" or ")},
      {.name = "output", .kind = OptionKind::text, .doc = "token file to write (required)"},
      {.name = "valid-output",
       .kind = OptionKind::text,
       .doc = "token file for the held-out end of the text"},
      {.name = "valid-fraction",
       .kind = OptionKind::real,
       .default_value = "0.1",
       .doc = "share of the text held out"},
  };
}

int run(const CommandLine& line) {
  const std::string& input = line.argument(0, "a text file");
  if (!line.has("output")) fail(ExitCode::usage, "mylos tokenize needs --output FILE");
  check_apart({input, line.text("output"), line.has("valid-output") ? line.text("valid-output") : ""});
  const auto tokenizer = make_tokenizer(line.text("tokenizer"));
  constexpr std::size_t largest_text = std::size_t{4} << 30;
  const std::string text = read_text_file(input, largest_text);
  if (text.empty()) fail(ExitCode::bad_data, "{} is empty", input);
  std::size_t split = text.size();
  if (line.has("valid-output")) {
    const double fraction = line.real("valid-fraction");
    if (!(fraction > 0.0 && fraction < 1.0)) {
      fail(ExitCode::usage, "--valid-fraction={} must lie between 0 and 1", fraction);
    }
    split = static_cast<std::size_t>(static_cast<double>(text.size()) * (1.0 - fraction));
  }
  const std::string_view all = text;
  write_tokens(line.text("output"), *tokenizer, all.substr(0, split));
  if (split < text.size()) write_tokens(line.text("valid-output"), *tokenizer, all.substr(split));
  return 0;
}

}  // namespace

const Command tokenize_command{
    .name = "tokenize", .arguments = "TEXT", .summary = "make a token file", .options = options, .run = run};

}  // namespace mylos
