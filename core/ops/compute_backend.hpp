// SPDX-License-Identifier: BSD-3-Clause
// ComputeBackend: memory, streams and the op sets of a device, one virtual per operation.
//
// Each op set has a forwarding base, so that a backend overrides what it does better and lets the rest fall
// through to `next`. Op sets are append-only: a new operation goes to the end and raises the version.
//
// Conventions. Tensors are row-major and contiguous unless a parameter says "strided". "writes" means that
// the old content is ignored, "adds to" that it is kept; `accumulate` chooses. Weights and activations are in
// the compute type (fp32, bf16 or fp16), statistics and losses in fp32, gradients of weights in fp32 or the
// compute type. Sums accumulate in fp32 or better, in an order that depends on shapes and thread count only.
// All work is queued on the stream; none of these calls waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/base/error.hpp"
#include "core/base/global_index.hpp"
#include "core/base/rng.hpp"
#include "core/base/stochastic_rounding.hpp"
#include "core/base/tensor.hpp"
#include "core/memory/memory_ledger.hpp"
#include "core/ops/step_scalars.hpp"
#include "core/optim/grad_guard.hpp"

namespace mylos {

/// An in-order queue of work. A null handle is the backend's own default queue.
struct Stream {
  void* handle = nullptr;
};

/// A point in a stream.
struct Event {
  void* handle = nullptr;
};

/// Work that was recorded to be queued again as a whole.
struct Graph {
  void* handle = nullptr;
};

/// Which elements a dropout layer zeroes. Element e of sample b is dropped if the Philox word (e mod 4) of
/// counter (e / 4, sample, step) is below `probability`; e counts within the whole sample ((t, c), or
/// (h, q, k) for attention), `sample` = first_sample + b counts within the global batch. The same for every
/// layout.
struct Dropout {
  float probability = 0.0F;
  PhiloxKey key;
  std::int64_t first_sample = 0;
  GlobalIndex index;  // of the (t, c) of a call in the whole sample's; attention has AttentionPlace
  const StepScalars* scalars = nullptr;  // device memory
};

/// Whether element `e` of `sample` is kept at `step`.
MYLOS_HOST_DEVICE inline bool dropout_keeps(const Dropout& dropout, std::int64_t step, std::int64_t sample,
                                            std::int64_t e) {
  const std::uint64_t group = static_cast<std::uint64_t>(e) / 4;
  const PhiloxBlock block =
      philox(dropout.key, static_cast<std::uint32_t>(group), static_cast<std::uint32_t>(group >> 32U),
             static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(step));
  return uniform01(block.x[static_cast<std::uint64_t>(e) % 4]) >= dropout.probability;
}

/// Where the probabilities of a call lie in those of the whole sample, (heads, positions, positions), in
/// which dropout counts.
struct AttentionPlace {
  std::int64_t first_head = 0;
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
  std::int64_t positions = 0;  // of the whole sample; read only with dropout

