// SPDX-License-Identifier: BSD-3-Clause
// Work on files by several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace mylos {

/// Calls work(i) for each i below `count`, by at most `threads` threads; rethrows the error of one of them
/// after all have ended.
void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t)>& work);

}  // namespace mylos
