// SPDX-License-Identifier: BSD-3-Clause
// The processors that a thread may use, by hwloc, and their division among ranks that may use the same ones.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace mylos {

/// Logical processors, ascending in the operating system's numbering. There may be any number of them.
using Processors = std::vector<int>;

/// Returns the processors that the calling thread may use. Throws ExitCode::internal if that is unknown.
Processors own_processors();

/// Binds the calling thread to `processors`. Returns 0 or the system's error number.
int bind_thread(const Processors& processors);

/// Returns share `index` of `count` even shares, or all processors if there are fewer than `count`. A share
/// is a contiguous section of `processors`. If the system numbers the second hardware threads of all cores
/// after the first ones, different shares may have hardware threads of the same core.
Processors even_share(const Processors& processors, int index, int count);

/// Returns the processors in the form "0-3,8".
std::string text_of(const Processors& processors);

/// Returns the number of different processors in texts of this form. Throws ExitCode::internal for others.
int count_processors(std::span<const std::string> texts);

}  // namespace mylos
