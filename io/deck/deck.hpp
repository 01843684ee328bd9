// SPDX-License-Identifier: BSD-3-Clause
// Deck: scans an input deck and command-line overrides. It knows keys, values and where each came from, but
// not what they mean.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "core/param_spec.hpp"
#include "core/param_values.hpp"

namespace mylos {

/// The place where a value was written: "run.deck:17" or "--train.steps".
struct DeckPlace {
  std::string text;
};

struct DeckEntry {
  std::string section;
  std::string name;
  std::string value;
  DeckPlace place;
  std::string key() const { return section + "." + name; }
};

/// The problems of a deck, reported together.
class DeckErrors {
 public:
  void add(const DeckPlace& place, const std::string& message);
  bool empty() const { return messages_.empty(); }
  const std::vector<std::string>& messages() const { return messages_; }
  /// Throws `code` with all messages, one per line, if there are any.
  void throw_if_any(ExitCode code = ExitCode::usage) const;

 private:
  std::vector<std::string> messages_;
};

/// `[section]` lines, `name = value` lines, `#` comments (not inside double quotes), blank lines.
class Deck {
 public:
  Deck() = default;
  /// Malformed lines and duplicates go to `errors`; of a text that is not a deck at all, only that.
  static Deck parse(std::string_view text, const std::string& file_name, DeckErrors& errors);

  /// An override from the command line: "section.name" and value. Replaces the file's value.
  void set(const std::string& key, const std::string& value, DeckErrors& errors);

  /// Drops the entries and sections that no spec declares.
  void keep_declared(std::span<const ParamSpec> specs);

  /// Whether the text could be read as a deck; if not, that has been reported, and there is nothing to check.
  bool is_deck() const { return is_deck_; }
  const std::vector<DeckEntry>& entries() const { return entries_; }
  /// The first `[section]` line of every section: only section and place are set.
  const std::vector<DeckEntry>& sections() const { return sections_; }
  /// The entry of a key, or null.
  const DeckEntry* find(std::string_view key) const;
  /// The place to report for a key: where it was written, else where its section begins, else the file.
  DeckPlace place_of(std::string_view key) const;
  /// Whether a line or an override of this key is malformed, which has already been reported.
  bool is_malformed(std::string_view key) const;

 private:
  using Places = std::map<std::string, std::size_t, std::less<>>;

  std::string file_name_;
  bool is_deck_ = true;
  std::vector<DeckEntry> entries_;
  std::vector<DeckEntry> sections_;
  Places entry_of_;    // by key
  Places section_of_;  // by name
  std::set<std::string, std::less<>> malformed_;
};

/// The spec of a key, or null.
const ParamSpec* find_spec(std::span<const ParamSpec> specs, std::string_view key);

/// "1, 2 and 3".
std::string listed(const auto& values, std::string_view last = "and") {
  if (values.size() < 2) return join(values, ", ");
  return fmt::format("{} {} {}", join(std::span(values).first(values.size() - 1), ", "), last, values.back());
}
/// "1, 2 or 3".
std::string one_of(const auto& values) {
  return listed(values, "or");
}

/// Parses the entries of `deck` by `specs` and fills in defaults. Unknown sections and keys (with a probable
/// correction, if there is one), malformed and out-of-range values and missing required keys go to `errors`.
/// `unavailable` names sections of plugins that could not be loaded, with the reason. A key without a valid
/// value is left out of the result, so that no later check relies on it.
ParamValues resolve_deck(const Deck& deck, std::span<const ParamSpec> specs,
                         const std::vector<std::pair<std::string, std::string>>& unavailable,
                         DeckErrors& errors);

/// The deck that reproduces `values` exactly: every parameter, by section, in the order of `specs`.
std::string write_deck(std::span<const ParamSpec> specs, const ParamValues& values);

/// The deck reference: as text for `mylos help deck [section]` (empty section: all; throws ExitCode::usage if
/// the section does not exist), and as Markdown for docs/deck.md.
std::string deck_help(std::span<const ParamSpec> specs, std::string_view section);
std::string deck_markdown(std::span<const ParamSpec> specs);

}  // namespace mylos
