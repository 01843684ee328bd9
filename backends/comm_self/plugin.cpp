// SPDX-License-Identifier: BSD-3-Clause
// The descriptor of plugin "self".
#include "core/plugin.hpp"

#include "backends/comm_self/self_communicator.hpp"

namespace mylos::comm_self {
namespace {

std::unique_ptr<Communicator> create(const CommunicatorArgs& args) {
  return std::make_unique<SelfCommunicator>(args.compute);
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::communication,
    .name = "self",
    .summary = "one rank, no communication",
    .preference = 1,
    .create_communicator = create,
};

}  // namespace mylos::comm_self
