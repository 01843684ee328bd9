// SPDX-License-Identifier: BSD-3-Clause
// Forwarding bases: a backend derives from them, overrides what it does better and passes the rest on to
// `next`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "core/ops/compute_backend.hpp"

namespace mylos {

class ForwardingTensorOps : public TensorOps {
 public:
  explicit ForwardingTensorOps(TensorOps& next) : next_(next) {}

  void fill(Stream stream, TensorRef y, float value) override { next_.fill(stream, y, value); }
  void cast(Stream stream, TensorRef x, TensorRef y) override { next_.cast(stream, x, y); }
  void fill_normal(Stream stream, TensorRef y, PhiloxKey key, const GlobalIndex& index,
                   float stddev) override {
    next_.fill_normal(stream, y, key, index, stddev);
  }
  void sum(Stream stream, TensorRef x, TensorRef out, bool accumulate) override {
    next_.sum(stream, x, out, accumulate);
  }
  void sum_of_squares(Stream stream, TensorRef x, float factor, TensorRef out, bool accumulate) override {
    next_.sum_of_squares(stream, x, factor, out, accumulate);
  }

 protected:
  TensorOps& next() { return next_; }

 private:
  TensorOps& next_;
};

class ForwardingTransformerOps : public TransformerOps {
 public:
  explicit ForwardingTransformerOps(TransformerOps& next) : next_(next) {}

  void linear_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias, TensorRef y) override {
    next_.linear_forward(stream, x, w, bias, y);
  }
  void linear_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef dx) override {
    next_.linear_backward_input(stream, dy, w, dx);
  }
  void linear_backward_weight(Stream stream, TensorRef x, TensorRef dy, TensorRef dw, TensorRef dbias,
                              bool accumulate) override {
    next_.linear_backward_weight(stream, x, dy, dw, dbias, accumulate);
  }
  void embedding_forward(Stream stream, TensorRef tokens, TensorRef wte, TensorRef wpe, std::int64_t position,
                         TensorRef out) override {
    next_.embedding_forward(stream, tokens, wte, wpe, position, out);
  }
  void embedding_backward(Stream stream, TensorRef tokens, TensorRef dout, std::int64_t position,
                          TensorRef dwte, bool accumulate_wte, TensorRef dwpe, bool accumulate_wpe) override {
    next_.embedding_backward(stream, tokens, dout, position, dwte, accumulate_wte, dwpe, accumulate_wpe);
  }
  void layernorm_forward(Stream stream, TensorRef x, TensorRef gamma, TensorRef beta, TensorRef y,
                         TensorRef mean, TensorRef rstd) override {
    next_.layernorm_forward(stream, x, gamma, beta, y, mean, rstd);
  }
  void layernorm_backward_input(Stream stream, TensorRef dy, TensorRef x, TensorRef gamma, TensorRef mean,
                                TensorRef rstd, TensorRef residual, TensorRef dx) override {
    next_.layernorm_backward_input(stream, dy, x, gamma, mean, rstd, residual, dx);
  }
  void layernorm_backward_weight(Stream stream, TensorRef dy, TensorRef x, TensorRef mean, TensorRef rstd,
                                 TensorRef dgamma, TensorRef dbeta, bool accumulate) override {
    next_.layernorm_backward_weight(stream, dy, x, mean, rstd, dgamma, dbeta, accumulate);
  }
  void gelu_forward(Stream stream, TensorRef x, TensorRef y) override { next_.gelu_forward(stream, x, y); }
  void gelu_backward(Stream stream, TensorRef x, TensorRef dy, TensorRef dx) override {
    next_.gelu_backward(stream, x, dy, dx);
  }
  void dropout_add(Stream stream, TensorRef x, TensorRef residual, const Dropout& dropout,
                   TensorRef y) override {
    next_.dropout_add(stream, x, residual, dropout, y);
  }
  void attention_forward(Stream stream, const AttentionArgs& args) override {
    next_.attention_forward(stream, args);
  }
  void attention_backward(Stream stream, const AttentionBackwardArgs& args) override {
    next_.attention_backward(stream, args);
  }
  void cross_entropy(Stream stream, TensorRef logits, TensorRef targets, std::int64_t vocab,
                     float gradient_scale, const StepScalars* scalars, TensorRef losses,
                     TensorRef correct) override {
    next_.cross_entropy(stream, logits, targets, vocab, gradient_scale, scalars, losses, correct);
  }

 protected:
  TransformerOps& next() { return next_; }

 private:
  TransformerOps& next_;
};

