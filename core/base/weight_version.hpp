// SPDX-License-Identifier: BSD-3-Clause
// Versions of weights: what a backend that keeps packed copies tells contents apart by.
#pragma once

#include <cstdint>

namespace mylos {

/// A version (TensorRef::version) that no weights of this process have had: whoever fills memory that is
/// multiplied with, a store of weights or a buffer that gathers them, takes one per content. Never 0.
std::uint64_t new_weight_version();

}  // namespace mylos
