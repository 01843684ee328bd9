// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/json_text.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "core/base/error.hpp"
#include "io/utf8.hpp"

namespace mylos {

namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// ASCII characters that stand for themselves in a string.
const std::array<bool, 256> plain = [] {
  std::array<bool, 256> table{};
  for (std::size_t c = 0x20; c < 0x80; ++c) table[c] = c != '"' && c != '\\';
  return table;
}();

bool is_plain(char c) {
  return plain[static_cast<unsigned char>(c)];
}

}  // namespace

void JsonText::refuse(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x20 && byte < 0x7f) fail(ExitCode::bad_data, "not JSON: '{}' is out of place", c);
  fail(ExitCode::bad_data, "not JSON: the byte 0x{:02x} is out of place", byte);
}

void JsonText::take(std::string_view part, std::string& text) {
  const char* at = part.data();
  const char* const end = at + part.size();
  while (at < end) {
    if (state_ == State::string && continuations_ == 0 && is_plain(*at)) {
      const char* const first = at;
      while (at < end && is_plain(*at)) ++at;
      put({first, static_cast<std::size_t>(at - first)}, text);
    } else {
      take(*at++, text);
    }
  }
}

bool JsonText::end() {
  const bool has_object = state_ == State::done;
  if (!has_object && state_ != State::start) fail(ExitCode::bad_data, "not JSON: it ends too early");
  if (has_object && !seen_) fail(ExitCode::bad_data, "has no \"{}\"", key_);
  state_ = State::start;
  seen_ = false;
  return has_object;
}

void JsonText::put(std::string_view bytes, std::string& text) {
  if (high_surrogate_ != 0) put_lone_surrogate(text);
  if (sink_ == Sink::text) {
    text += bytes;
  } else if (sink_ == Sink::key && name_.size() <= key_.size()) {
    name_ += bytes.substr(0, key_.size() + 1 - name_.size());
  }
}

void JsonText::put_lone_surrogate(std::string& text) {
  high_surrogate_ = 0;
  put(encode_utf8(0xfffd), text);
}

void JsonText::check_utf8(unsigned char byte) {
  if (continuations_ > 0) {
    if (byte < least_ || byte > most_) fail(ExitCode::bad_data, "not JSON: text that is not UTF-8");
    --continuations_;
    least_ = 0x80;
    most_ = 0xbf;
    return;
  }
  if (byte < 0xc2 || byte > 0xf4) fail(ExitCode::bad_data, "not JSON: text that is not UTF-8");
  continuations_ = byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  // Excludes overlong forms, surrogates and code points above U+10FFFF.
  least_ = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : 0x80;
  most_ = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : 0xbf;
}

void JsonText::begin_container(bool is_object) {
  constexpr int most_levels = 64;
  if (++depth_ > most_levels)
    fail(ExitCode::bad_data, "JSON that is nested too deeply: more than {} levels", most_levels);
  objects_ = objects_ << 1U | (is_object ? 1U : 0U);
  state_ = is_object ? State::first_member : State::first_element;
}

void JsonText::end_container(bool is_object) {
  if (depth_ == 0 || this->is_object() != is_object) refuse(is_object ? '}' : ']');
  objects_ >>= 1U;
  state_ = --depth_ == 0 ? State::done : State::after_value;
}

void JsonText::begin_string(Sink sink) {
  sink_ = sink;
  name_.clear();
  state_ = State::string;
}

void JsonText::end_string(std::string& text) {
  if (high_surrogate_ != 0) put_lone_surrogate(text);
  if (!std::exchange(is_name_, false)) {
    state_ = State::after_value;
    return;
  }
  state_ = State::colon;
  if (depth_ != 1 || name_ != key_) return;
  if (std::exchange(seen_, true)) fail(ExitCode::bad_data, "has \"{}\" twice", key_);
  is_ours_ = true;
}

void JsonText::begin_literal(const char* rest) {
  literal_ = rest;
  state_ = State::literal;
}

void JsonText::begin_value(char c) {
  const bool is_ours = std::exchange(is_ours_, false);
  if (is_ours && c != '"') fail(ExitCode::bad_data, "\"{}\" is not text", key_);
  switch (c) {
    case '{':
    case '[':
      return begin_container(c == '{');
    case '"':
      return begin_string(is_ours ? Sink::text : Sink::nothing);
    case 't':
      return begin_literal("rue");
    case 'f':
      return begin_literal("alse");
    case 'n':
      return begin_literal("ull");
    case 'N':
      return begin_literal("aN");
    case 'I':
      return begin_literal("nfinity");
    default:
      state_ = State::minus;
      if (c != '-') take_number(c);
  }
}

