// SPDX-License-Identifier: BSD-3-Clause
// TextGenerator: continues texts with a model and its cache of keys and values.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/inference/prompts.hpp"
#include "app/inference/sampling.hpp"
#include "app/inference/text_stream.hpp"
#include "core/model/recorder.hpp"
#include "io/tokens/tokenizer.hpp"
#include "parallel/engine/model_executor.hpp"
#include "parallel/gather_values.hpp"
#include "parallel/process_grid.hpp"

namespace mylos {

/// A text that is to be continued.
struct TextJob {
  std::int64_t prompt = 0;                 ///< number of the prompt
  std::int64_t sample = 0;                 ///< number among the samples of the prompt
  std::span<const std::int32_t> tokens{};  ///< the prompt; at least one. Must outlive the job
};

struct GenerationSettings {
  Sampling sampling;
  std::int64_t most_tokens = 0;  ///< that are drawn for a text
  std::vector<std::string> stop_texts;
  const Tokenizer* tokenizer = nullptr;  ///< null: tokens only, and nothing but `most_tokens` ends a text
};

/// The cache and the passes for up to `rows` texts at once. A prompt is read in pieces of 64, 8 and 1 tokens,
/// each as large as possible, and on the host at most 8 texts are continued by one pass, which keeps kernels
/// for few rows: so what is computed for a text depends on nothing but its tokens.
CacheConfig generation_cache(std::int64_t context, std::int64_t rows);

/// Drops what does not fit from the beginning of a window of `size` tokens, the next of which is to be
/// predicted. Positions are learned and cannot be shifted, so that the rest must be read again: a full window
/// loses its older half (context / 2 tokens, rounded down, at least one), a longer prompt all but its newest
/// `context` tokens. Returns the number of tokens dropped.
std::int64_t dropped_tokens(std::int64_t size, std::int64_t context, bool is_prompt);

/// For the ranks of one session. The ranks along the tensor and pipeline axes get the same jobs, and those
/// along the data axes their own.
class TextGenerator {
 public:
  /// `program`'s cache is a `generation_cache`. The arguments must outlive the object.
  TextGenerator(ComputeBackend& backend, const ProcessGrid& grid, const RankProgram& program,
                ModelExecutor& executor, const GenerationSettings& settings);

  /// Returns the completions of the jobs, in their order. `show` is called with each piece of text, of all
  /// jobs, as soon as it is certain. Throws ExitCode::numerical if logits are not finite. Collective.
  std::vector<Completion> run(
      const std::vector<TextJob>& jobs,
      const std::function<void(std::string_view)>& show = [](std::string_view) {});

  /// Whether a full context made a text of the last `run` lose its beginning.
  bool has_dropped() const { return has_dropped_; }

 private:
  /// A text in a row of the cache.
  struct Text {
    Text(const TextJob& job, const std::vector<std::string>& stop_texts)
        : tokens(job.tokens.begin(), job.tokens.end()), stream(stop_texts) {
      completion.prompt = job.prompt;
      completion.sample = job.sample;
    }

    std::vector<std::int32_t> tokens;  // of the prompt and drawn
    std::int32_t row = 0;
    std::int64_t begin = 0;   // the window's first token
    std::int64_t cached = 0;  // tokens of the window whose keys and values are in the cache
    TextStream stream;
    Completion completion;
  };

  /// A pass that a rank wants to run: it reads a piece of a text, or continues some texts by a token each.
  struct Wish {
    bool reads = false;
    std::size_t pass = 0;

    auto operator<=>(const Wish&) const = default;
  };

  void start(const TextJob& job, std::int32_t row);
  /// Makes room in the window and returns the number of tokens that are not in the cache.
  std::int64_t pending(Text& text);
  std::size_t pass_to_read(std::int64_t pending) const;
  std::size_t pass_to_continue() const;
  void read_piece(Text& text, std::int64_t pending, std::size_t pass);
  void continue_some(std::size_t pass);
  void run_idle(std::size_t pass);
  /// Returns the pass that this rank runs next, or nothing if no rank has anything to do.
  std::optional<Wish> agreed(const std::optional<Wish>& own);
  void draw(const std::vector<Text*>& texts);
  /// Samples the next tokens of `texts`; all ranks that continue them get the same.
  std::vector<DrawnToken> sample(const std::vector<Text*>& texts);
  void finish(Text& text, Finish why);

  ComputeBackend& backend_;
  const RankProgram& program_;
  ModelExecutor& executor_;
  const GenerationSettings& settings_;
  const CacheConfig& cache_;
  const bool alike_;    // all ranks run the same passes, because some exchange rows of experts
  const bool in_step_;  // all ranks run as many passes, because these communicate along the data axes
  Sampler sampler_;
  ValueGatherer wishes_;
  std::optional<ValueGatherer> drawn_ids_;     // of the tensor ranks, if there are several
  std::optional<ValueGatherer> drawn_tokens_;  // of the stages, if there are several
  std::deque<Text> texts_;                     // of all jobs of a run
  std::vector<Text*> active_;                  // those that were continued last are last
  std::vector<std::int32_t> free_rows_;
  const std::function<void(std::string_view)>* show_ = nullptr;
  bool has_dropped_ = false;
};

}  // namespace mylos
