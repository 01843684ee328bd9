// SPDX-License-Identifier: BSD-3-Clause
// The plugins of the build tree, for tests.
#pragma once

#include <string_view>

#include "core/plugin.hpp"

namespace mylos {

/// Every plugin under MYLOS_BUILD (set by ctest), discovered once.
const PluginRegistry& test_plugins();

/// A communicator from backend `name`, over the memory of `compute` (null: host memory): of all ranks, or of
/// this rank alone for "self". The first call in a process is collective, whichever backend it names, because
/// it creates the MPI bootstrap communicator.
std::unique_ptr<Communicator> open_communicator(std::string_view name, ComputeBackend* compute = nullptr,
                                                const ParamValues* deck = nullptr);

}  // namespace mylos
