// SPDX-License-Identifier: BSD-3-Clause
// Plugin "cuda" for tests: the hand-written kernels of compute_cuda, emulated, over the Kokkos backend.
#include <memory>

#include "backends/compute_cuda/kernel_ops.hpp"
#include "backends/compute_cuda/kernels.hpp"
#include "core/plugin.hpp"

namespace mylos::compute_cuda {
namespace {

class EmulatedTransformerOps final : public KernelTransformerOps {
 public:
  using KernelTransformerOps::KernelTransformerOps;

  void linear_backward_weight(Stream stream, TensorRef x, TensorRef dy, TensorRef dw, TensorRef dbias,
                              bool accumulate) override {
    next().linear_backward_weight(stream, x, dy, dw, {}, accumulate);
    if (dbias) kernels::bias_gradient(queue(stream), dy, dbias, accumulate, workspace());
  }
};

class EmulatedBackend final : public ForwardingBackend {
 public:
  EmulatedBackend(ComputeBackend& next, MemoryLedger* ledger)
      : ForwardingBackend(next),
        workspace_(next, ledger),
        tensor_ops_(next, workspace_),
        transformer_ops_(next, workspace_),
        optimizer_ops_(next, workspace_) {}

  TensorOps& tensor_ops() override { return tensor_ops_; }
  TransformerOps& transformer_ops() override { return transformer_ops_; }
  OptimizerOps& optimizer_ops() override { return optimizer_ops_; }

 private:
  Workspace workspace_;
  KernelTensorOps tensor_ops_;
  EmulatedTransformerOps transformer_ops_;
  KernelOptimizerOps optimizer_ops_;
};

const char* unusable() {
  return nullptr;
}
ComputeBackend* create(const ComputeArgs& args) {
  return std::make_unique<EmulatedBackend>(*args.next, args.ledger).release();
}
void destroy(ComputeBackend* backend) {
  std::unique_ptr<ComputeBackend>(backend).reset();
}

}  // namespace

extern "C" const PluginDescriptor mylos_plugin;
extern "C" const PluginDescriptor mylos_plugin = {
    .kind = PluginKind::compute,
    .name = "cuda",
    .summary = "for tests: CUDA's kernels on the host",
    .preference = 0,
    .unusable = unusable,
    .create_compute = create,
    .destroy_compute = destroy,
};

}  // namespace mylos::compute_cuda
