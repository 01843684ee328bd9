// SPDX-License-Identifier: BSD-3-Clause
// Collectives on buffers at the same place in every rank's window: one pass over memory.
#pragma once

#include <cstddef>
#include <vector>

#include "backends/comm_shm/collective_queue.hpp"
#include "backends/comm_shm/division.hpp"
#include "backends/comm_shm/streaming_copy.hpp"
#include "core/communication/communicator.hpp"

namespace mylos::comm_shm {

/// Addresses of ranks' buffers, as this rank maps them.
using Places = std::vector<std::byte*>;

struct WindowGroup {
  int rank;
  Places places;  ///< one for each rank
  Stores stores;
};

/// Every rank reduces its part of the ranks' buffers and writes the result to each of `outputs`. Their first
/// byte corresponds to byte `outputs_begin` of the buffers.
Collective reduce_in_windows(const WindowGroup& group, const Division& division, DType dtype, ReduceOp op,
                             const Places& outputs, std::size_t outputs_begin);
/// Every rank reads the parts of the other ranks, each from its owner's buffer.
Collective gather_in_windows(const WindowGroup& group, std::size_t part_bytes);
/// The other ranks read the buffer of `root`.
Collective broadcast_in_windows(const WindowGroup& group, std::size_t bytes, int root);
/// Every rank copies its part of every rank's buffer to `output`.
Collective exchange_in_windows(const WindowGroup& group, std::byte* output, std::size_t part_bytes);

}  // namespace mylos::comm_shm
