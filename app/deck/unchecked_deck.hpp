// SPDX-License-Identifier: BSD-3-Clause
// UncheckedDeck: what a deck says, before or without its check.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/param_values.hpp"
#include "io/deck/deck.hpp"

namespace mylos {

/// The values of a deck whose problems do not matter here: that of a run or a checkpoint, which was checked
/// when the run began, or a user's deck whose problems are reported later. A key that is missing, or whose
/// value is malformed, has its default; one without a default has 0, false or "".
class UncheckedDeck {
 public:
  using Overrides = std::span<const std::pair<std::string, std::string>>;

  explicit UncheckedDeck(std::string_view text, Overrides overrides = {});
  explicit UncheckedDeck(const Deck& deck);

  /// Whether the deck itself gives the key.
  bool has(std::string_view key) const { return deck_.find(key) != nullptr; }
  /// What it gives, as written; "" if it does not give the key.
  std::string written(std::string_view key) const;

  const ParamValues& values() const { return values_; }
  std::int64_t integer(std::string_view key) const { return values_.integer(key); }
  double real(std::string_view key) const { return values_.real(key); }
  const std::string& text(std::string_view key) const { return values_.text(key); }

 private:
  Deck deck_;
  ParamValues values_;  // of the keys that mylos itself declares
};

}  // namespace mylos
