// SPDX-License-Identifier: BSD-3-Clause
// The memory ceiling: a triad with streaming stores.
#pragma once

namespace mylos {

/// GB/s of a = b + s c in fp32 on as many OpenMP threads as the backend has set, with arrays far larger than
/// the caches. An element counts as 12 bytes, since streaming stores do not read the lines that they
/// overwrite (McCalpin, STREAM). The median of several passes.
double measure_triad();

}  // namespace mylos
