// SPDX-License-Identifier: BSD-3-Clause
#include "app/train/choice_evaluator.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

#include "core/base/digest.hpp"
#include "core/base/number_text.hpp"
#include "parallel/gather_values.hpp"

namespace mylos {

namespace {

/// Tokens of a text per pass: few, because the last piece of a row is as long as any, and enough for products
/// of many rows when the pass has many texts.
constexpr std::int64_t piece = 16;

/// Tokens of a pass at most, which bounds the cache.
constexpr std::int64_t most_pass_tokens = 2048;

/// A row in the cache.
struct ActiveRow {
  std::size_t question = 0;
  std::size_t ending = 0;
  ChoiceRow row;
  std::int64_t done = 0;  // inputs that were read
  EndingLoss loss{};

  std::int64_t num_inputs() const { return std::ssize(row.tokens) - 1; }
};

/// The questions of one data rank, row by row.
class RowQueue {
 public:
  RowQueue(const ChoiceQuestions& all, int reader, int readers)
      : all_(all), readers_(static_cast<std::size_t>(readers)), question_(static_cast<std::size_t>(reader)) {}

  bool empty() const { return question_ >= all_.questions.size(); }
  ActiveRow take() {
    const EncodedChoice& choice = all_.questions[question_];
    ActiveRow row{.question = question_, .ending = ending_, .row = choice.row(ending_, all_.max_length)};
    row.loss = {.tokens = row.row.num_targets, .is_greedy = true};
    if (++ending_ == choice.endings.size()) {
      ending_ = 0;
      question_ += readers_;
    }
    return row;
  }

 private:
  const ChoiceQuestions& all_;
  std::size_t readers_, question_;
  std::size_t ending_ = 0;
};

/// The inputs and targets of a pass: (texts, tokens).
class PassInputs {
 public:
  PassInputs(const CachedPass& pass, std::int32_t padding_row)
      : tokens_(static_cast<std::size_t>(pass.tokens)),
        inputs_(static_cast<std::size_t>(pass.texts) * tokens_),
        targets_(inputs_.size(), -1),
        rows_(static_cast<std::size_t>(pass.texts), padding_row),
        positions_(rows_.size()) {}

  /// Puts the next tokens of a row into text `text`. The last piece of a row may begin with tokens that were
  /// read already: it gives their keys and values again.
  void put(std::size_t text, const ActiveRow& row) {
    const std::int64_t size = std::ssize(row.row.tokens) - 1;
    const auto count = static_cast<std::int64_t>(tokens_);
    const std::int64_t begin = std::max<std::int64_t>(0, std::min(row.done, size - count));
    rows_[text] = static_cast<std::int32_t>(text);
    positions_[text] = static_cast<std::int32_t>(begin);
    for (std::int64_t i = begin; i < std::min(begin + count, size); ++i) {
      const std::size_t place = text * tokens_ + static_cast<std::size_t>(i - begin);
      inputs_[place] = row.row.tokens[static_cast<std::size_t>(i)];
      if (i >= row.done && i >= size - row.row.num_targets)
        targets_[place] = row.row.tokens[static_cast<std::size_t>(i) + 1];
    }
  }
  /// Adds the losses of text `text` to its row; there are none on a stage without the last chunk.
  void take(std::size_t text, ActiveRow& row, std::span<const float> losses,
            std::span<const std::int32_t> correct) const {
    for (std::size_t place = text * tokens_; place < (text + 1) * tokens_; ++place) {
      if (targets_[place] < 0 || losses.empty()) continue;
      row.loss.loss += losses[place];
      row.loss.is_greedy = row.loss.is_greedy && correct[place] != 0;
    }
    row.done = std::min(row.num_inputs(), positions_[text] + static_cast<std::int64_t>(tokens_));
  }
  CachedInput input() const {
    return {.tokens = inputs_, .rows = rows_, .positions = positions_, .targets = targets_};
  }