bool JsonText::take_number(char c) {
  using enum State;
  constexpr State refused = start;
  constexpr State steps[][6] = {
      // after each state: 0, another digit, the point, e or E, a sign, anything else
      {zero, integer, refused, refused, refused, refused},                             // minus
      {refused, refused, point, exponent, after_value, after_value},                   // zero
      {integer, integer, point, exponent, after_value, after_value},                   // integer
      {fraction, fraction, refused, refused, refused, refused},                        // point
      {fraction, fraction, refused, exponent, after_value, after_value},               // fraction
      {exponent_digits, exponent_digits, refused, refused, exponent_sign, refused},    // exponent
      {exponent_digits, exponent_digits, refused, refused, refused, refused},          // exponent_sign
      {exponent_digits, exponent_digits, refused, refused, after_value, after_value},  // exponent_digits
  };
  static_assert(std::size(steps) == static_cast<int>(exponent_digits) - static_cast<int>(minus) + 1);
  constexpr std::string_view kinds = "01.e+";
  const char kind = is_digit(c) && c != '0' ? '1' : c == 'E' ? 'e' : c == '-' ? '+' : c;
  const State next =
      steps[static_cast<int>(state_) - static_cast<int>(minus)][std::min(kinds.find(kind), kinds.size())];
  if (next == refused) refuse(c);
  state_ = next;
  return next != after_value;
}

void JsonText::take(char c, std::string& text) {
  if (state_ == State::minus && c == 'I') return begin_literal("nfinity");
  if (state_ >= State::minus && state_ <= State::exponent_digits && take_number(c)) return;
  switch (state_) {
    case State::string: {
      const auto byte = static_cast<unsigned char>(c);
      if (continuations_ > 0 || byte >= 0x80) {
        check_utf8(byte);
        put({&c, 1}, text);
      } else if (c == '"') {
        end_string(text);
      } else if (c == '\\') {
        state_ = State::escape;
      } else {
        refuse(c);
      }
      return;
    }
    case State::escape: {
      constexpr std::string_view escapes = "\"\\/bfnrt";
      constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
      if (c == 'u') {
        state_ = State::unicode;
        unicode_ = unicode_digits_ = 0;
        return;
      }
      const std::size_t which = escapes.find(c);
      if (which == std::string_view::npos) refuse(c);
      state_ = State::string;
      return put(meanings.substr(which, 1), text);
    }
    case State::unicode: {
      const auto letter = static_cast<char>(c | 0x20);
      if (!is_digit(c) && (letter < 'a' || letter > 'f')) refuse(c);
      unicode_ = unicode_ << 4U | static_cast<std::uint32_t>(is_digit(c) ? c - '0' : letter - 'a' + 10);
      if (++unicode_digits_ < 4) return;
      state_ = State::string;
      if (unicode_ >= 0xd800 && unicode_ < 0xdc00) {
        if (high_surrogate_ != 0) put_lone_surrogate(text);
        high_surrogate_ = unicode_;
      } else if (unicode_ >= 0xdc00 && unicode_ < 0xe000) {
        const std::uint32_t high = std::exchange(high_surrogate_, 0);
        put(encode_utf8(high == 0 ? 0xfffdU : 0x10000U + ((high - 0xd800U) << 10U) + (unicode_ - 0xdc00U)),
            text);
      } else {
        put(encode_utf8(unicode_), text);
      }
      return;
    }
    case State::literal:
      if (c != *literal_) refuse(c);
      if (*++literal_ == '\0') state_ = State::after_value;
      return;
    default:
      break;
  }
  if (is_space(c)) return;
  switch (state_) {
    case State::start:
      if (c != '{') fail(ExitCode::bad_data, "not a JSON object: it does not begin with '{{'");
      return begin_container(true);
    case State::value:
      return begin_value(c);
    case State::first_member:
      if (c == '}') return end_container(true);
      [[fallthrough]];
    case State::member:
      if (c != '"') refuse(c);
      is_name_ = true;
      return begin_string(depth_ == 1 ? Sink::key : Sink::nothing);
    case State::colon:
      if (c != ':') refuse(c);
      state_ = State::value;
      return;
    case State::first_element:
      if (c == ']') return end_container(false);
      return begin_value(c);
    case State::after_value:
      if (c == '}' || c == ']') return end_container(c == '}');
      if (c != ',') refuse(c);
      state_ = is_object() ? State::member : State::value;
      return;
    default:
      refuse(c);
  }
}

}  // namespace mylos
