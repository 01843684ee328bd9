// SPDX-License-Identifier: BSD-3-Clause
#include "core/plugin.hpp"

#include <memory>
#include <string>

#include "backends/compute_cuda/cuda_check.hpp"
#include "backends/compute_cuda/kernel_operations.hpp"
#include "backends/compute_cuda/library_operations.hpp"
#include "core/ops/forwarding_backend.hpp"

namespace mylos::compute_cuda {

namespace {

class CudaBackend final : public ForwardingBackend {
 public:
  CudaBackend(ComputeBackend& next, MemoryLedger* ledger, bool autotunes)
      : ForwardingBackend(next),
        workspace_(next, ledger),
        kernels_(next, workspace_),
        libraries_(next, workspace_, ledger, autotunes) {
    add_operations(KernelOperations::List(), kernels_, "cuda");
    add_operations(LibraryOperations::List(), libraries_, "cuda");
    check(cudaGetDevice(&device_), "cudaGetDevice");
    check(cudaGetDeviceProperties(&properties_, device_), "cudaGetDeviceProperties");
  }

  std::string description() const override {
    return fmt::format("{} (device {}, sm_{}{}), {} over {}", static_cast<const char*>(properties_.name),
                       device_, properties_.major, properties_.minor, LibraryOperations::libraries(),
                       next().description());
  }

 private:
  Workspace workspace_;
  KernelOperations kernels_;
  LibraryOperations libraries_;
  int device_ = 0;
  cudaDeviceProp properties_{};
};

using List = decltype(KernelOperations::List() + LibraryOperations::List());

const char* unusable() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return cudaGetErrorString(status);
  return count > 0 ? nullptr : "there is no CUDA device";
}

constexpr ParamSpec params[] = {
    boolean_param(
        "backend", "autotune", "false",
        "When a large matrix product first occurs, cuBLASLt's algorithms for it are measured and the "
        "fastest is kept, instead of the one that cuBLASLt expects to be the fastest; needs memory for "
        "a second result of the product meanwhile. The measurements differ, so two runs, or a run and "
        "its restart, can differ in the last bits. With parallel.tensor, needs parallel.vocab.")
        .changes(Effect::measured)
        .open_in_evaluation(),
};

std::unique_ptr<ComputeBackend> create(const ComputeArgs& args) {
  require(args.next != nullptr, "the CUDA backend works over a root backend");
  if (args.next->host_accessible()) {
    fail(ExitCode::usage, "the CUDA backend computes on the device, but the memory of {} is the host's",
         args.next->description());
  }
  const bool autotunes = args.deck != nullptr && args.deck->boolean("backend.autotune");
  return std::make_unique<CudaBackend>(*args.next, args.ledger, autotunes);
}

std::size_t plan(const PlannedWork& work) {
  return Workspace::allocated + LibraryOperations::attention_workspace(work.attention);
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::compute,
    .name = "cuda",
    .summary = "cuBLASLt, cuDNN and its own kernels on an NVIDIA GPU, the rest through the backend below",
    .logits_bytes = std::int64_t{1} << 30,
    .preference = 30,
    .params = params,
    .operations = List::names,
    .unusable = unusable,
    .create_compute = create,
    .plan_compute = plan,
};

}  // namespace mylos::compute_cuda
