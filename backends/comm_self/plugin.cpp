// SPDX-License-Identifier: BSD-3-Clause
// The descriptor of plugin "self".
#include "core/plugin.hpp"

#include "backends/comm_self/self_communicator.hpp"

#ifndef MYLOS_PLUGIN_SYMBOL
#define MYLOS_PLUGIN_SYMBOL mylos_plugin
#endif

namespace mylos {
namespace {

const char* unusable() {
  return nullptr;
}
Communicator* create(const CommunicatorArgs& args) {
  return new SelfCommunicator(args.compute);
}
void destroy(Communicator* communicator) {
  delete communicator;
}

}  // namespace
}  // namespace mylos

extern "C" {
extern const mylos::PluginDescriptor MYLOS_PLUGIN_SYMBOL;
const mylos::PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .magic = mylos::plugin_magic,
    .abi_version = mylos::plugin_abi_version,
    .struct_size = sizeof(mylos::PluginDescriptor),
    .kind = mylos::PluginKind::communication,
    .name = "self",
    .compiler = MYLOS_COMPILER_FINGERPRINT,
    .kokkos_version = "",
    .summary = "one rank, no communication",
    .preference = 1,
    .params = nullptr,
    .num_params = 0,
    .unusable = mylos::unusable,
    .create_compute = nullptr,
    .create_communicator = mylos::create,
    .destroy_compute = nullptr,
    .destroy_communicator = mylos::destroy,
    .plan_communicator = nullptr,
    .plan_compute = nullptr,
};
}
