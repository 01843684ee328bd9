// SPDX-License-Identifier: BSD-3-Clause
// The memory ceiling of operations that read and hardly write.
#pragma once

namespace mylos {

/// GB/s at which as many OpenMP threads as the backend has set read an array far larger than the caches. The
/// median of several passes.
double measure_read_rate();

}  // namespace mylos
