// SPDX-License-Identifier: BSD-3-Clause
// The first lines that a run prints.
#pragma once

#include "app/launch/session.hpp"
#include "app/launch/setup.hpp"
#include "app/train/console.hpp"

namespace mylos {

/// Prints, on rank 0, what is trained, where, by which backends, and what MFU refers to.
void print_header(Console& console, const MpiRuntime& mpi, const Setup& setup, Session& session,
                  double peak_tflops);

}  // namespace mylos
