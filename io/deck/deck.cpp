// SPDX-License-Identifier: BSD-3-Clause
#include "io/deck/deck.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstring>
#include <optional>
#include <variant>

#include <fmt/core.h>

#include "core/base/join.hpp"
#include "core/base/nearest.hpp"
#include "core/base/number_text.hpp"

namespace mylos {
namespace {

using Names = std::vector<std::string_view>;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

bool is_control(char c) {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
}

bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Scans the text after the `=` of a line. Within double quotes, \" and \\ stand for " and \. This function
/// and those that parse a value throw errors whose messages lack their subject, the name of the parameter.
std::string scan_value(std::string_view rest) {
  rest = trimmed(rest);
  if (!rest.starts_with('"')) {
    rest = trimmed(rest.substr(0, rest.find('#')));
    if (rest.empty()) fail(ExitCode::usage, "has no value; empty text is written \"\"");
    if (rest.find('"') != std::string_view::npos) {
      fail(ExitCode::usage, "has a quote inside its value; put all of it in quotes");
    }
    return std::string(rest);
  }
  std::string text;
  for (std::size_t i = 1; i < rest.size(); ++i) {
    if (rest[i] == '"') {
      const std::string_view tail = trimmed(rest.substr(i + 1));
      if (tail.empty() || tail.starts_with('#')) return text;
      fail(ExitCode::usage, "has `{}` after the closing quote", tail);
    }
    const std::string_view next = rest.substr(i + 1, 1);
    if (rest[i] == '\\' && (next == "\"" || next == "\\")) ++i;
    text += rest[i];
  }
  fail(ExitCode::usage, "has no closing quote");
}

std::string range_of(const ParamSpec& spec) {
  const bool below = std::isfinite(spec.min);
  const bool above = std::isfinite(spec.max);
  if (below && above) return fmt::format("{} to {}", spec.min, spec.max);
  if (below) return fmt::format("at least {}", spec.min);
  return above ? fmt::format("at most {}", spec.max) : "any";
}

void check_range(const ParamSpec& spec, double number) {
  if (number < spec.min || number > spec.max)
    fail(ExitCode::usage, "is out of range; use {}", range_of(spec));
}

double real_of(const ParamSpec& spec, const std::string& text) {
  const double number = parse_real(text, spec.unit);
  check_range(spec, number);
  return number;
}

std::int64_t integer_of(const ParamSpec& spec, const std::string& text) {
  const std::optional<std::int64_t> number = parse_integer(text, spec.unit);
  if (!number) fail(ExitCode::usage, "is out of range; use {}", range_of(spec));
  check_range(spec, static_cast<double>(*number));
  return *number;
}

/// Takes true and false in any case; for other words that mean one of them the message says what to write.
bool boolean_of(std::string_view text) {
  std::string word(trimmed(text));
  std::ranges::transform(word, word.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (word == "true" || word == "false") return word == "true";
  const char* advice = "";
  if (contains({"yes", "on", "1", "y", "t"}, word)) advice = "; write true";
  if (contains({"no", "off", "0", "n", "f"}, word)) advice = "; write false";
  fail(ExitCode::usage, "is neither true nor false{}", advice);
}

ParamValue parse_value(const ParamSpec& spec, const std::string& text) {
  switch (spec.type) {
    case ParamType::integer:
      return integer_of(spec, text);
    case ParamType::real:
      return real_of(spec, text);
    case ParamType::boolean:
      return boolean_of(text);
    case ParamType::choice: {
      const Names choices = split(spec.choices, '|');
      const std::string_view word = trimmed(text);
      if (!contains(choices, word)) fail(ExitCode::usage, "is unknown; use {}", one_of(choices));
      return std::string(word);
    }
    case ParamType::text:
      return text;
  }
  fail(ExitCode::internal, "deck parameter {} has no type", key_of(spec));
}

Names sections_of(std::span<const ParamSpec> specs) {
  Names sections;
  for (const ParamSpec& spec : specs) {
    if (!contains(sections, spec.section)) sections.emplace_back(spec.section);
  }
  return sections;
}

Names names_of(std::span<const ParamSpec> specs, std::string_view section) {
  Names names;
  for (const ParamSpec& spec : specs) {
    if (spec.section == section) names.emplace_back(spec.name);
  }
  return names;
}

/// Reports sections and keys that are not declared. Returns the declared ones that were probably intended, so
/// that they are not reported as missing too.
std::set<std::string> check_names(const Deck& deck, std::span<const ParamSpec> specs,
                                  const std::vector<std::pair<std::string, std::string>>& unavailable,
                                  DeckErrors& errors) {
  const Names known = sections_of(specs);
  std::set<std::string> reported;
  std::set<std::string> meant;
  const auto check_section = [&](const DeckEntry& entry) {
    const std::string& section = entry.section;
    if (contains(known, section) || !reported.insert(section).second) return;
    for (const auto& [name, reason] : unavailable) {
      if (name != section) continue;
      errors.add(entry.place,
                 fmt::format("[{}] belongs to a plugin that could not be loaded: {}", section, reason));
      return;
    }
    const std::string guess = nearest(section, known);
    meant.insert(guess);
    errors.add(entry.place,
               guess.empty()
                   ? fmt::format("unknown section [{}]; the sections are {}", section, join(known, ", "))
                   : fmt::format("unknown section [{}]; did you mean [{}]?", section, guess));
  };
  const auto check_name = [&](const DeckEntry& entry) {
    const Names names = names_of(specs, entry.section);
    if (contains(names, entry.name)) return;
    std::string section = entry.section;
    std::string guess = nearest(entry.name, names);
    for (const ParamSpec& spec : specs) {
      if (!guess.empty() || spec.name != entry.name) continue;
      section = spec.section;
      guess = spec.name;
      break;
    }
    meant.insert(section + "." + guess);
    errors.add(entry.place, guess.empty() ? fmt::format("unknown key [{}] {}; the keys are {}", entry.section,
                                                        entry.name, join(names, ", "))
                                          : fmt::format("unknown key [{}] {}; did you mean [{}] {}?",
                                                        entry.section, entry.name, section, guess));
  };
  for (const DeckEntry& section : deck.sections()) check_section(section);
  for (const DeckEntry& entry : deck.entries()) {
    check_section(entry);
    if (contains(known, entry.section)) check_name(entry);
  }
  return meant;
}

std::string text_of(const ParamValue& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&value)) return fmt::format("{}", *real);
  if (const auto* boolean = std::get_if<bool>(&value)) return *boolean ? "true" : "false";
  const std::string& text = std::get<std::string>(value);
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::strchr("_-+./:@", c) != nullptr;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

const char* type_name(ParamType type) {
  constexpr std::array<const char*, 5> names = {"integer", "real", "boolean", "text", "choice"};
  return names[static_cast<std::size_t>(type)];
}

std::string legal_values(const ParamSpec& spec) {
  if (spec.type == ParamType::boolean) return "true or false";
  return spec.type == ParamType::choice ? one_of(split(spec.choices, '|')) : range_of(spec);
}

std::string default_of(const ParamSpec& spec) {
  if (spec.default_value == nullptr) return "required";
  return *spec.default_value == '\0' ? "\"\"" : spec.default_value;
}

}  // namespace

const ParamSpec* find_spec(std::span<const ParamSpec> specs, std::string_view key) {
  const auto found = std::ranges::find_if(specs, [&](const ParamSpec& spec) { return key_of(spec) == key; });
  return found == specs.end() ? nullptr : &*found;
}

void DeckErrors::add(const DeckPlace& place, const std::string& message) {
  messages_.push_back(place.text.empty() ? message : place.text + ": " + message);
}

void DeckErrors::throw_if_any(ExitCode code) const {
  if (!empty()) fail(code, "{}", join(messages_, "\n"));
}

namespace {

/// Whether `text` is a text in lines; if not, says in `errors` what it is, and how to make it one.
bool check_text(std::string_view text, const std::string& file_name, DeckErrors& errors) {
  constexpr std::string_view marks[] = {{"\xff\xfe", 2}, {"\xfe\xff", 2}, {"\0\0\xfe\xff", 4}};
  const bool is_marked = std::ranges::any_of(marks, [&](auto mark) { return text.starts_with(mark); });
  // Every second byte of a text in UTF-16 is zero.
  const auto is_wide = [&](std::size_t zero) {
    return text.size() >= 4 && text[zero] == '\0' && text[zero + 2] == '\0' && text[1 - zero] != '\0';
  };
  if (is_marked || is_wide(0) || is_wide(1)) {
    errors.add({file_name}, "this is a text in UTF-16 or UTF-32; convert it: iconv -f UTF-16 -t UTF-8");
    return false;
  }
  if (text.find('\r') < text.size() - 1 && text.find('\n') == std::string_view::npos) {
    errors.add({file_name}, "the lines end with a carriage return alone; convert them: tr '\\r' '\\n'");
    return false;
  }
  for (int number = 1; const std::string_view line : lines_of(text)) {
    if (std::ranges::any_of(trimmed(line), is_control)) {
      errors.add({fmt::format("{}:{}", file_name, number)}, "control characters: this is not a deck");
      return false;
    }
    ++number;
  }
  return true;
}

}  // namespace

Deck Deck::parse(std::string_view text, const std::string& file_name, DeckErrors& errors) {
  constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";
  if (text.starts_with(byte_order_mark)) text.remove_prefix(byte_order_mark.size());

  Deck deck;
  deck.file_name_ = file_name;
  deck.is_deck_ = check_text(text, file_name, errors);
  if (!deck.is_deck_) return deck;
  std::string section;
  bool outside_reported = false;
  for (int number = 1; const std::string_view untrimmed : lines_of(text)) {
    const std::string_view line = trimmed(untrimmed);
    const DeckPlace place{fmt::format("{}:{}", file_name, number++)};

    if (line.empty() || line.starts_with('#')) continue;

    if (line.starts_with('[')) {
      const std::string_view header = trimmed(line.substr(0, line.find('#')));
      section = trimmed(header.substr(1, header.find(']') - 1));
      outside_reported = true;
      if (header.find(']') != header.size() - 1 || section.empty()) {
        errors.add(place, fmt::format("`{}` is not a section; write [name]", header));
      }
      if (section.empty()) continue;
      const auto [earlier, is_new] = deck.section_of_.try_emplace(section, deck.sections_.size());
      if (is_new) {
        deck.sections_.push_back({section, "", "", place});
      } else {
        errors.add(place, fmt::format("section [{}] was already begun at {}", section,
                                      deck.sections_[earlier->second].place.text));
      }
      continue;
    }

    const std::size_t equals = line.find_first_of("=#");
    const bool assigns = equals != std::string_view::npos && line[equals] == '=';
    const std::string name(trimmed(line.substr(0, assigns ? equals : line.find_first_of(" \t#"))));
    if (section.empty()) {
      if (!std::exchange(outside_reported, true)) {
        errors.add(place, fmt::format("`{}` stands before the first [section]", line));
      }
      continue;
    }
    DeckEntry entry{section, name, "", place};
    if (!assigns || name.empty()) {
      errors.add(place, fmt::format("`{}` is neither `name = value` nor `[section]`", line));
      deck.malformed_.insert(entry.key());
      continue;
    }
    try {
      entry.value = scan_value(line.substr(equals + 1));
    } catch (const Error& error) {
      errors.add(place, fmt::format("[{}] {} {}", section, name, error.what()));
      deck.malformed_.insert(entry.key());
      continue;
    }
    const auto [earlier, is_new] = deck.entry_of_.try_emplace(entry.key(), deck.entries_.size());
    if (is_new) {
      deck.entries_.push_back(std::move(entry));
    } else {
      errors.add(place, fmt::format("[{}] {} was already set at {}", section, name,
                                    deck.entries_[earlier->second].place.text));
    }
  }
  return deck;
}

void Deck::set(const std::string& key, const std::string& value, DeckErrors& errors) {
  const DeckPlace place{"--" + key};
  const std::size_t dot = key.find('.');
  if (dot == 0 || dot == std::string::npos || dot + 1 == key.size()) {
    errors.add(place, "not an option; set a deck parameter with --section.name=value");
    return;
  }
  const DeckEntry entry{key.substr(0, dot), key.substr(dot + 1), value, place};
  if (std::any_of(value.begin(), value.end(), is_control)) {
    errors.add(place, "control characters in the value");
    malformed_.insert(key);
    return;
  }
  const auto [found, is_new] = entry_of_.try_emplace(key, entries_.size());
  if (is_new) {
    entries_.push_back(entry);
    return;
  }
  DeckEntry& earlier = entries_[found->second];
  if (earlier.place.text == place.text) {
    errors.add(place, fmt::format("given twice: {} and {}", earlier.value, value));
  } else {
    earlier = entry;
  }
}

void Deck::keep_declared(std::span<const ParamSpec> specs) {
  std::erase_if(entries_, [&](const DeckEntry& entry) {
    return std::ranges::none_of(specs, [&](const ParamSpec& spec) {
      return entry.section == spec.section && entry.name == spec.name;
    });
  });
  std::erase_if(sections_, [&](const DeckEntry& header) {
    return std::ranges::none_of(specs, [&](const ParamSpec& spec) { return header.section == spec.section; });
  });
  entry_of_.clear();
  section_of_.clear();
  for (const DeckEntry& entry : entries_) entry_of_.emplace(entry.key(), entry_of_.size());
  for (const DeckEntry& header : sections_) section_of_.emplace(header.section, section_of_.size());
}

const DeckEntry* Deck::find(std::string_view key) const {
  const auto found = entry_of_.find(key);
  return found == entry_of_.end() ? nullptr : &entries_[found->second];
}

DeckPlace Deck::place_of(std::string_view key) const {
  if (const DeckEntry* entry = find(key)) return entry->place;
  const auto header = section_of_.find(key.substr(0, key.find('.')));
  return header == section_of_.end() ? DeckPlace{file_name_} : sections_[header->second].place;
}

bool Deck::is_malformed(std::string_view key) const {
  return malformed_.contains(key);
}

ParamValues resolve_deck(const Deck& deck, std::span<const ParamSpec> specs,
                         const std::vector<std::pair<std::string, std::string>>& unavailable,
                         DeckErrors& errors) {
  ParamValues values;
  if (!deck.is_deck()) return values;
  const std::set<std::string> meant = check_names(deck, specs, unavailable, errors);
  for (const ParamSpec& spec : specs) {
    const std::string key = key_of(spec);
    const DeckEntry* entry = deck.find(key);
    if (entry == nullptr) {
      if (meant.contains(spec.section) || meant.contains(key) || deck.is_malformed(key)) continue;
      if (spec.default_value == nullptr) {
        errors.add(deck.place_of(key),
                   fmt::format("[{}] {} is missing: {}", spec.section, spec.name, spec.doc));
        continue;
      }
    }
    const std::string text = entry != nullptr ? entry->value : spec.default_value;
    try {
      values.set(key, parse_value(spec, text));
    } catch (const Error& error) {
      if (entry == nullptr)
        fail(ExitCode::internal, "default of deck parameter {}: {} {}", key, text, error.what());
      errors.add(entry->place, fmt::format("[{}] {} = {} {}", spec.section, spec.name,
                                           text.empty() ? "\"\"" : text, error.what()));
    }
  }
  return values;
}

std::string write_deck(std::span<const ParamSpec> specs, const ParamValues& values) {
  std::string deck;
  for (const std::string_view section : sections_of(specs)) {
    deck += fmt::format("{}[{}]\n", deck.empty() ? "" : "\n", section);
    for (const ParamSpec& spec : specs) {
      if (spec.section != section) continue;
      const auto value = values.all().find(key_of(spec));
      require(value != values.all().end(), "every parameter has a value");
      deck += fmt::format("{} = {}\n", spec.name, text_of(value->second));
    }
  }
  return deck;
}

namespace {

std::string_view name_of(Effect effect) {
  switch (effect) {
    case Effect::results:
      return "results";
    case Effect::samples:
      return "results, samples";
    case Effect::measured:
      return "results, measured";
    case Effect::speed:
      return "speed only";
    case Effect::place:
      return "place only";
    case Effect::records:
      return "records only";
    case Effect::end:
      return "end only";
  }
  fail(ExitCode::internal, "an effect without a name");
}

std::string_view name_of(OnRestart what) {
  switch (what) {
    case OnRestart::takes:
      return "";
    case OnRestart::ignores:
      return "kept";
    case OnRestart::refuses:
      return "refused";
    case OnRestart::repeats:
      return "repeated";
  }
  fail(ExitCode::internal, "a restart that does nothing");
}

/// "results, per rank": what a key changes, and whether ranks may have different values.
std::string effect_text(const ParamSpec& spec) {
  return fmt::format("{}{}", name_of(spec.effect), spec.may_differ ? ", per rank" : "");
}

/// "ddp, open": what eval and generate take instead of the run's value, and whether they can be given
/// another.
std::string evaluation_text(const ParamSpec& spec) {
  std::string text;
  if (spec.in_evaluation != nullptr) text = *spec.in_evaluation == '\0' ? "\"\"" : spec.in_evaluation;
  if (spec.is_open_in_evaluation) text += text.empty() ? "open" : ", open";
  return text;
}

}  // namespace

std::string deck_help(std::span<const ParamSpec> specs, std::string_view section) {
  const Names sections = sections_of(specs);
  if (!section.empty() && !contains(sections, section)) {
    const std::string guess = nearest(section, sections);
    fail(ExitCode::usage, "no deck section [{}]; {}", section,
         guess.empty() ? fmt::format("the sections are {}", join(sections, ", "))
                       : fmt::format("did you mean [{}]?", guess));
  }
  std::string help;
  for (const std::string_view name : sections) {
    if (!section.empty() && name != section) continue;
    help += fmt::format("{}[{}]\n", help.empty() ? "" : "\n", name);
    for (const ParamSpec& spec : specs) {
      if (spec.section != name) continue;
      const std::string unit = *spec.unit == '\0' ? "" : fmt::format(", {}", spec.unit);
      const std::string fallback = spec.default_value == nullptr ? "required" : "default " + default_of(spec);
      std::string changes = "changes " + effect_text(spec);
      if (const std::string_view restart = name_of(spec.on_restart); !restart.empty())
        changes += fmt::format("; in a restart: {}", restart);
      if (const std::string evaluation = evaluation_text(spec); !evaluation.empty())
        changes += fmt::format("; in eval and generate: {}", evaluation);
      help +=
          fmt::format("  {:<20} {}: {}{}; {}\n  {:<20} {}\n  {:<20} {}\n", spec.name, type_name(spec.type),
                      legal_values(spec), unit, fallback, "", spec.doc, "", changes);
    }
  }
  return help;
}

std::string deck_markdown(std::span<const ParamSpec> specs) {
  std::string page =
      "<!-- Written by `mylos help deck --markdown`; change the declarations of the parameters instead. -->\n"
      "# The input deck\n\n"
      "A deck is a text file of `[section]` lines and `name = value` lines. `#` begins a comment, except "
      "within double\n"
      "quotes; within them `\\\"` and `\\\\` stand for `\"` and `\\`. Every parameter can be given on the "
      "command line\n"
      "instead, as `--section.name=value`, which overrides the file. Problems of a deck are reported "
      "together.\n\n"
      "Numbers are decimal, with a point and perhaps an exponent: `1e6` is an integer too. Booleans are "
      "`true` or `false`, in\n"
      "any case. A path, and each entry of a list of token files, may begin with `~`, `~USER`, `$NAME` or "
      "`${NAME}`; an unset\n"
      "variable is an error. `resolved.deck` keeps what was written. `mylos train -` reads the deck from "
      "standard input.\n\n"
      "What a key *changes*: the **results** that are computed, also by which **samples** the steps read, or "
      "by what is\n"
      "**measured** at each start; or only the **speed**, the **place** of files, the **records** that are "
      "written and shown, or\n"
      "when the run **end**s or gives up. Only keys that change results keep a restart from being bitwise. "
      "**Per rank**: ranks\n"
      "may have different values; all other keys must be the same on all ranks.\n\n"
      "In a *restart*, another value than the run had is taken, **kept** out in favour of what the "
      "checkpoint "
      "holds, or\n"
      "**refused**; **repeated**: `auto` or 0 stands for the choice that the run made, if the layout is the "
      "same. *Evaluation*\n"
      "is `mylos eval` and `mylos generate`: they divide their own ranks and batch, and otherwise take the "
      "run's "
      "value unless\n"
      "another is named here; the **open** keys can be given on their command lines.\n";
  for (const std::string_view section : sections_of(specs)) {
    page += fmt::format(
        "\n## [{}]\n\n| name | type | values | default | unit | changes | restart | evaluation | meaning |\n"
        "|---|---|---|---|---|---|---|---|---|\n",
        section);
    for (const ParamSpec& spec : specs) {
      if (spec.section != section) continue;
      page += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} | {} | {} |\n", spec.name,
                          type_name(spec.type), legal_values(spec), default_of(spec), spec.unit,
                          effect_text(spec), name_of(spec.on_restart), evaluation_text(spec), spec.doc);
    }
  }
  return page;
}

}  // namespace mylos
