// SPDX-License-Identifier: BSD-3-Clause
// Numbers in text, by one rule for decks, options and lists; independent of the locale.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mylos {

/// Parses all of `text`, apart from blanks around it, as a finite decimal number: "3", "+1e-3". The functions
/// that parse throw ExitCode::usage with a message that lacks its subject, such as "is not a number", and
/// says what to write instead if that can be guessed: "1,5" -> 1.5. `unit` is the unit that a user may have
/// written after the number.
double parse_real(std::string_view text, std::string_view unit = "");

/// Parses all of `text`, apart from blanks around it, as a whole decimal number; "1e6" is one. Returns empty
/// if it does not fit 64 bits.
std::optional<std::int64_t> parse_integer(std::string_view text, std::string_view unit = "");

/// Returns `value` with `digits` decimals or, from 10^9 on, with an exponent: a model that diverges has
/// losses and perplexities of dozens of digits.
std::string decimals(double value, int digits);

}  // namespace mylos
