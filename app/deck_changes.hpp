// SPDX-License-Identifier: BSD-3-Clause
// What a restarted run changes in its deck.
#pragma once

#include <string>

namespace mylos {

/// The differences between two resolved decks in keys that affect the results, as "key old -> new, ...". A
/// key that the older deck lacks, because an older mylos wrote it, counts as its default.
std::string deck_changes(const std::string& before, const std::string& now);

}  // namespace mylos
