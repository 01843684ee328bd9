// SPDX-License-Identifier: BSD-3-Clause
#include "app/inference/text_generator.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace mylos {

namespace {

/// Tokens per pass that reads a prompt, in ascending order: products of one row and of up to eight stream the
/// weights once, and 64 rows keep a processor busy.
constexpr std::int64_t piece_sizes[] = {1, 8, 64};

/// The most texts that one pass continues on the host.
constexpr std::int64_t most_texts_on_host = 8;

/// Whether ranks that continue different texts communicate in the passes over the cache.
bool communicates_among_texts(const RankProgram& program) {
  const AxisSet used = program.coordinates().used_axes().without(same_loss_axes.with({Axis::pipeline}));
  bool found = false;
  for (const ForwardList& list : program.cached()) {
    for (const Pass& pass : list.passes) {
      for_each_entry(pass, program.pool(), [&](const Entry& entry, const EntryPlace&) {
        const std::optional<GroupedCall> call = call_of(entry);
        found = found || (call && call->group.common(used) != AxisSet());
      });
    }
  }
  return found;
}

}  // namespace

CacheConfig generation_cache(std::int64_t context, std::int64_t rows) {
  CacheConfig cache{.rows = rows, .positions = context};
  for (const std::int64_t size : piece_sizes) {
    if (size <= context) cache.passes.push_back({.texts = 1, .tokens = size});
  }
  if (rows > 1) cache.passes.push_back({.texts = std::min(rows, most_texts_on_host), .tokens = 1});
  if (rows > most_texts_on_host) cache.passes.push_back({.texts = rows, .tokens = 1});
  return cache;
}

std::int64_t dropped_tokens(std::int64_t size, std::int64_t context, bool is_prompt) {
  if (size <= context) return 0;
  return is_prompt ? size - context : std::max<std::int64_t>(1, context / 2);
}

TextGenerator::TextGenerator(ComputeBackend& backend, const ProcessGrid& grid, const RankProgram& program,
                             ModelExecutor& executor, const GenerationSettings& settings)
    : backend_(backend),
      program_(program),
      executor_(executor),
      settings_(settings),
      cache_(program.config().cache),
      alike_(program.coordinates().extent(Axis::expert) > 1),
      in_step_(alike_ || communicates_among_texts(program)),
      sampler_(
          settings.sampling, program.config().model.vocab,
          settings.tokenizer == nullptr ? program.config().model.vocab : settings.tokenizer->vocab_size()),
      wishes_(backend, grid.group(all_axes), 1) {
  if (grid.coordinates().extent(Axis::tensor) > 1)
    drawn_ids_.emplace(backend, grid.group({Axis::tensor}), static_cast<std::size_t>(cache_.rows));
  if (grid.coordinates().extent(Axis::pipeline) > 1)
    drawn_tokens_.emplace(backend, grid.group({Axis::pipeline}), 2 * static_cast<std::size_t>(cache_.rows));
}

std::vector<Completion> TextGenerator::run(const std::vector<TextJob>& jobs,
                                           const std::function<void(std::string_view)>& show) {
  show_ = &show;
  has_dropped_ = false;
  texts_.clear();
  active_.clear();
  free_rows_.clear();
  for (auto row = static_cast<std::int32_t>(cache_.rows); row-- > 0;) free_rows_.push_back(row);
  for (auto next = settings_.most_tokens == 0 ? jobs.end() : jobs.begin();;) {
    for (; next != jobs.end() && !free_rows_.empty(); ++next) {
      start(*next, free_rows_.back());
      free_rows_.pop_back();
    }
    Text* reading = nullptr;
    std::int64_t unread = 0;
    for (Text* text : active_) {
      unread = pending(*text);
      if (unread > 1) {
        reading = text;
        break;
      }
    }
    std::optional<Wish> wish;
    if (reading != nullptr) {
      wish = {.reads = true, .pass = pass_to_read(unread)};
    } else if (!active_.empty()) {
      wish = {.reads = false, .pass = pass_to_continue()};
    }
    const std::optional<Wish> next_pass = agreed(wish);
    if (!next_pass) break;
    if (reading != nullptr && next_pass == wish) {
      read_piece(*reading, unread, next_pass->pass);
    } else if (reading == nullptr && wish && !next_pass->reads) {
      continue_some(next_pass->pass);
    } else {
      run_idle(next_pass->pass);
    }
  }
  std::vector<Completion> completions;
  for (Text& text : texts_) completions.push_back(std::move(text.completion));
  return completions;
}

