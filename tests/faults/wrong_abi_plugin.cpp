// SPDX-License-Identifier: BSD-3-Clause
// A plugin of another ABI version, for the test that it is refused before any of its functions is called.
#include "core/plugin.hpp"

extern "C" const mylos::PluginDescriptor mylos_plugin = {
    .abi_version = mylos::plugin_abi_version + 1,
    .kind = mylos::PluginKind::compute,
    .name = "wrongabi",
    .summary = "refused",
    .preference = 0,
};
