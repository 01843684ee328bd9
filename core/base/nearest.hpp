// SPDX-License-Identifier: BSD-3-Clause
// nearest: which of several names a misspelt one was meant to be.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mylos {

/// Returns the candidate that `word` is probably a misspelling of, or "".
std::string nearest(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace mylos
