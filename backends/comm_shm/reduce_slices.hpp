// SPDX-License-Identifier: BSD-3-Clause
// The reduction of one slice of several buffers into several buffers, in one pass over memory.
#pragma once

#include <cstddef>
#include <span>

#include "core/communication/communicator.hpp"

namespace mylos::comm_shm {

/// outputs[k][i] = reduction over j, in order, of inputs[j][i], for `count` elements. Floating-point elements
/// are accumulated in fp32 and rounded once. An output may be one of the inputs; otherwise no buffers
/// overlap.
void reduce_slices(DType dtype, ReduceOp op, std::span<const std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::size_t count);

}  // namespace mylos::comm_shm
