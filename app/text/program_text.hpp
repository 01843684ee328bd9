// SPDX-License-Identifier: BSD-3-Clause
// The text of `mylos inspect --program`.
#pragma once

#include <string>

#include "app/launch/setup.hpp"

namespace mylos {

/// Lists the actions of a rank in a step and the operations of each pass, those of passes that are alike
/// once: the tensors, FLOPs and bytes of an operation, the first backend that has a kernel for it or, of a
/// collective, its payload and axes, and the source line that requested it.
std::string program_text(const Setup& setup, int rank);

}  // namespace mylos
