// SPDX-License-Identifier: BSD-3-Clause
// Json: values of JSON files. It hides the library that parses them, which is slow to compile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mylos {

/// An immutable JSON value; copies share it. The members of an object are sorted by key.
///
/// Functions that read a member throw ExitCode::bad_data naming the key if there is no such member, if it is
/// of another kind, or if this value is not an object.
///
/// Text from a file or a path need not be UTF-8, but JSON must be. Text that is not UTF-8 becomes the object
/// {"latin1": "..."}, one character per byte; `text` returns the original bytes.
class Json {
 public:
  using Member = std::pair<std::string, Json>;

  Json();  ///< null
  // Implicit, so that a list of members looks like JSON.
  Json(bool value);                // NOLINT(google-explicit-constructor)
  Json(int value);                 // NOLINT(google-explicit-constructor)
  Json(std::int64_t value);        // NOLINT(google-explicit-constructor)
  Json(std::uint64_t value);       // NOLINT(google-explicit-constructor)
  Json(double value);              // NOLINT(google-explicit-constructor)
  Json(const char* value);         // NOLINT(google-explicit-constructor)
  Json(const std::string& value);  // NOLINT(google-explicit-constructor)
  Json(std::string_view value);    // NOLINT(google-explicit-constructor)
  static Json object(const std::vector<Member>& members);
  static Json array(const std::vector<Json>& elements);

  /// Throws ExitCode::bad_data if `text` is not exactly one value, with the place of the error, if it is
  /// nested deeper than 64 levels, or if an object has a key twice, however it is written.
  static Json parse(std::string_view text);
  /// Empty if `parse` would throw.
  static std::optional<Json> parse_if_whole(std::string_view text);

  /// Without `indent`, one line; otherwise one line per element, each level indented by `indent` more spaces.
  std::string dump(int indent = -1) const;
  /// On one line, with escapes for everything that is not ASCII.
  std::string ascii() const;

  bool is_object() const;
  /// Whether this value is an object with member `key`.
  bool has(std::string_view key) const;
  Json at(std::string_view key) const;
  bool boolean(std::string_view key) const;
  std::int64_t integer(std::string_view key) const;
  double real(std::string_view key) const;
  std::string text(std::string_view key) const;
  std::vector<Json> elements(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;

  /// Both require that this value is an object.
  std::vector<Member> members() const;
  Json without(std::string_view key) const;

 private:
  struct Value;
  explicit Json(Value value);

  std::shared_ptr<const Value> value_;
};

/// Receives the values of a JSON text one after another, for texts that are too big for a tree.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  virtual void begin_object() = 0;
  /// The next value, or all until the end of the object or array that begins next, belongs to `key`, which
  /// has its escapes decoded. An object may have a key twice.
  virtual void key(std::string& key) = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
  virtual void text(std::string& value) = 0;
  /// An integer that is not negative.
  virtual void natural(std::uint64_t value) = 0;
  /// Any other value: `kind` is "null", "true or false", "a negative number" or
  /// "a fraction or beyond 64 bits".
  virtual void other(const char* kind) = 0;
};

/// Calls `visitor` for the values of `text`; memory is bounded by the longest string. Throws as Json::parse,
/// except for a key that an object has twice.
void visit_json(std::string_view text, JsonVisitor& visitor);

}  // namespace mylos
