// SPDX-License-Identifier: BSD-3-Clause
// Versions of weights: they tell a backend that keeps packed copies whether a copy is stale.
#pragma once

#include <cstdint>

namespace mylos {

/// Returns a version (TensorRef::version) that no weights of this process have had; never 0. Code that
/// changes weights takes a new version each time, unless backends should keep no copies of them: such weights
/// have version 0.
std::uint64_t new_weight_version();

}  // namespace mylos
