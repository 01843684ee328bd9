// SPDX-License-Identifier: BSD-3-Clause
// The changes that a restart makes to the deck of a run.
#pragma once

#include <string>

namespace mylos {

/// Lists the keys of the resolved deck `now` that may affect results and differ from `before`, as "key old ->
/// new, ...". The old value of a key that `before` lacks is the default of the key, or "nothing" if mylos
/// itself declares no default for it.
std::string deck_changes(const std::string& before, const std::string& now);

}  // namespace mylos
