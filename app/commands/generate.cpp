// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdio>
#include <optional>

#include "app/commands/commands.hpp"
#include "app/inference/inference.hpp"
#include "app/inference/prompts.hpp"
#include "app/inference/text_generator.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/say.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "io/tokens/content_kind.hpp"

namespace mylos {

namespace {

std::vector<CommandOption> options() {
  std::vector<CommandOption> own = {
      {"prompt", OptionKind::text, "text to continue; - takes standard input", ""},
      {"prompts", OptionKind::text,
       "file with a JSON object per line, whose `prompt` is a text or whose `tokens` are ids; - takes "
       "standard "
       "input"},
      {"samples", OptionKind::integer, "number of texts to generate from each prompt", "1", {}, 1},
      {"tokens",
       OptionKind::integer,
       "largest number of tokens to generate; <|endoftext|> ends the text earlier",
       "200",
       {},
       0},
      {"temperature",
       OptionKind::real,
       "divides the logits before a token is drawn; 0 takes the most likely token",
       "0.8",
       {},
       0},
      {"top-k", OptionKind::integer, "draw from the k most likely tokens; 0 draws from all", "40", {}, 0},
      {"top-p", OptionKind::real,
       "draw from the fewest most likely tokens whose probabilities add up to this", "1"},
      {"repetition-penalty", OptionKind::real,
       "makes tokens of the prompt and of the text so far less likely, if it is larger than 1", "1"},
      {"seed", OptionKind::integer, "seed of the random draws", "1", {}, 0},
      {"stop", OptionKind::texts, "the text ends before this text; may be given several times"},
      {"batch",
       OptionKind::integer,
       "texts that a data rank continues at once; 8 at most by default",
       {},
       {},
       1},
      {"output", OptionKind::text,
       "write a JSON object per text to this file: prompt, sample, text, tokens, logprobs, finish"},
  };
  const std::vector<CommandOption> common = inference_options();
  own.insert(own.end(), common.begin(), common.end());
  return own;
}

Sampling sampling_of(const CommandLine& line) {
  const Sampling sampling{.temperature = line.real("temperature"),
                          .top_k = line.integer("top-k"),
                          .top_p = line.real("top-p"),
                          .repetition_penalty = line.real("repetition-penalty"),
                          .seed = static_cast<std::uint64_t>(line.integer("seed"))};
  check_sampling(sampling);
  return sampling;
}

/// The text of standard input. Throws ExitCode::bad_data if it is not a text.
std::string read_prompt() {
  std::string text = read_standard_input();
  const std::string_view kind = known_format(std::string_view(text).substr(0, content_head_bytes)).name;
  if (!kind.empty()) fail(ExitCode::bad_data, "{} is {}, not a text in UTF-8", standard_input_name, kind);
  if (text.starts_with(utf8_mark)) text.erase(0, utf8_mark.size());
  return text;
}

/// `mylos generate`, from the command line to the output.
class Generation {
 public:
  explicit Generation(const CommandLine& line) : line_(line) {}

  /// Makes the prompts and plans the cache.
  void prepare(const Launch& launch, Inference& model) {
    RunConfig& config = model.setup.config;
    launch.agree([&] { take_tokenizer(launch, model); });
    take_prompts(launch, config.model);
    launch.agree([&] {
      if (!launch.is_first() || !line_.has("output")) return;
      std::vector<std::filesystem::path> inputs;
      if (line_.has("prompts")) inputs.emplace_back(expand_path(line_.text("prompts")));
      output_file(line_, "output", inputs);
    });
    constexpr std::int64_t most_rows = 8;
    constexpr std::int64_t most_texts = 1'000'000;
    const std::int64_t samples = line_.integer("samples");
    launch.agree([&] {
      if (samples > most_texts / std::ssize(prompts_)) {
        fail(ExitCode::usage, "--samples={} of {} prompts: a call generates at most {} texts", samples,
             prompts_.size(), most_texts);
      }
    });
    const std::int64_t texts = std::ssize(prompts_) * samples;
    const std::int64_t own = (texts + config.parallel.data - 1) / config.parallel.data;
    const std::int64_t batch = line_.has("batch") ? line_.integer("batch") : most_rows;
    config.cache = generation_cache(config.model.context, std::min(own, batch));
  }

  int run(const Launch& launch, Inference& model) {
    const bool speaks = launch.is_first();
    // Only one text can be shown while it is generated.
    const bool streams =
        tokenizer_ != nullptr && !line_.has("output") && std::ssize(prompts_) * line_.integer("samples") == 1;
    const auto show = [&](std::string_view text) {
      if (!streams || !speaks || text.empty()) return;
      fmt::print("{}", text);
      std::fflush(stdout);
    };
    if (streams) show(text_of_prompt(0));
    TextGenerator generator(model.session->compute(), model.session->grid(), *model.program, *model.executor,
                            settings_);
    const std::vector<Completion> own = generator.run(jobs_of(model.session->grid()), show);
    if (streams && speaks) fmt::print("\n");
    std::string lines;
    for (const Completion& completion : own) lines += completion_line(completion);
    const std::vector<std::string> all = gather_lines(model, lines);
    const std::vector<std::string> dropped = model.session->gather(generator.has_dropped() ? "yes" : "");
    if (!speaks) return 0;
    if (settings_.most_tokens == 0) say(stderr, "warning: --tokens=0 generates nothing\n");
    if (std::ranges::any_of(dropped, [](const std::string& text) { return !text.empty(); })) {
      say(stderr,
          "mylos: the context of {} tokens was full, and lost its older half so that the text could go on\n",
          model.setup.config.model.context);
    }
    if (streams) return 0;
    if (line_.has("output")) {
      write_output(expand_path(line_.text("output")), join(all, ""));
    } else {
      std::ranges::for_each(all, [&](const std::string& text) { print(text); });
    }
    return 0;
  }

