// SPDX-License-Identifier: BSD-3-Clause
// A plugin of another ABI version, for the test that it is refused before anything of it is called.
#include "core/plugin.hpp"

extern "C" const mylos::PluginDescriptor mylos_plugin = {
    .magic = mylos::plugin_magic,
    .abi_version = mylos::plugin_abi_version + 1,
    .struct_size = sizeof(mylos::PluginDescriptor),
    .kind = mylos::PluginKind::compute,
    .name = "wrongabi",
    .compiler = MYLOS_COMPILER_FINGERPRINT,
    .kokkos_version = "",
    .summary = "refused",
    .preference = 0,
    .params = nullptr,
    .num_params = 0,
    .unusable = nullptr,
    .create_compute = nullptr,
    .create_communicator = nullptr,
    .destroy_compute = nullptr,
    .destroy_communicator = nullptr,
    .plan_communicator = nullptr,
    .plan_compute = nullptr,
};
