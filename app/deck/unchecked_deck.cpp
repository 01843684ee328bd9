// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/unchecked_deck.hpp"

#include "app/deck/run_config.hpp"

namespace mylos {

namespace {

ParamValue empty_value(ParamType type) {
  switch (type) {
    case ParamType::integer:
      return std::int64_t{0};
    case ParamType::real:
      return 0.0;
    case ParamType::boolean:
      return false;
    case ParamType::text:
    case ParamType::choice:
      break;
  }
  return std::string();
}

Deck parsed(std::string_view text, UncheckedDeck::Overrides overrides) {
  DeckErrors ignored;
  Deck deck = Deck::parse(text, "the deck", ignored);
  for (const auto& [key, value] : overrides) deck.set(key, value, ignored);
  return deck;
}

}  // namespace

UncheckedDeck::UncheckedDeck(std::string_view text, Overrides overrides)
    : UncheckedDeck(parsed(text, overrides)) {}

UncheckedDeck::UncheckedDeck(const Deck& deck) : deck_(deck) {
  DeckErrors ignored;
  values_ = resolve_deck(Deck(), deck_params(), {}, ignored);
  for (const ParamSpec& spec : deck_params()) {
    const std::string key = key_of(spec);
    if (!values_.all().contains(key)) values_.set(key, empty_value(spec.type));
  }
  const ParamValues given = resolve_deck(deck, deck_params(), {}, ignored);
  for (const auto& [key, value] : given.all()) values_.set(key, value);
}

std::string UncheckedDeck::written(std::string_view key) const {
  const DeckEntry* entry = deck_.find(key);
  return entry != nullptr ? entry->value : "";
}

}  // namespace mylos