 private:
  void take_tokenizer(const Launch& launch, const Inference& model) {
    settings_ = {.sampling = sampling_of(line_),
                 .most_tokens = line_.integer("tokens"),
                 .stop_texts = line_.texts("stop")};
    check_stop_texts(settings_.stop_texts);
    if (line_.has("prompts") && !line_.text("prompt").empty())
      fail(ExitCode::usage, "--prompt and --prompts exclude each other");
    std::string reason;
    tokenizer_ = find_model_tokenizer(line_, *model.source, reason);
    settings_.tokenizer = tokenizer_.get();
    if (tokenizer_ == nullptr && !line_.has("prompts")) {
      fail(ExitCode::usage, "mylos cannot turn this model's tokens into text: {}; give tokens with --prompts",
           reason);
    }
    if (tokenizer_ == nullptr && !settings_.stop_texts.empty())
      fail(ExitCode::usage, "--stop needs the model's tokenizer: {}", reason);
    if (launch.is_first()) warn_of_unused_ranks(line_, tokenizer_.get());
  }

  void take_prompts(const Launch& launch, const ModelConfig& model) {
    const bool is_list = line_.has("prompts");
    const std::string name = line_.text(is_list ? "prompts" : "prompt");
    std::string text = name;
    const auto read = [&] {
      if (name == "-") return is_list ? read_standard_input() : read_prompt();
      return is_list ? read_text_file(input_file(line_, "prompts"), most_prompts_bytes) : name;
    };
    if (is_list || name == "-") text = launch.share(read);
    launch.agree([&] {
      prompts_ = {text};
      if (is_list) prompts_ = parse_prompts(text, name, {model.vocab, tokenizer_ != nullptr});
      std::int64_t cut = 0;
      for (const Prompt& prompt : prompts_) {
        tokens_.push_back(tokens_of(prompt));
        cut += dropped_tokens(std::ssize(tokens_.back()), model.context, true) > 0 ? 1 : 0;
      }
      if (cut > 0 && launch.is_first()) {
        say(stderr, "mylos: {} longer than the context: only the newest {} tokens of each are read\n",
            cut == 1 ? "a prompt is" : fmt::format("{} prompts are", cut), model.context);
      }
    });
  }

  std::vector<std::int32_t> tokens_of(const Prompt& prompt) const {
    if (const auto* ids = std::get_if<std::vector<std::int32_t>>(&prompt)) return *ids;
    const std::vector<std::uint16_t> ids = tokenizer_->encode(std::get<std::string>(prompt));
    if (ids.empty()) return {tokenizer_->end_of_text()};
    return {ids.begin(), ids.end()};
  }

  std::string text_of_prompt(std::size_t prompt) const {
    if (const auto* text = std::get_if<std::string>(&prompts_[prompt])) return *text;
    if (tokenizer_ == nullptr) return "";
    std::string text;
    for (const std::int32_t id : tokens_[prompt]) {
      const auto token = static_cast<std::uint16_t>(id);
      if (id < tokenizer_->vocab_size()) text += tokenizer_->decode({&token, 1});
    }
    return text;
  }

  /// The texts of this rank: text i, in the order of prompts and samples, is of data rank i mod D.
  std::vector<TextJob> jobs_of(const ProcessGrid& grid) const {
    const std::int64_t readers = grid.coordinates().extent(sample_axes);
    const std::int64_t samples = line_.integer("samples");
    std::vector<TextJob> jobs;
    for (std::int64_t i = grid.coordinates().index(sample_axes); i < std::ssize(prompts_) * samples;
         i += readers)
      jobs.push_back({.prompt = i / samples,
                      .sample = i % samples,
                      .tokens = tokens_[static_cast<std::size_t>(i / samples)]});
    return jobs;
  }

  /// Prints a text of several.
  void print(const std::string& completion) const {
    const Json json = Json::parse(completion);
    const std::int64_t prompt = json.integer("prompt");
    fmt::print("== prompt {}, sample {} ({})\n", prompt, json.integer("sample"), json.text("finish"));
    if (tokenizer_ == nullptr) {
      for (const std::int64_t token : json.integers("tokens")) fmt::print("{} ", token);
      fmt::print("\n");
    } else {
      fmt::print("{}{}\n", text_of_prompt(static_cast<std::size_t>(prompt)), json.text("text"));
    }
  }

  static constexpr std::size_t most_prompts_bytes = std::size_t{1} << 30U;

  const CommandLine& line_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  GenerationSettings settings_;
  std::vector<Prompt> prompts_;
  std::vector<std::vector<std::int32_t>> tokens_;  // of the prompts
};

int run(const CommandLine& line) {
  Generation generation(line);
  return with_inference(
      line, {.batch = 1,
             .prepare = [&](const Launch& launch, Inference& model) { generation.prepare(launch, model); },
             .run = [&](const Launch& launch, Inference& model) { return generation.run(launch, model); }});
}

}  // namespace

const Command generate_command{.name = "generate",
                               .arguments = model_argument,
                               .summary = "continue texts with a model",
                               .options = options,
                               .run = run,
                               .takes_overrides = true};

}  // namespace mylos
