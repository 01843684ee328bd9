// SPDX-License-Identifier: BSD-3-Clause
// The changes that a restart makes to the deck of a run.
#pragma once

#include <string>

namespace mylos {

/// Lists the keys of the resolved deck `now` that affect results and differ from `before`, as "key old ->
/// new, ...". A key that `before` lacks, because an older mylos wrote it, has its default there.
std::string deck_changes(const std::string& before, const std::string& now);

}  // namespace mylos
