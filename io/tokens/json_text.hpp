// SPDX-License-Identifier: BSD-3-Clause
// JsonText: the text under one key of a JSON object that is read in parts, in bounded memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mylos {

/// Reads objects one after another. Throws ExitCode::bad_data if the input is not a JSON object (RFC 8259,
/// nested at most 64 levels, strings in UTF-8), or if an object does not hold the key exactly once, with
/// text. An escaped lone surrogate, which the grammar allows but UTF-8 does not, becomes U+FFFD. NaN,
/// Infinity and -Infinity, which Python's json module writes, are values too.
class JsonText {
 public:
  explicit JsonText(std::string key) : key_(std::move(key)) {}

  /// Reads the next part of an object. Appends to `text` the bytes of the key's text that this part contains.
  void take(std::string_view part, std::string& text);
  /// Ends the object. Returns false if the input was only white space.
  bool end();

 private:
  enum class State : std::uint8_t {
    start,         // of the object
    value,         // expected
    first_member,  // of an object, or the object's end
    member,        // of an object
    colon,
    first_element,  // of an array, or the array's end
    after_value,
    string,
    escape,
    unicode,  // hexadecimal digits
    literal,  // true, false, null, NaN or Infinity
    minus,    // of a number; digits must follow
    zero,     // no digit may follow
    integer,
    point,  // digits must follow
    fraction,
    exponent,  // a sign or digits must follow
    exponent_sign,
    exponent_digits,
    done,
  };
  enum class Sink : std::uint8_t { nothing, key, text };

  [[noreturn]] static void refuse(char c);
  void take(char c, std::string& text);
  void begin_value(char c);
  void begin_literal(const char* rest);
  void begin_container(bool is_object);
  void end_container(bool is_object);
  void begin_string(Sink sink);
  void end_string(std::string& text);
  /// Takes a character within a number. Returns false if the number has ended before it.
  bool take_number(char c);
  void put(std::string_view bytes, std::string& text);
  void put_lone_surrogate(std::string& text);
  void check_utf8(unsigned char byte);
  bool is_object() const { return (objects_ & 1U) != 0; }

  std::string key_;
  State state_ = State::start;
  std::uint64_t objects_ = 0;  // one bit per level, the lowest for the innermost: 1 object, 0 array
  int depth_ = 0;
  bool is_name_ = false;  // the string is a member's name
  bool is_ours_ = false;  // the next value is the key's
  bool seen_ = false;     // the key was seen
  Sink sink_ = Sink::nothing;
  std::string name_;  // the member's name, cut to one byte more than the key
  const char* literal_ = nullptr;
  std::uint32_t unicode_ = 0, unicode_digits_ = 0;
  std::uint32_t high_surrogate_ = 0;
  std::uint32_t continuations_ = 0;     // bytes that the current character still lacks
  unsigned char least_ = 0, most_ = 0;  // range of the next of these bytes
};

}  // namespace mylos