  MYLOS_HOST_DEVICE std::int64_t element(std::int64_t h, std::int64_t q, std::int64_t k) const {
    return ((first_head + h) * positions + first_query + q) * positions + first_key + k;
  }
};

/// Causal attention of queries at positions query_offset .. query_offset + Tq - 1 over keys at 0 .. Tk - 1:
/// key j is seen by query i if j <= query_offset + i. All four tensors strided with unit stride in D.
struct AttentionArgs {
  TensorRef query;   // (B, Tq, H, D) strided
  TensorRef key;     // (B, Tk, H, D) strided
  TensorRef value;   // (B, Tk, H, D) strided
  TensorRef output;  // (B, Tq, H, D) strided
  TensorRef lse;     // (B, H, Tq) fp32: log of the sum of exp(scale * q.k) over the keys seen
  std::int64_t query_offset = 0;
  float scale = 1.0F;
  Dropout dropout;  // on the probabilities; e = place.element(h, i, j) for query i and key j of the call
  AttentionPlace place;
};

struct AttentionBackwardArgs {
  AttentionArgs forward;  // as it was; output and lse as it left them
  TensorRef output_grad;  // (B, Tq, H, D) strided
  TensorRef query_grad;   // (B, Tq, H, D) strided, written
  TensorRef key_grad;     // (B, Tk, H, D) strided, written
  TensorRef value_grad;   // (B, Tk, H, D) strided, written
  TensorRef delta;        // (B, H, Tq) fp32 workspace: rowwise dot of output and output_grad
};

/// Part of a flat buffer that belongs to one parameter.
struct Segment {
  std::int64_t begin = 0;  // elements
  std::int64_t end = 0;
  float decay = 0.0F;           // 1 or 0, multiplies the weight decay
  StochasticRounding rounding;  // counts from `begin`; read where weights have no master
};

/// The segment that holds `element`.
MYLOS_HOST_DEVICE inline int segment_of(const Segment* segments, int count, std::int64_t element) {
  int low = 0;
  for (int high = count - 1; low < high;) {
    const int middle = (low + high) / 2;
    if (segments[middle].end <= element) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// AdamW (Loshchilov and Hutter, 2019) on n elements of a flat buffer.
struct AdamWArgs {
  TensorRef weights;   // (n) compute type; the master rounded, or where there is none updated
  TensorRef gradient;  // (n) fp32 or compute type
  /// (n) fp32, updated; the same memory as `weights` where these are fp32; empty where the weights are bf16
  /// or fp16 and have none: these are then updated in fp32 and rounded as their segment says.
  TensorRef master;
  TensorRef first_moment;             // (n) fp32, updated
  TensorRef second_moment;            // (n) fp32, updated
  const Segment* segments = nullptr;  // device memory; cover [0, n) in order, without gaps
  int num_segments = 0;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0.1F;
  const StepScalars* scalars = nullptr;  // device memory: step, learning_rate, clip_factor, skip
};

/// Version 1.
class TensorOps {
 public:
  virtual ~TensorOps() = default;

  /// y[i] = value.
  virtual void fill(Stream stream, TensorRef y, float value) = 0;
  /// y[i] = x[i], converted between fp32, bf16 and fp16 where the types differ: rounded to nearest, ties to
  /// even; subnormal numbers may become 0. x and y (n), not overlapping.
  virtual void cast(Stream stream, TensorRef x, TensorRef y) = 0;
  /// y[i] = N(0, stddev) from the Philox stream `key` at element index(i); y (n) fp32.
  /// Elements 2j and 2j+1 are normal_pair(x[0], x[1]) of counter (j, j >> 32, 0, 0).
  virtual void fill_normal(Stream stream, TensorRef y, PhiloxKey key, const GlobalIndex& index,
                           float stddev) = 0;
  /// out[0] = (accumulate ? out[0] : 0) + sum of x; x (n) fp32, out (1) fp32.
  virtual void sum(Stream stream, TensorRef x, TensorRef out, bool accumulate) = 0;
  /// out[0] = (accumulate ? out[0] : 0) + factor * sum of x²; x (n) fp32, bf16 or fp16, out (1) fp32. Not
  /// finite if any x is not.
  virtual void sum_of_squares(Stream stream, TensorRef x, float factor, TensorRef out, bool accumulate) = 0;
};

/// Version 2. The fused operations at the end are, where a backend does not override them, compositions of
/// its own ones.
class TransformerOps {
 public:
  virtual ~TransformerOps() = default;

  /// y = x w + bias. x (N, I), w (I, O) row-major or transposed by its strides, bias (O) or empty, y (N, O).
  virtual void linear_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias, TensorRef y) = 0;
  /// dx = dy wᵀ. dy (N, O), w as above, dx (N, I) written.
  virtual void linear_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef dx) = 0;
  /// dw = xᵀ dy and dbias = column sums of dy, or adds them. dw (I, O) strided like w; dbias (O) or empty.
  virtual void linear_backward_weight(Stream stream, TensorRef x, TensorRef dy, TensorRef dw, TensorRef dbias,
                                      bool accumulate) = 0;

  /// out[b, t] = wte[tokens[b, t]] + wpe[position + t]. tokens (B, T) int32 in range, wte (V, C), wpe (S, C).
  virtual void embedding_forward(Stream stream, TensorRef tokens, TensorRef wte, TensorRef wpe,
                                 std::int64_t position, TensorRef out) = 0;
  /// dwte[tokens[b, t]] and dwpe[position + t] receive dout[b, t] (B, T, C). Where not accumulating, all
  /// other rows are set to 0. Deterministic.
  virtual void embedding_backward(Stream stream, TensorRef tokens, TensorRef dout, std::int64_t position,
                                  TensorRef dwte, bool accumulate_wte, TensorRef dwpe,
                                  bool accumulate_wpe) = 0;

  /// y = (x - mean) rstd gamma + beta rowwise, epsilon 1e-5. x, y (N, C); mean, rstd (N) fp32 written.
  virtual void layernorm_forward(Stream stream, TensorRef x, TensorRef gamma, TensorRef beta, TensorRef y,
                                 TensorRef mean, TensorRef rstd) = 0;
  /// dx = (residual or 0) + the layernorm's input gradient. dx may be the memory of dy or of residual; (N, C)
  /// all.
  virtual void layernorm_backward_input(Stream stream, TensorRef dy, TensorRef x, TensorRef gamma,
                                        TensorRef mean, TensorRef rstd, TensorRef residual, TensorRef dx) = 0;
  /// dgamma (C), dbeta (C) from dy, x (N, C).
  virtual void layernorm_backward_weight(Stream stream, TensorRef dy, TensorRef x, TensorRef mean,
                                         TensorRef rstd, TensorRef dgamma, TensorRef dbeta,
                                         bool accumulate) = 0;

  /// y = gelu(x), the tanh form of Hendrycks and Gimpel (2016).
  virtual void gelu_forward(Stream stream, TensorRef x, TensorRef y) = 0;
  /// dx = dy gelu'(x); dx may be dy.
  virtual void gelu_backward(Stream stream, TensorRef x, TensorRef dy, TensorRef dx) = 0;

  /// y = (residual or 0) + dropout(x) / (1 - p). x, y (B, T, C); y may be x or residual. p = 0 is a plain
  /// sum.
  virtual void dropout_add(Stream stream, TensorRef x, TensorRef residual, const Dropout& dropout,
                           TensorRef y) = 0;

  /// Attention without the T × T matrix (Dao, 2023).
  virtual void attention_forward(Stream stream, const AttentionArgs& args) = 0;
  virtual void attention_backward(Stream stream, const AttentionBackwardArgs& args) = 0;

  /// losses[n] = -log softmax(logits[n, :vocab])[targets[n]]; a negative target gives 0 and no gradient.
  /// correct[n] = 1 if the target is the largest logit (the first of equals), where `correct` is given.
  /// With `scalars`, logits = gradient_scale * scalars->loss_scale * (softmax - onehot), columns >= vocab
  /// zero. logits (N, Vp) compute type, targets (N) int32, losses (N) fp32, correct (N) int32 or empty,
  /// scalars in device memory or null.
  virtual void cross_entropy(Stream stream, TensorRef logits, TensorRef targets, std::int64_t vocab,
                             float gradient_scale, const StepScalars* scalars, TensorRef losses,
                             TensorRef correct) = 0;

  /// pre = x w + bias, y = gelu(pre). x (N, I), w (I, O) and bias (O) as in linear_forward; pre, y (N, O).
  virtual void linear_gelu_forward(Stream stream, TensorRef x, TensorRef w, TensorRef bias, TensorRef pre,
                                   TensorRef y) {
    linear_forward(stream, x, w, bias, pre);
    gelu_forward(stream, pre, y);
  }
  /// dpre = (dy wᵀ) gelu'(pre). dy (N, O), w (I, O) as above, pre and dpre (N, I).
  virtual void linear_gelu_backward_input(Stream stream, TensorRef dy, TensorRef w, TensorRef pre,
                                          TensorRef dpre) {
    linear_backward_input(stream, dy, w, dpre);
    gelu_backward(stream, pre, dpre, dpre);
  }
  /// sum = dropout_add of x and residual, y = layernorm_forward of sum. x, residual, sum (B, T, C), y (B * T,
  /// C); sum may be x or residual.
  virtual void dropout_add_layernorm(Stream stream, TensorRef x, TensorRef residual, const Dropout& dropout,
                                     TensorRef sum, TensorRef gamma, TensorRef beta, TensorRef y,
                                     TensorRef mean, TensorRef rstd) {
    dropout_add(stream, x, residual, dropout, sum);
    layernorm_forward(stream, sum.reshaped({mean.size(), gamma.size()}), gamma, beta, y, mean, rstd);
  }
};

/// Version 2.
class OptimizerOps {
 public:
  virtual ~OptimizerOps() = default;

