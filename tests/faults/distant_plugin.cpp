// SPDX-License-Identifier: BSD-3-Clause
// Plugin "distant": computes as the backend below does, on memory that only its calls may touch. Whatever
// else of mylos reads or writes device memory directly, which a machine without a GPU would not show, ends
// with SIGSEGV.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <sys/mman.h>

#include "core/forwarding_ops.hpp"
#include "core/plugin.hpp"

#ifndef MYLOS_PLUGIN_SYMBOL
#define MYLOS_PLUGIN_SYMBOL mylos_plugin
#endif

namespace mylos {
namespace {

/// Mappings without access rights, but while a `Near` lives.
class DistantMemory {
 public:
  void* allocate(std::size_t bytes) {
    const std::size_t size = std::max<std::size_t>(bytes, 1);
    void* memory = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail(ExitCode::internal, "out of memory: {} bytes", bytes);
    sizes_.emplace(memory, size);
    return memory;
  }
  void deallocate(void* memory) {
    const auto block = sizes_.extract(memory);
    munmap(memory, block.mapped());
  }
  void protect(int rights) const {
    for (const auto& [memory, bytes] : sizes_) mprotect(memory, bytes, rights);
  }

 private:
  std::map<void*, std::size_t> sizes_;
};

class Near {
 public:
  explicit Near(const DistantMemory& memory) : memory_(memory) { memory_.protect(PROT_READ | PROT_WRITE); }
  ~Near() { memory_.protect(PROT_NONE); }
  Near(const Near&) = delete;
  Near& operator=(const Near&) = delete;

 private:
  const DistantMemory& memory_;
};

class DistantTensorOps final : public ForwardingTensorOps {
 public:
  DistantTensorOps(TensorOps& next, const DistantMemory& memory)
      : ForwardingTensorOps(next), memory_(memory) {}

  void fill(Stream stream, TensorRef y, float value) override {
    const Near near(memory_);
    next().fill(stream, y, value);
  }
  void cast(Stream stream, TensorRef x, TensorRef y) override {
    const Near near(memory_);
    next().cast(stream, x, y);
  }
  void fill_normal(Stream stream, TensorRef y, PhiloxKey key, std::int64_t first, float stddev) override {
    const Near near(memory_);
    next().fill_normal(stream, y, key, first, stddev);
  }
  void sum(Stream stream, TensorRef x, TensorRef out, bool accumulate) override {
    const Near near(memory_);
    next().sum(stream, x, out, accumulate);
  }
  void sum_of_squares(Stream stream, TensorRef x, TensorRef out, bool accumulate) override {
    const Near near(memory_);
    next().sum_of_squares(stream, x, out, accumulate);
  }

 private:
  const DistantMemory& memory_;
};

class DistantTransformerOps final : public ForwardingTransformerOps {
 public:
  DistantTransformerOps(TransformerOps& next, const DistantMemory& memory)
      : ForwardingTransformerOps(next), memory_(memory) {}

  void linear_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias, TensorRef y) override {
    const Near near(memory_);
    next().linear_forward(stream, x, w, bias, y);
  }
  void linear_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef dx) override {
    const Near near(memory_);
    next().linear_backward_input(stream, dy, w, dx);
  }
  void linear_backward_weight(Stream stream, TensorRef x, TensorRef dy, TensorRef dw, TensorRef dbias,
                              bool accumulate) override {
    const Near near(memory_);
    next().linear_backward_weight(stream, x, dy, dw, dbias, accumulate);
  }
  void embedding_forward(Stream stream, TensorRef tokens, TensorRef wte, TensorRef wpe, std::int64_t position,
                         TensorRef out) override {
    const Near near(memory_);
    next().embedding_forward(stream, tokens, wte, wpe, position, out);
  }
  void embedding_backward(Stream stream, TensorRef tokens, TensorRef dout, std::int64_t position,
                          TensorRef dwte, bool accumulate_wte, TensorRef dwpe, bool accumulate_wpe) override {
    const Near near(memory_);
    next().embedding_backward(stream, tokens, dout, position, dwte, accumulate_wte, dwpe, accumulate_wpe);
  }
  void layernorm_forward(Stream stream, TensorRef x, TensorRef gamma, TensorRef beta, TensorRef y,
                         TensorRef mean, TensorRef rstd) override {
    const Near near(memory_);
    next().layernorm_forward(stream, x, gamma, beta, y, mean, rstd);
  }
  void layernorm_backward_input(Stream stream, TensorRef dy, TensorRef x, TensorRef gamma, TensorRef mean,
                                TensorRef rstd, TensorRef residual, TensorRef dx) override {
    const Near near(memory_);
    next().layernorm_backward_input(stream, dy, x, gamma, mean, rstd, residual, dx);
  }
  void layernorm_backward_weight(Stream stream, TensorRef dy, TensorRef x, TensorRef mean, TensorRef rstd,
                                 TensorRef dgamma, TensorRef dbeta, bool accumulate) override {
    const Near near(memory_);
    next().layernorm_backward_weight(stream, dy, x, mean, rstd, dgamma, dbeta, accumulate);
  }
  void gelu_forward(Stream stream, TensorRef x, TensorRef y) override {
    const Near near(memory_);
    next().gelu_forward(stream, x, y);
  }
  void gelu_backward(Stream stream, TensorRef x, TensorRef dy, TensorRef dx) override {
    const Near near(memory_);
    next().gelu_backward(stream, x, dy, dx);
  }
  void dropout_add(Stream stream, TensorRef x, TensorRef residual, const Dropout& dropout,
                   TensorRef y) override {
    const Near near(memory_);
    next().dropout_add(stream, x, residual, dropout, y);
  }
  void attention_forward(Stream stream, const AttentionArgs& args) override {
    const Near near(memory_);
    next().attention_forward(stream, args);
  }
  void attention_backward(Stream stream, const AttentionBackwardArgs& args) override {
    const Near near(memory_);
    next().attention_backward(stream, args);
  }
  void cross_entropy(Stream stream, TensorRef logits, TensorRef targets, std::int64_t vocab,
                     float gradient_scale, const StepScalars* scalars, TensorRef losses,
                     TensorRef correct) override {
    const Near near(memory_);
    next().cross_entropy(stream, logits, targets, vocab, gradient_scale, scalars, losses, correct);
  }

