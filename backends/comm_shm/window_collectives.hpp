// SPDX-License-Identifier: BSD-3-Clause
// Collectives on buffers at the same place in every rank's window: one pass over memory.
#pragma once

#include <cstddef>
#include <vector>

#include "backends/comm_shm/collective_queue.hpp"
#include "backends/comm_shm/division.hpp"
#include "backends/comm_shm/streaming_copy.hpp"
#include "core/communicator.hpp"

namespace mylos::comm_shm {

/// The addresses of every rank's buffer, as this rank maps them.
using Places = std::vector<std::byte*>;

struct WindowGroup {
  int rank;
  Places places;
  Stores stores;
};

/// Every rank reduces its part of all places and writes it to `outputs`, which begin at byte `outputs_begin`
/// of the places.
Collective reduce_in_windows(const WindowGroup& group, const Division& division, DType dtype, ReduceOp op,
                             const Places& outputs, std::size_t outputs_begin);
/// Every rank reads the parts of the other ranks, each from its owner's place.
Collective gather_in_windows(const WindowGroup& group, std::size_t part_bytes);
/// The other ranks read the place of `root`.
Collective broadcast_in_windows(const WindowGroup& group, std::size_t bytes, int root);
/// Every rank reads its part of all places.
Collective exchange_in_windows(const WindowGroup& group, std::byte* output, std::size_t part_bytes);

}  // namespace mylos::comm_shm
