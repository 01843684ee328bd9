// SPDX-License-Identifier: BSD-3-Clause
// How much memory a benchmark must walk through so that caches do not serve it.
#pragma once

#include <cstddef>

namespace mylos {

/// Four times the total size of the last-level caches of the cores that the calling thread may run on (the
/// rule of McCalpin's STREAM), as found in the first call.
std::size_t out_of_cache_bytes();

/// How many operand sets of `bytes` a benchmark must cycle through so that each is out of cache when its turn
/// comes; at least one.
std::size_t out_of_cache_copies(double bytes);

}  // namespace mylos
