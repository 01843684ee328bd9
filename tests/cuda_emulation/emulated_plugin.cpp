// SPDX-License-Identifier: BSD-3-Clause
// Plugin "cuda" for tests: the hand-written kernels of compute_cuda, emulated, over the Kokkos backend.
#include <memory>

#include "backends/compute_cuda/kernel_operations.hpp"
#include "core/ops/forwarding_backend.hpp"
#include "core/plugin.hpp"

namespace mylos::compute_cuda {
namespace {

/// The kernel that LibraryOperations runs if cuBLASLt's product does not give the bias gradient. Here it
/// computes every bias gradient, after the product of the next backend.
class BiasGradient {
 public:
  using List = OperationList<LinearBackwardWeight>;

  BiasGradient(ComputeBackend& next, const Workspace& workspace) : next_(next), workspace_(workspace) {}

  void run(const LinearBackwardWeight& op) {
    LinearBackwardWeight product = op;
    product.dbias = {};
    next_.run(product);
    if (op.dbias) bias_gradient(cuda_stream(next_), op.dy, op.dbias, op.accumulate, workspace_);
  }

 private:
  ComputeBackend& next_;
  const Workspace& workspace_;
};

class EmulatedBackend final : public ForwardingBackend {
 public:
  EmulatedBackend(ComputeBackend& next, MemoryLedger* ledger)
      : ForwardingBackend(next),
        workspace_(next, ledger),
        kernels_(next, workspace_),
        bias_gradient_(next, workspace_) {
    add_operations(KernelOperations::List(), kernels_, "cuda");
    add_operations(BiasGradient::List(), bias_gradient_, "cuda");
  }

 private:
  Workspace workspace_;
  KernelOperations kernels_;
  BiasGradient bias_gradient_;
};

std::unique_ptr<ComputeBackend> create(const ComputeArgs& args) {
  return std::make_unique<EmulatedBackend>(*args.next, args.ledger);
}

}  // namespace

extern "C" const PluginDescriptor mylos_plugin;
extern "C" const PluginDescriptor mylos_plugin = {
    .kind = PluginKind::compute,
    .name = "cuda",
    .summary = "for tests: CUDA's kernels on the host",
    .preference = 0,
    .create_compute = create,
};

}  // namespace mylos::compute_cuda
