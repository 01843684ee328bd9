// SPDX-License-Identifier: BSD-3-Clause
// ChoiceEncoder: multiple choice questions as rows of tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "io/choices/choice_file.hpp"
#include "io/tokens/tokenizer.hpp"

namespace mylos {

/// Tokens of which a model computes the losses of the last.
struct ChoiceRow {
  std::vector<std::int32_t> tokens;  ///< the inputs and, after them, the last target
  std::int64_t num_targets = 0;      ///< the last tokens, which belong to the ending
  std::int64_t dropped = 0;          ///< tokens that were too many, from the beginning
};

/// A question in tokens.
struct EncodedChoice {
  std::int64_t number = 0;                          ///< of the example in its file
  std::int64_t label = 0;                           ///< the right ending
  std::vector<std::uint16_t> context;               ///< before every ending; at least one token
  std::vector<std::vector<std::uint16_t>> endings;  ///< none is empty
  std::vector<std::int64_t> code_points;            ///< of the cleaned endings; empty in the style llmc

  /// Context and ending. If these are more than `max_length` + 1 tokens, `max_length` of which are inputs,
  /// the row loses its beginning, of the ending too if that alone is too long.
  ChoiceRow row(std::size_t ending, std::int64_t max_length) const;
};

/// As lm-evaluation-harness' task hellaswag prepares texts: white space at both ends removed, " [title]"
/// replaced by ". ", brackets removed with what they hold on one line, and pairs of spaces replaced by single
/// ones, once.
std::string cleaned_choice(std::string_view text);

/// The cleaned context in the style harness: "activity_label: ctx_a ctx_b" with a capital letter in `ctx_b`
/// and the rest of it in lower case, or, of a question that lacks one of the three, `ctx`.
std::string harness_context(const ChoiceText& text);

/// Encodes questions, for one thread at a time.
/// - llmc: the context and each space + ending by themselves.
/// - harness: the cleaned context, of which white space at the end goes to the ending; then, for each cleaned
///   ending, context + space + ending as one text, cut after as many tokens as the context has by itself.
/// The text "<|endoftext|>" is a text like any other; the token stands for a context without tokens.
class ChoiceEncoder {
 public:
  /// For a model with `vocab` ids. `tokenizer` outlives this; it is null if questions are tokens.
  ChoiceEncoder(ChoiceStyle style, const Tokenizer* tokenizer, std::int64_t vocab);

  /// Throws ExitCode::bad_data, naming the example's place, for a token outside the vocabulary, and for an
  /// ending that has no token of its own after the cut.
  EncodedChoice encode(const ChoiceExample& example);

 private:
  void encode_text(const ChoiceText& text, EncodedChoice& choice);
  std::vector<std::uint16_t> tokens_of(std::string_view text);
  void check(const EncodedChoice& choice) const;

  ChoiceStyle style_;
  std::int64_t vocab_;
  std::uint16_t end_of_text_;
  std::unique_ptr<Encoder> encoder_;
};

}  // namespace mylos
