// SPDX-License-Identifier: BSD-3-Clause
// The text of `mylos inspect --program`.
#pragma once

#include <string>

#include "app/setup.hpp"

namespace mylos {

/// Lists the actions of rank 0 in a step and the operations of each of its programs: the tensors, FLOPs and
/// bytes of an operation, the first backend that has a kernel for it, and the source line that requested it.
std::string program_text(const Setup& setup);

}  // namespace mylos