class ForwardingOptimizerOps : public OptimizerOps {
 public:
  explicit ForwardingOptimizerOps(OptimizerOps& next) : next_(next) {}

  void adamw(Stream stream, const AdamWArgs& args) override { next_.adamw(stream, args); }
  void guard_step(Stream stream, const GuardConfig& config, const GuardInput* input, GuardState* state,
                  StepScalars* scalars) override {
    next_.guard_step(stream, config, input, state, scalars);
  }

 protected:
  OptimizerOps& next() { return next_; }

 private:
  OptimizerOps& next_;
};

/// Memory, streams and op sets of `next`, which must outlive it.
class ForwardingBackend : public ComputeBackend {
 public:
  explicit ForwardingBackend(ComputeBackend& next) : next_(next) {}

  std::string description() const override { return next_.description(); }

  void* allocate(std::size_t bytes, const char* label) override { return next_.allocate(bytes, label); }
  void deallocate(void* memory) override { next_.deallocate(memory); }
  void* allocate_host(std::size_t bytes) override { return next_.allocate_host(bytes); }
  void deallocate_host(void* memory) override { next_.deallocate_host(memory); }
  void copy_to_device(Stream stream, const void* host, void* device, std::size_t bytes) override {
    next_.copy_to_device(stream, host, device, bytes);
  }
  void copy_to_host(Stream stream, const void* device, void* host, std::size_t bytes) override {
    next_.copy_to_host(stream, device, host, bytes);
  }
  void copy(Stream stream, const void* from, void* to, std::size_t bytes) override {
    next_.copy(stream, from, to, bytes);
  }
  bool host_accessible() const override { return next_.host_accessible(); }

  Stream create_stream(const char* label) override { return next_.create_stream(label); }
  void destroy_stream(Stream stream) override { next_.destroy_stream(stream); }
  void synchronize(Stream stream) override { next_.synchronize(stream); }
  Event create_event() override { return next_.create_event(); }
  void destroy_event(Event event) override { next_.destroy_event(event); }
  void record(Event event, Stream stream) override { next_.record(event, stream); }
  void wait(Stream stream, Event event) override { next_.wait(stream, event); }
  void host_wait(Event event) override { next_.host_wait(event); }
  double seconds_between(Event begin, Event end) override { return next_.seconds_between(begin, end); }
  bool can_capture() const override { return next_.can_capture(); }
  Graph capture(Stream stream, const std::function<void()>& work) override {
    return next_.capture(stream, work);
  }
  bool launch(Stream stream, Graph graph) override { return next_.launch(stream, graph); }
  void destroy_graph(Graph graph) override { next_.destroy_graph(graph); }
  void begin_range(const char* name) override { next_.begin_range(name); }
  void end_range() override { next_.end_range(); }
  std::size_t device_bytes_in_use() const override { return next_.device_bytes_in_use(); }
  void* native_stream(Stream stream) override { return next_.native_stream(stream); }

  TensorOps& tensor_ops() override { return next_.tensor_ops(); }
  TransformerOps& transformer_ops() override { return next_.transformer_ops(); }
  OptimizerOps& optimizer_ops() override { return next_.optimizer_ops(); }

 protected:
  ComputeBackend& next() { return next_; }
  const ComputeBackend& next() const { return next_; }

 private:
  ComputeBackend& next_;
};

}  // namespace mylos
