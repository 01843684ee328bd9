// SPDX-License-Identifier: BSD-3-Clause
// The memory ceiling: a triad with streaming stores.
#pragma once

namespace mylos {

/// GB/s of a = b + s c in fp32 by all OpenMP threads, as many as the backend has set, on arrays far beyond
/// the caches: 12 bytes an element, since streaming stores read no line that they overwrite (McCalpin,
/// STREAM). The median of several passes.
double measure_triad();

}  // namespace mylos