void TextGenerator::start(const TextJob& job, std::int32_t row) {
  Text& text = texts_.emplace_back(job, settings_.stop_texts);
  text.row = row;
  text.begin = dropped_tokens(std::ssize(text.tokens), cache_.positions, true);
  active_.push_back(&text);
}

std::int64_t TextGenerator::pending(Text& text) {
  const std::int64_t dropped = dropped_tokens(std::ssize(text.tokens) - text.begin, cache_.positions, false);
  if (dropped > 0) {
    text.begin += dropped;
    text.cached = 0;
    has_dropped_ = true;
  }
  return std::ssize(text.tokens) - text.begin - text.cached;
}

std::size_t TextGenerator::pass_to_read(std::int64_t pending) const {
  const auto fits = [&](const CachedPass& pass) { return pass.texts == 1 && pass.tokens <= pending; };
  std::size_t chosen = 0;
  for (std::size_t i = 0; i < cache_.passes.size(); ++i) {
    if (fits(cache_.passes[i]) && cache_.passes[i].tokens > cache_.passes[chosen].tokens) chosen = i;
  }
  return chosen;
}

std::size_t TextGenerator::pass_to_continue() const {
  const std::int64_t most = backend_.host_accessible() ? most_texts_on_host : cache_.rows;
  const std::int64_t texts = std::min(most, std::ssize(active_));
  const auto fits = [&](const CachedPass& pass) { return pass.tokens == 1 && pass.texts >= texts; };
  return static_cast<std::size_t>(std::ranges::find_if(cache_.passes, fits) - cache_.passes.begin());
}

void TextGenerator::read_piece(Text& text, std::int64_t pending, std::size_t pass) {
  const std::int64_t size = cache_.passes[pass].tokens;
  const auto position = static_cast<std::int32_t>(text.cached);
  executor_.continue_texts(pass, {.tokens = std::span(text.tokens)
                                                .subspan(static_cast<std::size_t>(text.begin + text.cached),
                                                         static_cast<std::size_t>(size)),
                                  .rows = {&text.row, 1},
                                  .positions = {&position, 1}});
  text.cached += size;
  if (size == pending) draw({&text});
}

void TextGenerator::continue_some(std::size_t pass) {
  const std::int64_t most = std::min(cache_.passes[pass].texts, std::ssize(active_));
  const std::vector<Text*> chosen(active_.begin(), active_.begin() + most);
  std::rotate(active_.begin(), active_.begin() + most, active_.end());
  const auto texts = static_cast<std::size_t>(cache_.passes[pass].texts);
  std::vector<std::int32_t> tokens(texts), positions(texts), rows(texts, executor_.padding_row());
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    Text& text = *chosen[i];
    tokens[i] = text.tokens.back();
    rows[i] = text.row;
    positions[i] = static_cast<std::int32_t>(text.cached++);
  }
  executor_.continue_texts(pass, {.tokens = tokens, .rows = rows, .positions = positions});
  draw(chosen);
}

void TextGenerator::run_idle(std::size_t pass) {
  const auto texts = static_cast<std::size_t>(cache_.passes[pass].texts);
  const auto tokens = static_cast<std::size_t>(cache_.passes[pass].tokens);
  const std::vector<std::int32_t> zeros(texts * tokens);
  const std::vector<std::int32_t> rows(texts, executor_.padding_row());
  executor_.continue_texts(pass, {.tokens = zeros, .rows = rows, .positions = std::span(zeros).first(texts)});
}

