// SPDX-License-Identifier: BSD-3-Clause
// Json: values of JSON files. The library behind it is slow to compile and stays in one file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mylos {

/// A JSON value that does not change; a copy shares it. The members of an object are in the order of their
/// keys.
///
/// What reads a member throws ExitCode::bad_data that names the key if there is no such member, if it is of
/// another kind, or if this value is no object.
///
/// Text of a file or a path may be bytes that are no UTF-8, which JSON cannot hold. They become the object
/// {"latin1": "..."}, each byte a character, and `text` gives the same bytes again.
class Json {
 public:
  using Member = std::pair<std::string, Json>;

  Json();  ///< null
  // Implicit, so that a list of members reads like the file.
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

  /// Throws ExitCode::bad_data with the place of the error if `text` is not one whole value, or is nested
  /// deeper than 64 levels.
  static Json parse(std::string_view text);
  /// None if `parse` would throw.
  static std::optional<Json> parse_if_whole(std::string_view text);

  /// Without `indent` on one line; otherwise a line per element, each level `indent` spaces further in.
  std::string dump(int indent = -1) const;
  /// On one line, with escapes for everything that is not ASCII.
  std::string ascii() const;

  bool is_object() const;
  /// Whether this value is an object with that member.
  bool has(std::string_view key) const;
  Json at(std::string_view key) const;
  bool boolean(std::string_view key) const;
  std::int64_t integer(std::string_view key) const;
  double real(std::string_view key) const;
  std::string text(std::string_view key) const;
  std::vector<Json> elements(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;

  /// Of an object.
  std::vector<Member> members() const;
  Json without(std::string_view key) const;

 private:
  struct Value;
  explicit Json(Value value);

  std::shared_ptr<const Value> value_;
};

}  // namespace mylos
