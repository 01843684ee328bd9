// SPDX-License-Identifier: BSD-3-Clause
// memory_is_short: whether an allocation has probably just failed.
#pragma once

namespace mylos {

/// Returns whether the system refuses this process another 256 MiB, for example because of ulimit -v: the
/// failure of a library that does not give its reason is then taken for a lack of memory. It is more than the
/// 128 MiB that glibc reserves for the heap of another thread, and may have given back meanwhile.
/// Async-signal-safe.
bool memory_is_short();

}  // namespace mylos