std::vector<DrawnToken> TextGenerator::sample(const std::vector<Text*>& texts) {
  const Coordinates& at = program_.coordinates();
  const auto vocab = static_cast<std::size_t>(program_.config().model.vocab);
  const std::span<const float> logits =
      at.has_last_chunk() ? executor_.cached_logits() : std::span<const float>();
  std::vector<DrawnToken> drawn(texts.size());
  std::vector<std::int64_t> ids(static_cast<std::size_t>(cache_.rows));
  for (std::size_t i = 0; i < texts.size() && !logits.empty(); ++i) {
    const Completion& completion = texts[i]->completion;
    drawn[i] = sampler_.sample(logits.subspan(i * vocab, vocab), texts[i]->tokens,
                               {.prompt = static_cast<std::uint32_t>(completion.prompt),
                                .sample = static_cast<std::uint32_t>(completion.sample),
                                .position = static_cast<std::uint32_t>(completion.tokens.size())});
    ids[i] = drawn[i].id;
  }
  // The ranks of a group continue the same text, should their logits ever differ in the last bit.
  if (drawn_ids_) ids = drawn_ids_->gather(ids);
  if (drawn_tokens_) {
    const auto rows = static_cast<std::size_t>(cache_.rows);
    ids.resize(2 * rows);
    for (std::size_t i = 0; i < drawn.size(); ++i)
      ids[rows + i] = std::bit_cast<std::int32_t>(drawn[i].logprob);
    const std::vector<std::int64_t> all = drawn_tokens_->gather(ids);
    const auto last = all.begin() + at.last_stage() * std::ssize(ids);
    ids.assign(last, last + std::ssize(ids));
    for (std::size_t i = 0; i < drawn.size(); ++i)
      drawn[i].logprob = std::bit_cast<float>(static_cast<std::int32_t>(ids[rows + i]));
  }
  for (std::size_t i = 0; i < drawn.size(); ++i) drawn[i].id = static_cast<std::int32_t>(ids[i]);
  return drawn;
}

void TextGenerator::draw(const std::vector<Text*>& texts) {
  const std::vector<DrawnToken> drawn = sample(texts);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    Text& text = *texts[i];
    const std::int32_t id = drawn[i].id;
    text.tokens.push_back(id);
    text.completion.tokens.push_back(id);
    text.completion.logprobs.push_back(drawn[i].logprob);
    if (const Tokenizer* tokenizer = settings_.tokenizer) {
      const auto token = static_cast<std::uint16_t>(id);
      if (token == tokenizer->end_of_text()) {
        finish(text, Finish::end);
        continue;
      }
      (*show_)(text.stream.push(tokenizer->decode({&token, 1})));
      if (text.stream.stopped()) {
        finish(text, Finish::stop);
        continue;
      }
    }
    if (std::ssize(text.completion.tokens) == settings_.most_tokens) finish(text, Finish::length);
  }
}

void TextGenerator::finish(Text& text, Finish why) {
  (*show_)(text.stream.finish());
  text.completion.finish = why;
  if (settings_.tokenizer != nullptr) text.completion.text = std::string(text.stream.text());
  free_rows_.push_back(text.row);
  std::erase(active_, &text);
}

std::optional<TextGenerator::Wish> TextGenerator::agreed(const std::optional<Wish>& own) {
  if (!in_step_) return own;
  constexpr std::int64_t none = -1;
  const auto passes = std::ssize(cache_.passes);
  const std::int64_t number = own ? (own->reads ? passes : 0) + static_cast<std::int64_t>(own->pass) : none;
  const std::vector<std::int64_t> all = wishes_.gather({number});
  const std::int64_t most = std::ranges::max(all);
  if (most == none) return std::nullopt;
  if (!alike_) return own.value_or(Wish{});
  // A text that is read comes first; a larger pass also continues fewer texts.
  return Wish{.reads = most >= passes, .pass = static_cast<std::size_t>(most % passes)};
}

}  // namespace mylos