 private:
  const DistantMemory& memory_;
};

class DistantOptimizerOps final : public ForwardingOptimizerOps {
 public:
  DistantOptimizerOps(OptimizerOps& next, const DistantMemory& memory)
      : ForwardingOptimizerOps(next), memory_(memory) {}

  void adamw(Stream stream, const AdamWArgs& args) override {
    const Near near(memory_);
    next().adamw(stream, args);
  }
  void guard_step(Stream stream, const GuardConfig& config, const GuardInput* input, GuardState* state,
                  StepScalars* scalars) override {
    const Near near(memory_);
    next().guard_step(stream, config, input, state, scalars);
  }

 private:
  const DistantMemory& memory_;
};

class DistantBackend final : public ForwardingBackend {
 public:
  explicit DistantBackend(ComputeBackend& next)
      : ForwardingBackend(next),
        tensor_ops_(next.tensor_ops(), memory_),
        transformer_ops_(next.transformer_ops(), memory_),
        optimizer_ops_(next.optimizer_ops(), memory_) {}

  std::string description() const override { return "memory out of reach over " + next().description(); }
  void* allocate(std::size_t bytes, const char* /*label*/) override { return memory_.allocate(bytes); }
  void deallocate(void* memory) override { memory_.deallocate(memory); }
  void copy_to_device(Stream /*stream*/, const void* host, void* device, std::size_t bytes) override {
    copy(host, device, bytes);
  }
  void copy_to_host(Stream /*stream*/, const void* device, void* host, std::size_t bytes) override {
    copy(device, host, bytes);
  }
  void copy(Stream /*stream*/, const void* from, void* to, std::size_t bytes) override {
    copy(from, to, bytes);
  }
  bool host_accessible() const override { return false; }

  TensorOps& tensor_ops() override { return tensor_ops_; }
  TransformerOps& transformer_ops() override { return transformer_ops_; }
  OptimizerOps& optimizer_ops() override { return optimizer_ops_; }

 private:
  void copy(const void* from, void* to, std::size_t bytes) {
    const Near near(memory_);
    if (bytes > 0) std::memmove(to, from, bytes);
  }

  DistantMemory memory_;
  DistantTensorOps tensor_ops_;
  DistantTransformerOps transformer_ops_;
  DistantOptimizerOps optimizer_ops_;
};

const char* unusable() {
  return nullptr;
}
ComputeBackend* create(const ComputeArgs& args) {
  return std::make_unique<DistantBackend>(*args.next).release();
}
void destroy(ComputeBackend* backend) {
  std::unique_ptr<ComputeBackend>(backend).reset();
}

}  // namespace

extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL;
extern "C" const PluginDescriptor MYLOS_PLUGIN_SYMBOL = {
    .kind = PluginKind::compute,
    .name = "distant",
    .summary = "for tests: memory that the host cannot reach",
    .preference = 0,
    .unusable = unusable,
    .create_compute = create,
    .destroy_compute = destroy,
};

}  // namespace mylos
