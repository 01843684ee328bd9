// SPDX-License-Identifier: BSD-3-Clause
// Copies whose stores may bypass the caches.
#pragma once

#include <cstddef>

namespace mylos::comm_shm {

enum class Stores : bool {
  cached,
  /// On x86, whole lines bypass the caches and are not read before they are overwritten. For copies that are
  /// larger than the caches or that another core reads next.
  streaming,
};

/// Copies `bytes` from one range to another; the two must not overlap.
void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes, Stores stores);

/// Orders streaming stores before all later stores of this thread.
void finish_stores(Stores stores);

/// Copies bytes that another core reads next. Uses streaming stores unless the bytes are few, because a
/// cached store must first acquire the line from the other core, which is slow. Orders streaming stores
/// before all later stores of this thread.
void copy_to_other_core(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace mylos::comm_shm
