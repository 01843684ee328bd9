// SPDX-License-Identifier: BSD-3-Clause
// The plugins of the build tree, for tests.
#pragma once

#include <string_view>

#include "core/plugin.hpp"

namespace mylos {

/// Every plugin under MYLOS_BUILD (set by ctest), discovered once.
const PluginRegistry& test_plugins();

/// A communicator of all ranks from backend `name`, over the memory of `compute` (null: host memory). The
/// first call is collective for every backend.
CommunicatorHandle open_communicator(std::string_view name, ComputeBackend* compute = nullptr,
                                     const ParamValues* deck = nullptr);

}  // namespace mylos
