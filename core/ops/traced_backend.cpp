// SPDX-License-Identifier: BSD-3-Clause
#include "core/ops/traced_backend.hpp"

namespace mylos {

namespace {

/// Of the weights that lead from `x` (..., I) to `y` (..., O).
LinearShape linear_shape(const TensorRef& x, const TensorRef& y) {
  return {x.shape[x.rank - 1], y.shape[y.rank - 1]};
}

class TracedTensorOps final : public TensorOps {
 public:
  TracedTensorOps(TensorOps& next, Trace& trace) : next_(next), trace_(trace) {}

  void fill(Stream stream, TensorRef y, float value) override {
    const Trace::Scope event = trace_.record("fill", stream);
    next_.fill(stream, y, value);
  }
  void cast(Stream stream, TensorRef x, TensorRef y) override {
    const Trace::Scope event = trace_.record("cast", stream);
    next_.cast(stream, x, y);
  }
  void fill_normal(Stream stream, TensorRef y, PhiloxKey key, const GlobalIndex& index,
                   float stddev) override {
    const Trace::Scope event = trace_.record("fill_normal", stream);
    next_.fill_normal(stream, y, key, index, stddev);
  }
  void sum(Stream stream, TensorRef x, TensorRef out, bool accumulate) override {
    const Trace::Scope event = trace_.record("sum", stream);
    next_.sum(stream, x, out, accumulate);
  }
  void sum_of_squares(Stream stream, TensorRef x, float factor, TensorRef out, bool accumulate) override {
    const Trace::Scope event = trace_.record("sum_of_squares", stream);
    next_.sum_of_squares(stream, x, factor, out, accumulate);
  }

 private:
  TensorOps& next_;
  Trace& trace_;
};

class TracedTransformerOps final : public TransformerOps {
 public:
  TracedTransformerOps(TransformerOps& next, Trace& trace) : next_(next), trace_(trace) {}

