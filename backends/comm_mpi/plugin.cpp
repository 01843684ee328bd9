// SPDX-License-Identifier: BSD-3-Clause
// The descriptor of plugin "mpi".
#include "core/plugin.hpp"

#include "backends/comm_mpi/mpi_communicator.hpp"

namespace mylos::comm_mpi {
namespace {

constexpr ParamSpec params[] = {
    boolean_param("comm", "gpu_aware", "false",
                  "MPI accepts device pointers; otherwise data go through host memory. Except for sums of "
                  "fp32 and all reductions of integers, reductions go through it in any case, as does a "
                  "reduce-scatter whose result lies within its input (zero1).")
        .open_in_evaluation(),
};

const char* unusable() {
  return mpi_is_running() ? nullptr : "MPI is not running; train, eval and generate start it";
}

std::unique_ptr<Communicator> create(const CommunicatorArgs& args) {
  const bool gpu_aware = args.deck != nullptr && args.deck->boolean("comm.gpu_aware");
  return MpiCommunicator::duplicate(MPI_COMM_WORLD, {.compute = args.compute, .gpu_aware = gpu_aware});
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::communication,
    .name = "mpi",
    .summary = "MPI: non-blocking collectives, polled with a short spin, then a yield",
    .preference = 10,
    .params = params,
    .unusable = unusable,
    .create_communicator = create,
};

}  // namespace mylos::comm_mpi
