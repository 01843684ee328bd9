// SPDX-License-Identifier: BSD-3-Clause
// TracedBackend: another backend, whose operations and copies are recorded while a trace is on.
#pragma once

#include <memory>

#include "core/ops/forwarding_ops.hpp"
#include "core/trace.hpp"

namespace mylos {

/// Every operation of `next` under its own name, linear layers with the shape of their weights.
class TracedBackend final : public ForwardingBackend {
 public:
  /// Both must outlive this.
  TracedBackend(ComputeBackend& next, Trace& trace);

  void copy_to_device(Stream stream, const void* host, void* device, std::size_t bytes) override;
  void copy_to_host(Stream stream, const void* device, void* host, std::size_t bytes) override;
  void copy(Stream stream, const void* from, void* to, std::size_t bytes) override;

  TensorOps& tensor_ops() override { return *tensor_; }
  TransformerOps& transformer_ops() override { return *transformer_; }
  OptimizerOps& optimizer_ops() override { return *optimizer_; }

 private:
  Trace& trace_;
  std::unique_ptr<TensorOps> tensor_;
  std::unique_ptr<TransformerOps> transformer_;
  std::unique_ptr<OptimizerOps> optimizer_;
};

}  // namespace mylos
