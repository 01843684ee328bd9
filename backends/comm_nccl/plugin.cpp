// SPDX-License-Identifier: BSD-3-Clause
// The descriptor of plugin "nccl".
#include "core/plugin.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "backends/comm_nccl/nccl_communicator.hpp"

namespace mylos::comm_nccl {
namespace {

/// The number of ranks on this node, as reported by MPICH's Hydra, or on the first node of the step, as
/// reported by Slurm; 1 if neither reports it.
int ranks_on_node() {
  for (const char* variable : {"MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"}) {
    if (const char* text = std::getenv(variable); text != nullptr && std::atoi(text) > 0)
      return std::atoi(text);
  }
  return 1;
}

/// The number of GPUs on this node. If CUDA_VISIBLE_DEVICES may hide some, all GPUs that the driver lists;
/// otherwise the visible GPUs.
int gpus_on_node(int visible) {
  if (std::getenv("CUDA_VISIBLE_DEVICES") == nullptr) return visible;
  std::error_code ignored;
  const std::filesystem::directory_iterator gpus("/proc/driver/nvidia/gpus", ignored);
  return std::max(visible, static_cast<int>(std::distance(begin(gpus), end(gpus))));
}

const char* unusable() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  if (devices == 0) return "there is no CUDA device";
  if (ranks_on_node() > gpus_on_node(devices)) {
    return "there are fewer GPUs on this node than ranks, and NCCL needs one per rank";
  }
  return nullptr;
}

std::unique_ptr<Communicator> create(const CommunicatorArgs& args) {
  require(args.bootstrap != nullptr, "NCCL's id travels over a bootstrap communicator");
  if (args.compute == nullptr || args.compute->host_accessible()) {
    fail(ExitCode::usage, "[backend] comm = nccl moves GPU memory, but this run does not compute on a GPU");
  }
  return NcclCommunicator::create(*args.bootstrap, *args.compute);
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::communication,
    .name = "nccl",
    .summary = "NCCL between NVIDIA GPUs, one rank per GPU, ordered with the compute streams",
    .preference = 30,
    .unusable = unusable,
    .create_communicator = create,
};

}  // namespace mylos::comm_nccl
