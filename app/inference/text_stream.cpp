// SPDX-License-Identifier: BSD-3-Clause
#include "app/inference/text_stream.hpp"

#include <algorithm>

#include "core/base/error.hpp"

namespace mylos {

namespace {

/// How many bytes at the end of `text`, at most three, could begin a character that is not complete.
std::size_t incomplete_bytes(std::string_view text) {
  for (std::size_t count = 1; count <= std::min<std::size_t>(3, text.size()); ++count) {
    const auto byte = static_cast<unsigned char>(text[text.size() - count]);
    if ((byte & 0xc0U) == 0x80U) continue;  // not the first of a character
    const std::size_t needed = byte < 0xc2U ? 1 : byte < 0xe0U ? 2 : byte < 0xf0U ? 3 : byte < 0xf5U ? 4 : 1;
    return count < needed ? count : 0;
  }
  return 0;
}

}  // namespace

void check_stop_texts(const std::vector<std::string>& stop_texts) {
  if (std::ranges::find(stop_texts, "") != stop_texts.end())
    fail(ExitCode::usage, "--stop needs a text: every text ends with an empty one");
}

TextStream::Matcher::Matcher(const std::string& stop_text) : stop(stop_text), borders(stop.size(), 0) {
  for (std::size_t i = 1, border = 0; i < stop.size(); ++i) {
    while (border > 0 && stop[i] != stop[border]) border = borders[border - 1];
    if (stop[i] == stop[border]) ++border;
    borders[i] = border;
  }
}

bool TextStream::Matcher::take(char byte) {
  while (matched > 0 && byte != stop[matched]) matched = borders[matched - 1];
  if (byte == stop[matched]) ++matched;
  return matched == stop.size();
}

TextStream::TextStream(const std::vector<std::string>& stop_texts) {
  check_stop_texts(stop_texts);
  for (const std::string& stop : stop_texts) matchers_.emplace_back(stop);
}

std::string_view TextStream::push(std::string_view bytes) {
  require(!stopped_, "no token follows a stop text");
  std::size_t held = 0;
  for (const char byte : bytes) {
    text_ += byte;
    held = 0;
    for (Matcher& matcher : matchers_) {
      stopped_ = matcher.take(byte) || stopped_;
      held = std::max(held, matcher.matched);
    }
    if (!stopped_) continue;
    std::size_t length = 0;
    for (const Matcher& matcher : matchers_)
      if (matcher.matched == matcher.stop.size()) length = std::max(length, matcher.matched);
    text_.resize(text_.size() - length);
    return show(text_.size());
  }
  if (bytes.empty()) return show(shown_);
  const std::string_view certain = std::string_view(text_).substr(shown_, text_.size() - held - shown_);
  return show(shown_ + certain.size() - incomplete_bytes(certain));
}

std::string_view TextStream::finish() {
  return show(text_.size());
}

std::string_view TextStream::show(std::size_t end) {
  const std::string_view part = std::string_view(text_).substr(shown_, end - shown_);
  shown_ = end;
  return part;
}

}  // namespace mylos
