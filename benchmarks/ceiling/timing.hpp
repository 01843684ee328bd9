// SPDX-License-Identifier: BSD-3-Clause
// The median time of a call.
#pragma once

#include <functional>

namespace mylos {

/// Median seconds of `call(i)`, i = 0, 1, ..., over `budget` seconds, but at least `calls` calls and, beyond
/// these, no more than 100 in all: enough for a median.
double median_seconds(double budget, int calls, const std::function<void(int)>& call);

}  // namespace mylos
