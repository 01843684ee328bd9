// SPDX-License-Identifier: BSD-3-Clause
// Versions of weights, by which a backend that keeps packed copies tells contents apart.
#pragma once

#include <cstdint>

namespace mylos {

/// A version (TensorRef::version) that no weights of this process have had; never 0. Whatever fills memory
/// with weights (a store of weights or a buffer that gathers them) takes one version per content.
std::uint64_t new_weight_version();

}  // namespace mylos