 private:
  std::size_t tokens_;
  std::vector<std::int32_t> inputs_, targets_, rows_, positions_;
};

/// The scores of all ranks, on every rank. `most` is the largest number of scores of a rank.
std::vector<ChoiceScore> gather_scores(ComputeBackend& backend, const ProcessGrid& grid,
                                       const std::vector<ChoiceScore>& own, std::size_t most) {
  constexpr std::size_t width = 4;
  constexpr std::int64_t none = -1;
  std::vector<std::int64_t> values(width * most, none);
  for (std::size_t i = 0; i < own.size(); ++i) {
    const ChoiceScore& score = own[i];
    const int flags =
        (score.is_right ? 1 : 0) + (score.is_right_normalised ? 2 : 0) + (score.is_greedy ? 4 : 0);
    values[width * i] = score.number;
    values[width * i + 1] = std::bit_cast<std::int64_t>(score.right_loss);
    values[width * i + 2] = score.right_tokens;
    values[width * i + 3] = flags;
  }
  const std::vector<std::int64_t> all = values_of_readers(backend, grid, values);
  std::vector<ChoiceScore> scores;
  for (std::size_t i = 0; i < all.size(); i += width) {
    if (all[i] == none) continue;
    scores.push_back({.number = all[i],
                      .right_loss = std::bit_cast<double>(all[i + 1]),
                      .right_tokens = all[i + 2],
                      .is_right = (all[i + 3] & 1) != 0,
                      .is_right_normalised = (all[i + 3] & 2) != 0,
                      .is_greedy = (all[i + 3] & 4) != 0});
  }
  return scores;
}

}  // namespace

ChoiceQuestions read_choices(const std::filesystem::path& file, ChoiceStyle style,
                             std::optional<std::int64_t> limit, const Tokenizer* tokenizer,
                             std::int64_t vocab, std::int64_t context) {
  ChoiceFile choices(file, style, limit);
  if (!choices.has_tokens() && tokenizer == nullptr) {
    fail(ExitCode::usage, "{} holds text, but the model's tokenizer is not known", file.string());
  }
  ChoiceEncoder encoder(style, choices.has_tokens() ? nullptr : tokenizer, vocab);
  ChoiceQuestions all;
  all.max_length = context;
  Digester digester;
  while (const std::optional<ChoiceExample> example = choices.next()) {
    const EncodedChoice& choice = all.questions.emplace_back(encoder.encode(*example));
    for (std::size_t ending = 0; ending < choice.endings.size(); ++ending) {
      const ChoiceRow row = choice.row(ending, context);
      all.longest = std::max(all.longest, std::ssize(row.tokens) - 1);
      all.tokens += std::ssize(row.tokens) - 1;
      all.cut += row.dropped > 0 ? 1 : 0;
      digester.add(row.tokens.data(), row.tokens.size() * sizeof(std::int32_t));
      digester.add(&row.num_targets, sizeof row.num_targets);
    }
    digester.add(&choice.label, sizeof choice.label);
  }
  all.digest = digester.digest().text();
  return all;
}

CacheConfig choice_cache(std::int64_t context, std::int64_t most_tokens) {
  const std::int64_t tokens = std::min(piece, context);
  const std::int64_t texts = std::max<std::int64_t>(std::min(most_tokens, most_pass_tokens) / tokens, 1);
  return {.rows = texts,
          .positions = context,
          .passes = {{.texts = texts, .tokens = tokens, .has_losses = true}}};
}

CacheConfig choice_cache(const ChoiceQuestions& questions, std::int64_t most_tokens, std::int64_t readers) {
  std::vector<std::int64_t> rows_of(static_cast<std::size_t>(readers));
  for (std::size_t i = 0; i < questions.questions.size(); ++i)
    rows_of[i % rows_of.size()] += std::ssize(questions.questions[i].endings);
  const std::int64_t rows = std::ranges::max(rows_of);
  CacheConfig cache = choice_cache(questions.max_length, most_tokens);
  CachedPass& pass = cache.passes.front();
  pass.texts = cache.rows = std::min(cache.rows, rows);
  cache.positions = std::max(questions.longest, pass.tokens);
  return cache;
}

std::optional<ChoiceResult> evaluate_choices(ModelExecutor& executor, ComputeBackend& backend,
                                             const ProcessGrid& grid, const CacheConfig& cache,
                                             const ChoiceQuestions& questions,
                                             const std::function<bool()>& is_interrupted) {
  const CachedPass& pass = cache.passes.front();
  const int readers = grid.coordinates().num_readers();
  RowQueue queue(questions, grid.coordinates().reader(), readers);
  std::vector<std::optional<ActiveRow>> active(static_cast<std::size_t>(pass.texts));
  std::vector<std::vector<EndingLoss>> losses(questions.questions.size());
  ChoiceResult result;
  ValueGatherer active_ranks(backend, grid.group(loss_axes), 1);
  const int of_agreement = passes_per_agreement(grid.coordinates());
  for (int number = 0;; ++number) {
    if (number % of_agreement == 0 && is_interrupted()) return std::nullopt;
    PassInputs inputs(pass, executor.padding_row());
    bool is_active = false;
    for (std::size_t text = 0; text < active.size(); ++text) {
      if (!active[text] && !queue.empty()) active[text] = queue.take();
      if (!active[text]) continue;
      inputs.put(text, *active[text]);
      is_active = true;
    }
    // All ranks run as many passes: an exchange may gather weights in each.
    const std::vector<std::int64_t> all = active_ranks.gather({is_active ? 1 : 0});
    if (std::ranges::find(all, 1) == all.end()) break;
    executor.continue_texts(0, inputs.input());
    if (!is_active) continue;
    result.computed += pass.texts * pass.tokens;
    std::span<const float> token_losses;
    std::span<const std::int32_t> correct;
    if (grid.coordinates().has_results()) std::tie(token_losses, correct) = executor.cached_losses();
    for (std::size_t text = 0; text < active.size(); ++text) {
      if (!active[text]) continue;
      ActiveRow& row = *active[text];
      inputs.take(text, row, token_losses, correct);
      if (row.done < row.num_inputs()) continue;
      std::vector<EndingLoss>& own = losses[row.question];
      own.resize(questions.questions[row.question].endings.size());
      own[row.ending] = row.loss;
      active[text].reset();
    }
  }
  std::vector<ChoiceScore> scores;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (losses[i].empty()) continue;
    scores.push_back(score_choice(questions.questions[i], losses[i]));
    result.lines += choice_line(questions.questions[i], losses[i]) + "\n";
  }
  const std::size_t most = (questions.questions.size() + static_cast<std::size_t>(readers) - 1) /
                           static_cast<std::size_t>(readers);
  result.summary = summarize_choices(gather_scores(backend, grid, scores, most));
  return result;
}

std::string choices_text(const ChoiceSummary& summary) {
  const auto rate = [](const Rate& value) {
    const std::string error =
        std::isfinite(value.error) ? fmt::format(" +- {:.2f}", 100.0 * value.error) : "";
    return fmt::format("{:.2f} %{}", 100.0 * value.mean, error);
  };
  return fmt::format("accuracy {}, normalised {}, greedy {}, right ending {} nats per token ({} questions)",
                     rate(summary.accuracy), rate(summary.normalised_accuracy), rate(summary.greedy),
                     decimals(summary.right_token_loss, 4), summary.examples);
}

}  // namespace mylos