  /// One AdamW step; leaves everything as it is where scalars->skip is set.
  virtual void adamw(Stream stream, const AdamWArgs& args) = 0;
  /// Runs `guard_update` (core/optim/grad_guard.hpp) on device memory, in order with the stream.
  virtual void guard_step(Stream stream, const GuardConfig& config, const GuardInput* input,
                          GuardState* state, StepScalars* scalars) = 0;
};

/// A device: its memory, its queues and the operations on them.
class ComputeBackend {
 public:
  virtual ~ComputeBackend() = default;

  /// What it is, for the console, the report and `mylos help`: library, version, device, threads.
  virtual std::string description() const = 0;

  /// 64-byte aligned device memory, first touched by the threads that will use it; throws ExitCode::internal
  /// where there is none. Not charged: callers use DeviceBuffer.
  virtual void* allocate(std::size_t bytes, const char* label) = 0;
  virtual void deallocate(void* memory) = 0;
  /// Host memory that the device copies from and to while the host goes on: page-locked on a GPU.
  virtual void* allocate_host(std::size_t bytes) = 0;
  virtual void deallocate_host(void* memory) = 0;
  /// Copies between host and device memory, in order with the stream; the host side may be reused after
  /// `synchronize`, or `host_wait` for an event behind the copy.
  virtual void copy_to_device(Stream stream, const void* host, void* device, std::size_t bytes) = 0;
  virtual void copy_to_host(Stream stream, const void* device, void* host, std::size_t bytes) = 0;
  virtual void copy(Stream stream, const void* from, void* to, std::size_t bytes) = 0;
  /// Whether the host may read and write device memory directly.
  virtual bool host_accessible() const = 0;

