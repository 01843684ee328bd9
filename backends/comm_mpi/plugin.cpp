// SPDX-License-Identifier: BSD-3-Clause
// The descriptor of plugin "mpi".
#include "core/plugin.hpp"

#include "backends/comm_mpi/mpi_communicator.hpp"

namespace mylos::comm_mpi {
namespace {

constexpr ParamSpec params[] = {
    boolean_param("comm", "gpu_aware", "false",
                  "MPI accepts device pointers; otherwise data goes through host memory."),
};

const char* unusable() {
  return mpi_is_running() ? nullptr : "MPI is not initialised: start under mpiexec or srun";
}

std::unique_ptr<Communicator> create(const CommunicatorArgs& args) {
  const bool gpu_aware = args.deck != nullptr && args.deck->boolean("comm.gpu_aware");
  return MpiCommunicator::duplicate(MPI_COMM_WORLD, {.compute = args.compute, .gpu_aware = gpu_aware});
}

}  // namespace
}  // namespace mylos::comm_mpi

extern "C" {
extern const mylos::PluginDescriptor MYLOS_PLUGIN_SYMBOL;
const mylos::PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = mylos::PluginKind::communication,
    .name = "mpi",
    .summary = "MPI, non-blocking collectives polled with a yield",
    .preference = 10,
    .params = mylos::comm_mpi::params,
    .num_params = std::size(mylos::comm_mpi::params),
    .unusable = mylos::comm_mpi::unusable,
    .create_communicator = mylos::comm_mpi::create,
};
}
