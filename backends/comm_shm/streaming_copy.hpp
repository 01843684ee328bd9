// SPDX-License-Identifier: BSD-3-Clause
// Copies whose destination does not displace what the caches hold.
#pragma once

#include <cstddef>

namespace mylos::comm_shm {

enum class Stores : bool {
  cached,
  streaming,  ///< past the caches: no line is read before it is overwritten; for more than the caches hold
};

/// Copies bytes that do not overlap.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores);

/// Orders streaming stores before whatever this thread stores next.
void finish_stores(Stores stores);

/// Copies bytes that another core reads next, with streaming stores unless they are few: a line that the
/// other core holds takes long to get for writing. Orders them before whatever this thread stores next.
void copy_to_other_core(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace mylos::comm_shm