  virtual Stream create_stream(const char* label) = 0;
  virtual void destroy_stream(Stream stream) = 0;
  virtual void synchronize(Stream stream) = 0;
  virtual Event create_event() = 0;
  virtual void destroy_event(Event event) = 0;
  virtual void record(Event event, Stream stream) = 0;
  /// Work queued on `stream` from now on starts after `event`.
  virtual void wait(Stream stream, Event event) = 0;
  /// Returns when the device has come to where `event` was last recorded; at once where it never was.
  virtual void host_wait(Event event) = 0;
  /// The device's time between two events that it has come to.
  virtual double seconds_between(Event begin, Event end) = 0;
  /// Whether work can be recorded; the next three are for backends that can.
  virtual bool can_capture() const { return false; }
  /// Records what `work` queues on `stream` instead of doing it. It may neither wait for the device nor
  /// allocate or deallocate its memory; what it throws is passed on, and nothing is recorded.
  virtual Graph capture(Stream /*stream*/, const std::function<void()>& /*work*/) {
    fail(ExitCode::internal, "{} records no work", description());
  }
  /// Queues the recorded work, with the arguments that it was recorded with. False where memory was
  /// deallocated since, which the work may use: then nothing is queued.
  virtual bool launch(Stream /*stream*/, Graph /*graph*/) { return false; }
  /// Waits until the device has done what was launched.
  virtual void destroy_graph(Graph /*graph*/) {}
  /// What the host queues until `end_range` has this name, a literal, in profilers. Ranges nest.
  virtual void begin_range(const char* name) = 0;
  virtual void end_range() = 0;
  /// Bytes of the device's own memory that are in use, by whomever; 0 where it has none.
  virtual std::size_t device_bytes_in_use() const = 0;
  /// The queue as the device's libraries know it: a cudaStream_t; null on the host.
  virtual void* native_stream(Stream stream) = 0;

  virtual TensorOps& tensor_ops() = 0;
  virtual TransformerOps& transformer_ops() = 0;
  virtual OptimizerOps& optimizer_ops() = 0;
};

}  // namespace mylos
