// SPDX-License-Identifier: BSD-3-Clause
// What a run that goes on changes in its deck.
#pragma once

#include <string>

namespace mylos {

/// What differs between two resolved decks in keys that shape the numbers, as "key old -> new, ...". A key
/// that the older one does not have, since mylos did not, counts as its default.
std::string deck_changes(const std::string& before, const std::string& now);

}  // namespace mylos
