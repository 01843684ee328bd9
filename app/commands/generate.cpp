// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "app/commands/commands.hpp"
#include "app/inference.hpp"
#include "app/run_directory.hpp"
#include "core/base/expand_path.hpp"
#include "core/base/join.hpp"
#include "core/base/say.hpp"
#include "io/tokens/content_kind.hpp"
#include "io/tokens/tokenizer.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

struct Sampling {
  double temperature = 1.0;  ///< 0 takes the most likely token
  std::int64_t top_k = 0;    ///< 0 draws from all tokens
  PhiloxKey key;
};

/// Draws a token; the random number depends only on the key and `index`.
std::int32_t draw(const std::vector<float>& logits, const Sampling& sampling, std::int64_t index) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto size = static_cast<std::int64_t>(order.size());
  const bool greedy = sampling.temperature <= 0.0;
  const std::int64_t k = greedy ? 1 : sampling.top_k > 0 ? std::min(sampling.top_k, size) : size;
  const auto logit = [&](std::int32_t token) { return logits[static_cast<std::size_t>(token)]; };
  if (!std::ranges::all_of(logits, [](float value) { return std::isfinite(value); }))
    fail(ExitCode::numerical, "the model's logits of token {} are not finite", index + 1);
  std::ranges::partial_sort(order, order.begin() + k, std::greater{}, logit);
  if (k == 1) return order.front();

  std::vector<double> cumulative;
  double total = 0.0;
  for (std::int64_t i = 0; i < k; ++i) {
    total +=
        std::exp((logit(order[static_cast<std::size_t>(i)]) - logit(order.front())) / sampling.temperature);
    cumulative.push_back(total);
  }
  const PhiloxBlock random = philox(sampling.key, static_cast<std::uint32_t>(index), 0, 0, 0);
  const double at = total * uniform01(random.x[0]);
  const auto chosen = std::ranges::upper_bound(cumulative, at) - cumulative.begin();
  return order[static_cast<std::size_t>(std::min<std::int64_t>(chosen, k - 1))];
}

/// The text of standard input. Throws ExitCode::bad_data if it is not a text.
std::string read_prompt() {
  std::string text = read_standard_input();
  const std::string_view kind = known_format(std::string_view(text).substr(0, content_head_bytes)).name;
  if (!kind.empty()) fail(ExitCode::bad_data, "{} is {}, not a text in UTF-8", standard_input_name, kind);
  if (text.starts_with(utf8_mark)) text.erase(0, utf8_mark.size());
  return text;
}

/// Returns the tokenizer of a run or checkpoint. Merge ranks, if it has any, are read from the file that the
/// command line names, otherwise from the run's copy, otherwise from the deck's file.
std::unique_ptr<Tokenizer> tokenizer_of(const CommandLine& line, const DataConfig& data,
                                        const std::string& folder) {
  if (!tokenizer_kind(data.tokenizer).has_ranks) return make_tokenizer(data.tokenizer);
  const fs::path place = fs::absolute(line.argument(0, "a run directory or a checkpoint")).lexically_normal();
  std::vector<std::string> files = {RunPaths{place}.ranks(),
                                    RunPaths{place / ".." / ".."}.ranks().lexically_normal()};
  // A relative path of the run's deck begins in the folder where it was started.
  if (!data.ranks.empty() && !folder.empty()) files.push_back(fs::path(folder) / data.ranks);
  if (!data.ranks.empty()) files.push_back(data.ranks);
  if (line.has("ranks")) files = {expand_path(line.text("ranks"))};
  const auto file = std::ranges::find_if(files, [](const std::string& path) {
    std::error_code unknown;
    return fs::exists(path, unknown);
  });
  if (file == files.end()) {
    fail(ExitCode::usage, "the ranks of {} were not found; looked for: {}; name them with --ranks=FILE",
         data.tokenizer, join(files, ", "));
  }
  return make_tokenizer(fmt::format("{}={}", data.tokenizer, *file));
}

std::vector<CommandOption> options() {
  return {
      {"prompt", OptionKind::text, "text to continue; - takes standard input", ""},
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
      {"seed", OptionKind::integer, "seed of the random draws", "1", {}, 0},
      {"ranks", OptionKind::text,
       "GPT-2's merge ranks, instead of the run's copy: a .tiktoken file, vocab.json next to merges.txt, "
       "or the folder that contains both"},
      step_option(),
  };
}

int run(const CommandLine& line) {
  return with_inference(line, 1, false, [&](const MpiRuntime& mpi, Inference& model) {
    const RunConfig& config = model.setup.config;
    if (config.data.tokenizer == "none") {
      fail(ExitCode::usage, "[data] tokenizer = none: mylos cannot turn this model's tokens into text");
    }
    if (mpi.rank() == 0 && line.has("ranks") && !tokenizer_kind(config.data.tokenizer).has_ranks)
      say(stderr, "warning: --ranks is not used: the run's tokenizer, {}, has no ranks\n",
          config.data.tokenizer);
    const auto tokenizer = tokenizer_of(line, config.data, config.folder);
    std::string prompt = line.text("prompt");
    if (prompt == "-") {
      if (const int code = share_text(mpi, read_prompt, prompt)) return code;
    }
    std::vector<std::uint16_t> text = tokenizer->encode(prompt);
    const bool unprompted = text.empty();
    if (unprompted) text.push_back(tokenizer->end_of_text());

    Sampling sampling;
    sampling.temperature = line.real("temperature");
    sampling.top_k = line.integer("top-k");
    sampling.key = stream_key(static_cast<std::uint64_t>(line.integer("seed")), "generate");
    const bool speaks = mpi.rank() == 0;
    if (speaks) fmt::print("{}", prompt);
    const std::int64_t seq = config.train.seq_len;
    std::vector<std::int32_t> window(static_cast<std::size_t>(seq + 1));
    const std::int64_t wanted = line.integer("tokens");
    for (std::int64_t i = 0; i < wanted; ++i) {
      const auto length = std::min<std::int64_t>(static_cast<std::int64_t>(text.size()), seq);
      std::ranges::fill(window, 0);
      std::copy(text.end() - length, text.end(), window.begin());
      model.executor->load_evaluation(window);
      const std::int32_t own = draw(model.executor->logits(length - 1), sampling, i);
      const std::int32_t token = std::stoi(mpi.broadcast(std::to_string(own)));  // the same text on all ranks
      text.push_back(static_cast<std::uint16_t>(token));
      if (token == tokenizer->end_of_text()) break;
      if (speaks) {
        fmt::print("{}", tokenizer->decode({&text.back(), 1}));
        std::fflush(stdout);
      }
    }
    if (speaks) fmt::print("\n");
    if (speaks && wanted == 0) say(stderr, "warning: --tokens=0 generates nothing\n");
    return 0;
  });
}

}  // namespace

const Command generate_command{.name = "generate",
                               .arguments = "RUN|CHECKPOINT",
                               .summary = "generate text from a checkpoint",
                               .options = options,
                               .run = run,
                               .takes_overrides = true};

}  // namespace mylos
