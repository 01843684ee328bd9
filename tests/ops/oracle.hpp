// SPDX-License-Identifier: BSD-3-Clause
// The operations in fp64, written for reading: the reference that the backends are compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/ops/compute_backend.hpp"

namespace mylos::oracle {

/// A dense row-major tensor in fp64; one without a shape is absent (an empty bias, no residual).
struct Array {
  std::vector<std::int64_t> shape;
  std::vector<double> values;

  Array() = default;
  explicit Array(std::vector<std::int64_t> shape_);

  explicit operator bool() const { return !shape.empty(); }
  std::int64_t dim(std::size_t i) const { return shape[i]; }
  std::int64_t size() const { return static_cast<std::int64_t>(values.size()); }
  double& operator[](std::int64_t i) { return values[static_cast<std::size_t>(i)]; }
  double operator[](std::int64_t i) const { return values[static_cast<std::size_t>(i)]; }
};

/// ‖a − b‖₂ / ‖b‖₂; 0 if a = b, otherwise infinite if the quotient is not finite. `floor` replaces a smaller
/// root mean square of `b`, for results that are zero except for rounding.
double relative_error(const Array& a, const Array& b, double floor = 0.0);

/// The elements of the normal stream `key` at index(0), index(1), ..., index(n - 1).
Array fill_normal(std::int64_t n, PhiloxKey key, const GlobalIndex& index, double stddev);

Array linear_forward(const Array& x, const Array& w, const Array& bias);
Array linear_backward_input(const Array& dy, const Array& w);
void linear_backward_weight(const Array& x, const Array& dy, bool accumulate, Array& dw, Array& dbias);

/// wte and dwte hold the rows of `first_token` and the tokens after it.
Array embedding_forward(const Array& tokens, std::int64_t first_token, const Array& wte, const Array& wpe,
                        std::int64_t position, const Array& positions = {});
void embedding_backward(const Array& tokens, std::int64_t first_token, const Array& dout,
                        std::int64_t position, Array& dwte, bool accumulate_wte, Array& dwpe,
                        bool accumulate_wpe);

Array layernorm_forward(const Array& x, const Array& gamma, const Array& beta, Array& mean, Array& rstd);
Array layernorm_backward_input(const Array& dy, const Array& x, const Array& gamma, const Array& mean,
                               const Array& rstd, const Array& residual);
void layernorm_backward_weight(const Array& dy, const Array& x, const Array& mean, const Array& rstd,
                               bool accumulate, Array& dgamma, Array& dbeta);

Array gelu_forward(const Array& x);
Array gelu_backward(const Array& x, const Array& dy);

/// Whether element `e` of `sample` is kept at `step`, as the comment on Dropout defines it.
bool dropout_keeps(const Dropout& dropout, std::int64_t step, std::int64_t sample, std::int64_t e);

/// `dropout.scalars` is not read; the step is passed by value.
Array dropout_add(const Array& x, const Array& residual, const Dropout& dropout, std::int64_t step);

/// The inputs of attention in both directions.
struct AttentionInput {
  Array query;  // (B, Tq, H, D)
  Array key;    // (B, Tk, H, D)
  Array value;  // (B, Tk, H, D)
  std::int64_t query_offset = 0;
  double scale = 1.0;
  Dropout dropout;
  AttentionPlace place;
  std::int64_t step = 0;
};

void attention_forward(const AttentionInput& in, Array& output, Array& lse);

struct AttentionGradients {
  Array query;
  Array key;
  Array value;
};

/// Takes `output` and `lse` as the forward pass stored them.
AttentionGradients attention_backward(const AttentionInput& in, const Array& output, const Array& lse,
                                      const Array& output_grad);

/// Puts `added` (B, T, H, D), keys or values, into the cache (R, H, S, D).
void cache_append(const Array& added, const Array& rows, const Array& positions, Array& cache);

/// Returns (B, T, H, D).
Array cached_attention(const Array& query, const Array& keys, const Array& values, const Array& rows,
                       const Array& positions, double scale);

/// Returns (4, N). All targets must lie in this part of the vocabulary.
Array softmax_statistics(const Array& logits, const Array& targets, std::int64_t vocab,
                         std::int64_t first_token);
/// Returns the gradient of gradient_scale * sum of losses, of the shape of `logits`.
Array cross_entropy(const Array& logits, const Array& targets, std::int64_t vocab, double gradient_scale,
                    Array& losses, Array& correct);

/// Reads the four coefficients of `args` and nothing else.
void adamw(const AdamWStep& args, const StepScalars& scalars, const std::vector<Segment>& segments,
           const Array& gradient, Array& master, Array& first_moment, Array& second_moment);

/// Reads the two coefficients of `args`.
void sgd(const SgdStep& args, const StepScalars& scalars, const std::vector<Segment>& segments,
         const Array& gradient, Array& master, Array& momentum);

/// Rounds each value to its lower or its upper neighbour in bf16 or fp16.
void round_stochastically(const std::vector<Segment>& segments, std::int64_t step, DType dtype,
                          Array& values);

}  // namespace mylos::oracle
