// SPDX-License-Identifier: BSD-3-Clause
#include "io/choices/choice_encoder.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "io/choices/python_text.hpp"

namespace mylos {

namespace {

constexpr std::uint16_t gpt2_end_of_text = 50256;

/// Python's re.sub(r"\[.*?\]", "", text).
std::string without_brackets(std::string_view text) {
  std::string result;
  for (std::size_t at = 0;;) {
    const std::size_t open = text.find('[', at);
    result += text.substr(at, open - at);
    if (open == std::string_view::npos) return result;
    const std::size_t stop = text.find_first_of("]\n", open);
    // Without a closing bracket on its line, no other bracket up to the line's end has one either.
    if (stop == std::string_view::npos || text[stop] == '\n') result += text.substr(open, stop - open);
    if (stop == std::string_view::npos) return result;
    at = text[stop] == ']' ? stop + 1 : stop;
  }
}

}  // namespace

ChoiceRow EncodedChoice::row(std::size_t ending, std::int64_t max_length) const {
  require(max_length > 0 && ending < endings.size(), "a row of one of the endings");
  ChoiceRow row;
  row.tokens.assign(context.begin(), context.end());
  row.tokens.insert(row.tokens.end(), endings[ending].begin(), endings[ending].end());
  row.dropped = std::max<std::int64_t>(0, std::ssize(row.tokens) - (max_length + 1));
  row.tokens.erase(row.tokens.begin(), row.tokens.begin() + row.dropped);
  row.num_targets = std::min(std::ssize(endings[ending]), std::ssize(row.tokens) - 1);
  return row;
}

std::string cleaned_choice(std::string_view text) {
  return python::replace(without_brackets(python::replace(python::strip(text), " [title]", ". ")), "  ", " ");
}

std::string harness_context(const ChoiceText& text) {
  if (!text.hellaswag) return cleaned_choice(text.context);
  const auto& [activity_label, ctx_a, ctx_b] = *text.hellaswag;
  return cleaned_choice(activity_label + ": " + ctx_a + " " + python::capitalize(ctx_b));
}

ChoiceEncoder::ChoiceEncoder(ChoiceStyle style, const Tokenizer* tokenizer, std::int64_t vocab)
    : style_(style),
      vocab_(vocab),
      end_of_text_(tokenizer == nullptr ? gpt2_end_of_text : tokenizer->end_of_text()),
      encoder_(tokenizer == nullptr ? nullptr : tokenizer->encoder()) {}

EncodedChoice ChoiceEncoder::encode(const ChoiceExample& example) {
  EncodedChoice choice{
      .number = example.number, .label = example.label, .context = {}, .endings = {}, .code_points = {}};
  if (const auto* tokens = std::get_if<ChoiceTokens>(&example.content)) {
    require(style_ == ChoiceStyle::llmc, "tokens are not encoded anew");
    choice.context = tokens->context;
    choice.endings = tokens->endings;
  } else {
    encode_text(std::get<ChoiceText>(example.content), choice);
  }
  if (choice.context.empty()) choice.context = {end_of_text_};
  at_place(example.place, [&] { check(choice); });
  return choice;
}

void ChoiceEncoder::encode_text(const ChoiceText& text, EncodedChoice& choice) {
  if (style_ == ChoiceStyle::llmc) {
    choice.context = tokens_of(text.context);
    for (const std::string& ending : text.endings) choice.endings.push_back(tokens_of(" " + ending));
    return;
  }
  const std::string whole_context = harness_context(text);
  const auto size = python::size_without_spaces(whole_context);
  choice.context = tokens_of(whole_context.substr(0, size));
  for (const std::string& ending : text.endings) {
    const std::string cleaned = cleaned_choice(ending);
    std::vector<std::uint16_t> tokens = tokens_of(whole_context + " " + cleaned);
    tokens.erase(tokens.begin(), tokens.begin() + std::min(std::ssize(choice.context), std::ssize(tokens)));
    choice.endings.push_back(std::move(tokens));
    choice.code_points.push_back(python::length(cleaned));
  }
}

std::vector<std::uint16_t> ChoiceEncoder::tokens_of(std::string_view text) {
  require(encoder_ != nullptr, "texts have a tokenizer");
  std::vector<std::uint16_t> tokens;
  encoder_->append(text, tokens);
  return tokens;
}

void ChoiceEncoder::check(const EncodedChoice& choice) const {
  const auto check_ids = [&](const std::vector<std::uint16_t>& tokens, const std::string& where) {
    const auto bad = std::ranges::find_if(tokens, [&](std::uint16_t token) { return token >= vocab_; });
    if (bad == tokens.end()) return;
    fail(ExitCode::bad_data, "token {} of {} is {}; the model's vocabulary has {}", bad - tokens.begin(),
         where, *bad, vocab_);
  };
  check_ids(choice.context, "the context");
  for (std::size_t i = 0; i < choice.endings.size(); ++i) {
    if (choice.endings[i].empty()) {
      fail(ExitCode::bad_data,
           "ending {} has no token of its own: its beginning forms tokens with the context", i);
    }
    check_ids(choice.endings[i], fmt::format("ending {}", i));
  }
}

}  // namespace mylos
