// SPDX-License-Identifier: BSD-3-Clause
// Work on files with several threads.
#pragma once

#include <cstddef>
#include <functional>

namespace mylos {

/// Calls work(i) for each i below `count` on at most `threads` threads. A thread ends at its first error; one
/// of the errors is rethrown after all threads have ended.
void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t)>& work);

}  // namespace mylos
