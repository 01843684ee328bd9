// SPDX-License-Identifier: BSD-3-Clause
// The median time of a call.
#pragma once

#include <functional>

namespace mylos {

/// Median seconds of `call(i)`, i = 0, 1, .... Makes at least `calls` calls, then more until `budget` seconds
/// have passed or 100 calls have been made, which is enough for a median.
double median_seconds(double budget, int calls, const std::function<void(int)>& call);

}  // namespace mylos
