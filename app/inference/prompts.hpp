// SPDX-License-Identifier: BSD-3-Clause
// The files of `mylos generate`: JSON lines with prompts, and with what was generated from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace mylos {

/// A text, which may be empty, or at least one token id.
using Prompt = std::variant<std::string, std::vector<std::int32_t>>;

/// What a model takes as a prompt.
struct PromptRules {
  std::int64_t vocab_size = 0;  ///< of the model; ids are below it
  bool takes_text = true;       ///< whether the model's tokenizer is known
};

inline constexpr std::size_t most_prompt_line_bytes = std::size_t{4} << 20U;

/// The prompts in `text`, the content of a file or stream called `name`: one JSON object per line, with
/// either "prompt", a text, or "tokens", ids; other members are ignored, and so are blank lines. Text that is
/// not UTF-8 has the form of io/json.hpp. Throws ExitCode::bad_data with `name` and the line's number if a
/// line is longer than `most_prompt_line_bytes`, is no such object or breaks the rules, and if there is no
/// prompt.
std::vector<Prompt> parse_prompts(std::string_view text, const std::string& name, const PromptRules& rules);

/// Why a text ends.
enum class Finish : std::uint8_t {
  length,  ///< it has as many tokens as were wanted
  stop,    ///< a stop text
  end,     ///< <|endoftext|>
};

/// "length", "stop" or "end".
std::string_view finish_name(Finish finish);

/// What was generated from a prompt.
struct Completion {
  std::int64_t prompt = 0;             ///< number of the prompt, from 0
  std::int64_t sample = 0;             ///< number among the samples of the prompt, from 0
  std::optional<std::string> text{};   ///< without the prompt and the stop text; none without a tokenizer
  std::vector<std::int32_t> tokens{};  ///< all that were drawn, those of the stop text and <|endoftext|> too
  std::vector<float> logprobs{};       ///< of each token (DrawnToken)
  Finish finish = Finish::length;
};

/// A line of JSON, with its end, whose members are those of `Completion`. Numbers have the fewest digits that
/// give the same float; for text that is not UTF-8 see io/json.hpp.
std::string completion_line(const Completion& completion);

}  // namespace mylos
