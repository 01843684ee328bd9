// SPDX-License-Identifier: BSD-3-Clause
// The text of `mylos inspect --program`.
#pragma once

#include <string>

#include "app/setup.hpp"

namespace mylos {

/// What rank 0 of a run does in a step, and the operations of each of its programs: their tensors, FLOPs,
/// bytes, the first backend that has a kernel, and the source line that requested them.
std::string program_text(const Setup& setup);

}  // namespace mylos
