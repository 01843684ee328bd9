// SPDX-License-Identifier: BSD-3-Clause
// The descriptor of plugin "nccl".
#include "core/plugin.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "backends/comm_nccl/nccl_communicator.hpp"
#include "backends/comm_nccl/ranks_on_node.hpp"

namespace mylos::comm_nccl {
namespace {

constexpr const char* too_few_gpus = "there are fewer GPUs on a node than ranks, and NCCL needs one per rank";

/// The number of ranks on this node if MPICH's Hydra reports it, else 1. With this, `auto` takes another
/// backend where there are too few GPUs; `unusable_among` measures for every launcher.
int announced_ranks_on_node() {
  const char* text = std::getenv("MPI_LOCALNRANKS");
  return text != nullptr ? std::max(1, std::atoi(text)) : 1;
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
  return announced_ranks_on_node() > gpus_on_node(devices) ? too_few_gpus : nullptr;
}

const char* unusable_among(Communicator& ranks) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) devices = 0;
  std::int64_t lacking = ranks_on_node(ranks, own_node()) - gpus_on_node(devices);
  ranks.all_reduce({&lacking, DType::int64, {1}}, ReduceOp::max).host_wait();
  return lacking > 0 ? too_few_gpus : nullptr;
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
    .unusable_among = unusable_among,
    .create_communicator = create,
};

}  // namespace mylos::comm_nccl
