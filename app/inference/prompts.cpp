// SPDX-License-Identifier: BSD-3-Clause
#include "app/inference/prompts.hpp"

#include <algorithm>

#include <fmt/core.h>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/base/number_text.hpp"
#include "io/json.hpp"
#include "io/tokens/content_kind.hpp"

namespace mylos {

namespace {

std::vector<std::int32_t> prompt_tokens(const Json& line, const PromptRules& rules) {
  const std::vector<std::int64_t> ids = line.integers("tokens");
  if (ids.empty()) fail(ExitCode::bad_data, "\"tokens\" is empty: there is nothing to continue");
  const auto wrong =
      std::ranges::find_if(ids, [&](std::int64_t id) { return id < 0 || id >= rules.vocab_size; });
  if (wrong != ids.end()) {
    const std::ptrdiff_t index = wrong - ids.begin();
    // As the file has it, since an id above 2^63 wraps.
    const std::string id = line.elements("tokens")[static_cast<std::size_t>(index)].dump();
    fail(ExitCode::bad_data, "\"tokens\" has the id {} at index {}; the model's are 0 to {}", id, index,
         rules.vocab_size - 1);
  }
  return {ids.begin(), ids.end()};
}

Prompt parse_prompt(std::string_view text, const PromptRules& rules) {
  if (text.size() > most_prompt_line_bytes) {
    fail(ExitCode::bad_data, "the line has {} bytes, more than {}", text.size(), most_prompt_line_bytes);
  }
  const Json line = Json::parse(text);
  if (!line.is_object()) fail(ExitCode::bad_data, "is not a JSON object with \"prompt\" or \"tokens\"");
  const bool has_text = line.has("prompt");
  const bool has_tokens = line.has("tokens");
  if (has_text && has_tokens) fail(ExitCode::bad_data, "has both \"prompt\" and \"tokens\"");
  if (!has_text && !has_tokens) fail(ExitCode::bad_data, "has neither \"prompt\" nor \"tokens\"");
  if (has_tokens) return prompt_tokens(line, rules);
  std::string prompt = line.text("prompt");
  if (!rules.takes_text)
    fail(ExitCode::bad_data, "\"prompt\" is a text, but the model has no known tokenizer; give \"tokens\"");
  return prompt;
}

/// The double whose shortest text is that of the float.
double with_few_digits(float value) {
  return parse_real(fmt::format("{}", value));
}

}  // namespace

std::vector<Prompt> parse_prompts(std::string_view text, const std::string& name, const PromptRules& rules) {
  const std::string_view kind = content_kind(text.substr(0, content_head_bytes)).name;
  if (!kind.empty()) fail(ExitCode::bad_data, "{} is {}, not JSON lines in UTF-8", name, kind);
  if (text.starts_with(utf8_mark)) text.remove_prefix(utf8_mark.size());
  std::vector<Prompt> prompts;
  for (std::size_t number = 1; const std::string_view line : lines_of(text)) {
    if (line.find_first_not_of(" \t\r") != std::string_view::npos)
      prompts.push_back(
          at_place(fmt::format("{}:{}", name, number), [&] { return parse_prompt(line, rules); }));
    ++number;
  }
  if (prompts.empty()) fail(ExitCode::bad_data, "{} has no prompts", name);
  return prompts;
}

std::string_view finish_name(Finish finish) {
  switch (finish) {
    case Finish::length:
      return "length";
    case Finish::stop:
      return "stop";
    case Finish::end:
      break;
  }
  return "end";
}

std::string completion_line(const Completion& completion) {
  std::vector<Json> tokens, logprobs;
  for (const std::int32_t token : completion.tokens) tokens.emplace_back(token);
  for (const float logprob : completion.logprobs) logprobs.emplace_back(with_few_digits(logprob));
  std::vector<Json::Member> members = {{"prompt", completion.prompt},
                                       {"sample", completion.sample},
                                       {"tokens", Json::array(tokens)},
                                       {"logprobs", Json::array(logprobs)},
                                       {"finish", finish_name(completion.finish)}};
  if (completion.text) members.emplace_back("text", *completion.text);
  return Json::object(members).dump() + "\n";
}

}  // namespace mylos
