// SPDX-License-Identifier: BSD-3-Clause
// The median time of a call.
#pragma once

#include <functional>
#include <vector>

namespace mylos {

/// The middle one; of an even number, the upper of the two. `values` is not empty.
double median(std::vector<double> values);

/// Median seconds of `call(i)`, i = 0, 1, ..., over `budget` seconds, but at least `calls` calls and
/// no more than it takes for a median.
double median_seconds(double budget, int calls, const std::function<void(int)>& call);

}  // namespace mylos
