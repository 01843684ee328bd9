// SPDX-License-Identifier: BSD-3-Clause
// TextStream: generated text, token by token, in whole characters and up to a stop text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mylos {

/// Throws ExitCode::usage if one of the stop texts is empty.
void check_stop_texts(const std::vector<std::string>& stop_texts);

/// Collects the bytes of tokens. The text ends before the stop text that is complete first, and before the
/// longest if several are complete with the same byte, wherever the tokens begin and end.
class TextStream {
 public:
  explicit TextStream(const std::vector<std::string>& stop_texts = {});

  /// Takes the bytes of a token. Returns those that can be shown now, valid until the next call: what may
  /// turn out to be the beginning of a stop text or of a character in UTF-8 is held back. Bytes that are no
  /// UTF-8 are held back only while at most three of them could begin a character. Nothing may follow a stop
  /// text.
  std::string_view push(std::string_view bytes);
  /// Ends the text, and returns what was held back. After a stop text, that is nothing.
  std::string_view finish();

  /// Whether a stop text is complete.
  bool stopped() const { return stopped_; }
  /// All that was returned so far.
  std::string_view text() const { return std::string_view(text_).substr(0, shown_); }

 private:
  /// A stop text and how many of its bytes the text ends with (Knuth, Morris and Pratt, 1977).
  struct Matcher {
    explicit Matcher(const std::string& stop_text);
    /// Returns whether the text that ends with `byte` ends with the stop text.
    bool take(char byte);

    std::string stop;
    std::vector<std::size_t> borders;  // [i]: the longest proper prefix of stop[0..i] that is also its suffix
    std::size_t matched = 0;
  };

  std::string_view show(std::size_t end);

  std::vector<Matcher> matchers_;
  std::string text_;       // shown and held back; without the stop text once that is complete
  std::size_t shown_ = 0;  // bytes of `text_`
  bool stopped_ = false;
};

}  // namespace mylos
