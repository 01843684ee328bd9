// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/deck_changes.hpp"

#include <algorithm>
#include <iterator>

#include <fmt/core.h>

#include "io/deck/deck.hpp"

namespace mylos {

namespace {

/// Whether another value of the parameter changes what a run computes after a restart.
bool is_felt(const ParamSpec& spec) {
  const bool changes_results =
      spec.effect == Effect::results || spec.effect == Effect::samples || spec.effect == Effect::measured;
  return changes_results && spec.on_restart != OnRestart::ignores;
}

}  // namespace

std::vector<RunChange> deck_changes(const std::string& before, const std::string& now,
                                    std::span<const ParamSpec> specs) {
  DeckErrors ignored;
  const Deck old_deck = Deck::parse(before, "before", ignored);
  const Deck new_deck = Deck::parse(now, "now", ignored);
  const auto has_default = [](const ParamSpec& spec) { return spec.default_value != nullptr; };
  std::vector<ParamSpec> open;
  std::ranges::copy_if(specs, std::back_inserter(open), has_default);
  const Deck defaults =
      Deck::parse(write_deck(open, resolve_deck(Deck(), open, {}, ignored)), "defaults", ignored);
  std::vector<RunChange> changes;
  for (const DeckEntry& entry : new_deck.entries()) {
    const std::string key = entry.key();
    const ParamSpec* spec = find_spec(specs, key);
    if (spec != nullptr && !is_felt(*spec)) continue;
    const DeckEntry* old_entry = old_deck.find(key);
    if (old_entry == nullptr) old_entry = defaults.find(key);
    const std::string old_value = old_entry != nullptr ? old_entry->value : "nothing";
    const bool is_chosen_anew =
        spec != nullptr && spec->effect == Effect::measured && entry.value != spec->default_value;
    if (old_value == entry.value && !is_chosen_anew) continue;
    RunChange& change = changes.emplace_back(RunChange{.what = key, .before = old_value, .now = entry.value});
    if (spec == nullptr) continue;
    change.effect = spec->effect;
    change.on_restart = spec->on_restart;
    change.held = spec->held;
  }
  return changes;
}

bool has_change(std::span<const RunChange> changes, std::string_view what) {
  return std::ranges::find(changes, what, &RunChange::what) != changes.end();
}

std::string text_of(std::span<const RunChange> changes) {
  std::string text;
  for (const RunChange& change : changes)
    text += fmt::format("{}{} {} -> {}", text.empty() ? "" : ", ", change.what, change.before, change.now);
  return text;
}

}  // namespace mylos