  void linear_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias, TensorRef y) override {
    const Trace::Scope event =
        trace_.record("linear_forward", stream, TraceKind::operation, linear_shape(x, y));
    next_.linear_forward(stream, x, w, bias, y);
  }
  void linear_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef dx) override {
    const Trace::Scope event =
        trace_.record("linear_backward_input", stream, TraceKind::operation, linear_shape(dx, dy));
    next_.linear_backward_input(stream, dy, w, dx);
  }
  void linear_backward_weight(Stream stream, TensorRef x, TensorRef dy, TensorRef dw, TensorRef dbias,
                              bool accumulate) override {
    const Trace::Scope event =
        trace_.record("linear_backward_weight", stream, TraceKind::operation, linear_shape(x, dy));
    next_.linear_backward_weight(stream, x, dy, dw, dbias, accumulate);
  }
  void embedding_forward(Stream stream, TensorRef tokens, TensorRef wte, TensorRef wpe, std::int64_t position,
                         TensorRef out) override {
    const Trace::Scope event = trace_.record("embedding_forward", stream);
    next_.embedding_forward(stream, tokens, wte, wpe, position, out);
  }
  void embedding_backward(Stream stream, TensorRef tokens, TensorRef dout, std::int64_t position,
                          TensorRef dwte, bool accumulate_wte, TensorRef dwpe, bool accumulate_wpe) override {
    const Trace::Scope event = trace_.record("embedding_backward", stream);
    next_.embedding_backward(stream, tokens, dout, position, dwte, accumulate_wte, dwpe, accumulate_wpe);
  }
  void layernorm_forward(Stream stream, TensorRef x, TensorRef gamma, TensorRef beta, TensorRef y,
                         TensorRef mean, TensorRef rstd) override {
    const Trace::Scope event = trace_.record("layernorm_forward", stream);
    next_.layernorm_forward(stream, x, gamma, beta, y, mean, rstd);
  }
  void layernorm_backward_input(Stream stream, TensorRef dy, TensorRef x, TensorRef gamma, TensorRef mean,
                                TensorRef rstd, TensorRef residual, TensorRef dx) override {
    const Trace::Scope event = trace_.record("layernorm_backward_input", stream);
    next_.layernorm_backward_input(stream, dy, x, gamma, mean, rstd, residual, dx);
  }
  void layernorm_backward_weight(Stream stream, TensorRef dy, TensorRef x, TensorRef mean, TensorRef rstd,
                                 TensorRef dgamma, TensorRef dbeta, bool accumulate) override {
    const Trace::Scope event = trace_.record("layernorm_backward_weight", stream);
    next_.layernorm_backward_weight(stream, dy, x, mean, rstd, dgamma, dbeta, accumulate);
  }
  void gelu_forward(Stream stream, TensorRef x, TensorRef y) override {
    const Trace::Scope event = trace_.record("gelu_forward", stream);
    next_.gelu_forward(stream, x, y);
  }
  void gelu_backward(Stream stream, TensorRef x, TensorRef dy, TensorRef dx) override {
    const Trace::Scope event = trace_.record("gelu_backward", stream);
    next_.gelu_backward(stream, x, dy, dx);
  }
  void dropout_add(Stream stream, TensorRef x, TensorRef residual, const Dropout& dropout,
                   TensorRef y) override {
    const Trace::Scope event = trace_.record("dropout_add", stream);
    next_.dropout_add(stream, x, residual, dropout, y);
  }
  void attention_forward(Stream stream, const AttentionArgs& args) override {
    const Trace::Scope event = trace_.record("attention_forward", stream);
    next_.attention_forward(stream, args);
  }
  void attention_backward(Stream stream, const AttentionBackwardArgs& args) override {
    const Trace::Scope event = trace_.record("attention_backward", stream);
    next_.attention_backward(stream, args);
  }
  void cross_entropy(Stream stream, TensorRef logits, TensorRef targets, std::int64_t vocab,
                     float gradient_scale, const StepScalars* scalars, TensorRef losses,
                     TensorRef correct) override {
    const Trace::Scope event = trace_.record("cross_entropy", stream);
    next_.cross_entropy(stream, logits, targets, vocab, gradient_scale, scalars, losses, correct);
  }
  void linear_gelu_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias, TensorRef pre,
                           TensorRef y) override {
    const Trace::Scope event =
        trace_.record("linear_gelu_forward", stream, TraceKind::operation, linear_shape(x, y));
    next_.linear_gelu_forward(stream, x, w, bias, pre, y);
  }
  void linear_gelu_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef pre,
                                  TensorRef dpre) override {
    const Trace::Scope event =
        trace_.record("linear_gelu_backward_input", stream, TraceKind::operation, linear_shape(dpre, dy));
    next_.linear_gelu_backward_input(stream, dy, w, pre, dpre);
  }
  void dropout_add_layernorm(Stream stream, TensorRef x, TensorRef residual, const Dropout& dropout,
                             TensorRef sum, TensorRef gamma, TensorRef beta, TensorRef y, TensorRef mean,
                             TensorRef rstd) override {
    const Trace::Scope event = trace_.record("dropout_add_layernorm", stream);
    next_.dropout_add_layernorm(stream, x, residual, dropout, sum, gamma, beta, y, mean, rstd);
  }

 private:
  TransformerOps& next_;
  Trace& trace_;
};

class TracedOptimizerOps final : public OptimizerOps {
 public:
  TracedOptimizerOps(OptimizerOps& next, Trace& trace) : next_(next), trace_(trace) {}

  void adamw(Stream stream, const AdamWArgs& args) override {
    const Trace::Scope event = trace_.record("adamw", stream);
    next_.adamw(stream, args);
  }
  void guard_step(Stream stream, const GuardConfig& config, const GuardInput* input, GuardState* state,
                  StepScalars* scalars) override {
    const Trace::Scope event = trace_.record("guard_step", stream);
    next_.guard_step(stream, config, input, state, scalars);
  }

 private:
  OptimizerOps& next_;
  Trace& trace_;
};

}  // namespace

TracedBackend::TracedBackend(ComputeBackend& next, Trace& trace)
    : ForwardingBackend(next),
      trace_(trace),
      tensor_(std::make_unique<TracedTensorOps>(next.tensor_ops(), trace)),
      transformer_(std::make_unique<TracedTransformerOps>(next.transformer_ops(), trace)),
      optimizer_(std::make_unique<TracedOptimizerOps>(next.optimizer_ops(), trace)) {}

void TracedBackend::copy_to_device(Stream stream, const void* host, void* device, std::size_t bytes) {
  const Trace::Scope event = trace_.record("copy_to_device", stream);
  next().copy_to_device(stream, host, device, bytes);
}

void TracedBackend::copy_to_host(Stream stream, const void* device, void* host, std::size_t bytes) {
  const Trace::Scope event = trace_.record("copy_to_host", stream);
  next().copy_to_host(stream, device, host, bytes);
}

void TracedBackend::copy(Stream stream, const void* from, void* to, std::size_t bytes) {
  const Trace::Scope event = trace_.record("copy", stream);
  next().copy(stream, from, to, bytes);
}

}  // namespace mylos
