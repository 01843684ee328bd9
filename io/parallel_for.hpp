// SPDX-License-Identifier: BSD-3-Clause
// parallel_for: a loop divided among several threads, for work on files.
#pragma once

#include <cstddef>
#include <functional>

namespace mylos {

/// Calls work(i) for each i below `count` on at most `threads` threads. A thread stops at its first error;
/// one of the errors is rethrown after all threads have stopped.
void parallel_for(std::size_t count, int threads, const std::function<void(std::size_t)>& work);

}  // namespace mylos
