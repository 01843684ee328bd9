// SPDX-License-Identifier: BSD-3-Clause
// The plugins of the build tree, for tests.
#pragma once

#include <string_view>

#include "core/plugin.hpp"

namespace mylos {

/// Every plugin under MYLOS_BUILD (set by ctest), found once.
const PluginRegistry& test_plugins();

/// The communicator of all ranks of backend `name`, over the memory of `compute` (null: host memory).
/// Collective, the first time at least.
CommunicatorHandle open_communicator(std::string_view name, ComputeBackend* compute = nullptr,
                                     const ParamValues* deck = nullptr);

}  // namespace mylos
