// SPDX-License-Identifier: BSD-3-Clause
// Allocation: memory that somebody owns.
#pragma once

#include <memory>

namespace mylos {

/// Memory of a backend or a communicator. The last copy of the pointer frees it.
using Allocation = std::shared_ptr<void>;

}  // namespace mylos
