// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/choice_evaluation.hpp"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>

#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/say.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

ChoiceStyle style_of(const CommandLine& line) {
  if (!line.has("style")) return ChoiceStyle::llmc;
  const auto* const found = std::ranges::find(choice_style_names, line.text("style"));
  if (found == std::end(choice_style_names))
    fail(ExitCode::usage, "--style={} must be {}", line.text("style"), join(choice_style_names, " or "));
  return static_cast<ChoiceStyle>(found - std::begin(choice_style_names));
}

}  // namespace

std::vector<CommandOption> choice_options() {
  return {
      {"choices", OptionKind::text,
       "answer multiple choice questions instead of computing a loss: JSON lines such as HellaSwag's, or "
       "llm.c's "
       "file"},
      {.name = "style",
       .kind = OptionKind::text,
       .doc = "with --choices: llmc (the default) or harness (as lm-evaluation-harness' task hellaswag)",
       .choices = "llmc|harness"},
      {"limit", OptionKind::integer, "with --choices: answers only the first questions", {}, {}, 1},
      {"output", OptionKind::text,
       "with --choices: write a JSON object per question to this file: example, label, losses, tokens"},
  };
}

void check_choice_options(const CommandLine& line) {
  const bool is_given = line.has("choices");
  for (const char* option : {"style", "limit", "output"}) {
    if (line.has(option) && !is_given) fail(ExitCode::usage, "--{} is for --choices", option);
  }
  for (const char* option : {"data", "stride", "per-token", "max-loss"}) {
    if (line.has(option) && is_given) fail(ExitCode::usage, "--{} and --choices exclude each other", option);
  }
}

void ChoiceEvaluation::prepare(const Launch& launch, Inference& model) {
  RunConfig& config = model.setup.config;
  launch.agree([&] {
    std::optional<std::int64_t> limit;
    if (line_.has("limit")) limit = line_.integer("limit");
    const std::string file = input_file(line_, "choices");
    const ChoiceStyle style = style_of(line_);
    std::string reason;
    const bool has_tokens = ChoiceFile(file, style).has_tokens();
    const auto tokenizer = has_tokens ? nullptr : find_model_tokenizer(line_, *model.source, reason);
    if (!has_tokens && tokenizer == nullptr)
      fail(ExitCode::usage, "{} holds text, but the model's tokenizer cannot be used: {}", file, reason);
    questions_ = read_choices(file, style, limit, tokenizer.get(), config.model.vocab, config.model.context);
    if (launch.is_first() && line_.has("output")) output_file(line_, "output", std::vector<fs::path>{file});
  });
  launch.check_same(fmt::format("content of --choices = {}\n", questions_.digest));
  if (questions_.cut > 0 && launch.is_first()) {
    say(stderr, "mylos: {} of the rows are longer than the context of {} tokens and lose their beginning\n",
        questions_.cut, config.model.context);
  }
  config.cache =
      choice_cache(questions_, config.train.micro_batch * config.train.seq_len, config.parallel.data);
}

int ChoiceEvaluation::run(const Launch& launch, Inference& model) {
  const RunConfig& config = model.setup.config;
  const ChoiceResult result = *evaluate_choices(*model.executor, model.session->compute(),
                                                model.session->grid(), config.cache, questions_);
  const std::vector<std::string> lines = gather_lines(model, result.lines);
  if (!launch.is_first()) return 0;
  if (line_.has("output")) write_output(expand_path(line_.text("output")), join(lines, ""));
  fmt::print("{}: {}\n", model.name(), choices_text(result.summary));
  return 0;
}

}  // namespace mylos
