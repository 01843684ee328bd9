// SPDX-License-Identifier: BSD-3-Clause
// Collectives on any buffers. Data go in chunks through the slots of the shared parts.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "backends/comm_shm/collective_queue.hpp"
#include "backends/comm_shm/division.hpp"
#include "backends/comm_shm/shared_part.hpp"
#include "core/communication/communicator.hpp"

namespace mylos::comm_shm {

struct StagedGroup {
  int rank;
  const std::vector<SharedPart>* parts;  ///< must outlive the collectives

  int size() const { return static_cast<int>(parts->size()); }
  std::byte* slot(int rank_, int index) const {
    return (*parts)[static_cast<std::size_t>(rank_)].slot(index);
  }
};

/// `root`, or every rank if there is no root, reduces the whole `data` of all ranks and keeps the result in
/// its own.
Collective reduce_whole(StagedGroup group, std::byte* data, std::size_t bytes, DType dtype, ReduceOp op,
                        std::optional<int> root);
/// Every rank reduces its part of the ranks' inputs into `output`, which may be that part of its `input`.
Collective reduce_parts(StagedGroup group, const std::byte* input, std::byte* output,
                        const Division& division, DType dtype, ReduceOp op);
/// Gathers the parts of all ranks in `output`. `input`, the part of this rank, may already lie there.
Collective gather_parts(StagedGroup group, const std::byte* input, std::byte* output,
                        const Division& division);
Collective broadcast_staged(StagedGroup group, std::byte* data, std::size_t bytes, int root);
/// Part r of `input` goes to rank r, which stores it as the sender's part of `output`.
Collective exchange_parts(StagedGroup group, const std::byte* input, std::byte* output,
                          const Division& division);
/// Moves no data: a barrier.
Collective meet();

}  // namespace mylos::comm_shm
