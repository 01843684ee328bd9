// SPDX-License-Identifier: BSD-3-Clause
// Operations that a backend can compute, one record each. A record names the operands, says which of them the
// operation reads, writes or adds to, and counts the floating-point operations.
//
// Conventions. Tensors are row-major and contiguous unless stated otherwise. An operation ignores the old
// content of an operand that it writes; `accumulate` makes it add to the old content instead. Weights and
// activations are in the compute type (fp32, bf16 or fp16), statistics and losses in fp32, gradients of
// weights in fp32 or the compute type. Sums accumulate in fp32 or better, in an order that does not change
// from run to run on the same machine with the same thread count. An omitted operand is an empty TensorRef.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <variant>

#include "core/base/global_index.hpp"
#include "core/base/rng.hpp"
#include "core/base/stochastic_rounding.hpp"
#include "core/base/tensor.hpp"
#include "core/ops/access.hpp"
#include "core/ops/depth_operations.hpp"
#include "core/ops/expert_operations.hpp"
#include "core/ops/grad_guard.hpp"
#include "core/ops/matrix_operations.hpp"
#include "core/ops/step_scalars.hpp"

namespace mylos {

// An operation has
//   name            as in traces, benchmarks and `mylos help`
//   operands(op, visit)  calls visit(name, tensor, access) for each of its tensors, or visit(name, tensor,
//                   access, flag) if `flag` of the record says whether the operation adds to the tensor. `op`
//                   may be const. Device scalars and segments are not operands.
//   in_place(op, visit)  if a result may share the memory of an operand: calls visit(result, operand) for
//                   each such pair
//   flops()         floating-point operations that the result needs, except minor ones such as a bias; an
//                   implementation may execute more
//   compose(run)    if the operation is fused: runs the operations that it combines, for backends without a
//                   kernel for it

/// y[i] = value.
struct Fill {
  TensorRef y{};
  float value = 0.0F;

  static constexpr std::string_view name = "fill";
  static void operands(auto& op, const auto& visit) { visit("y", op.y, Access::write); }
  double flops() const { return 0.0; }
};

/// y[i] = x[i], converted between fp32, bf16 and fp16 if the types differ: rounded to nearest, ties to even;
/// subnormal numbers may become 0. x and y (n) must not overlap.
struct Cast {
  TensorRef x{}, y{};

  static constexpr std::string_view name = "cast";
  static void operands(auto& op, const auto& visit) {
    visit("x", op.x, Access::read);
    visit("y", op.y, Access::write);
  }
  double flops() const { return 0.0; }
};

/// y[i] = a normal random number with mean 0 and standard deviation `stddev`, drawn for element index(i) of
/// the Philox stream `key`; y (n) fp32. Elements 2j and 2j + 1 of the stream are stddev * normal_pair(x[0],
/// x[1]), where x are the words of counter (j, j >> 32, 0, 0).
struct FillNormal {
  TensorRef y{};
  PhiloxKey key{};
  GlobalIndex index{};
  float stddev = 1.0F;

  static constexpr std::string_view name = "fill_normal";
  static void operands(auto& op, const auto& visit) { visit("y", op.y, Access::write); }
  double flops() const { return 0.0; }
};

/// out[0] = (accumulate ? out[0] : 0) + sum of x; x (n) fp32, out (1) fp32.
struct Sum {
  TensorRef x{}, out{};
  bool accumulate = false;

  static constexpr std::string_view name = "sum";
  static void operands(auto& op, const auto& visit) {
    visit("x", op.x, Access::read);
    visit("out", op.out, access_of(op.accumulate), op.accumulate);
  }
  double flops() const { return static_cast<double>(x.size()); }
};

/// out[0] = (accumulate ? out[0] : 0) + factor * sum of x²; x (n) fp32, bf16 or fp16, out (1) fp32. out[0] is
/// not finite if any element of x is not.
struct SumOfSquares {
  TensorRef x{}, out{};
  float factor = 1.0F;
  bool accumulate = false;

  static constexpr std::string_view name = "sum_of_squares";
  static void operands(auto& op, const auto& visit) {
    visit("x", op.x, Access::read);
    visit("out", op.out, access_of(op.accumulate), op.accumulate);
  }
  double flops() const { return 2.0 * static_cast<double>(x.size()); }
};

/// y = x w + bias. x (N, I), w (I, O) row-major or transposed by its strides, bias (O) or empty, y (N, O).
struct LinearForward {
  TensorRef x{}, w{}, bias{}, y{};

  static constexpr std::string_view name = "linear_forward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "w", op.w, "bias", op.bias);
    visit("y", op.y, Access::write);
  }
  double flops() const { return 2.0 * static_cast<double>(y.size() * w.shape[0]); }
};

/// dx = dy wᵀ. dy (N, O), w as in LinearForward, dx (N, I).
struct LinearBackwardInput {
  TensorRef dy{}, w{}, dx{};

  static constexpr std::string_view name = "linear_backward_input";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "dy", op.dy, "w", op.w);
    visit("dx", op.dx, Access::write);
  }
  double flops() const { return 2.0 * static_cast<double>(dx.size() * w.shape[1]); }
};

/// dw = xᵀ dy and dbias = column sums of dy; `accumulate` adds both to the old content. dw (I, O) strided
/// like w; dbias (O) or empty.
struct LinearBackwardWeight {
  TensorRef x{}, dy{}, dw{}, dbias{};
  bool accumulate = false;

  static constexpr std::string_view name = "linear_backward_weight";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "dy", op.dy);
    visit("dw", op.dw, access_of(op.accumulate), op.accumulate);
    visit("dbias", op.dbias, access_of(op.accumulate), op.accumulate);
  }
  double flops() const { return 2.0 * static_cast<double>(x.size() * dw.shape[1]); }
};

/// out[b, t] = wte[tokens[b, t] - first_token] + wpe[position + positions[b] + t]. tokens (B, T) int32; a
/// token without a row in wte contributes zeros. wte (V, C), wpe (S, C) or empty, out (B, T, C); positions
/// (B) int32, or empty for zeros.
struct EmbeddingForward {
  TensorRef tokens{}, wte{}, wpe{}, positions{}, out{};
  std::int64_t position = 0;
  std::int64_t first_token = 0;

  static constexpr std::string_view name = "embedding_forward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "tokens", op.tokens, "wte", op.wte, "wpe", op.wpe, "positions",
              op.positions);
    visit("out", op.out, Access::write);
  }
  double flops() const { return static_cast<double>(out.size()); }
};

/// Adds dout[b, t] to dwte[tokens[b, t] - first_token], if there is such a row, and to dwpe[position + t].
/// dout (B, T, C). A gradient whose accumulate flag is false starts from zero. Deterministic.
struct EmbeddingBackward {
  TensorRef tokens{}, dout{}, dwte{}, dwpe{};
  std::int64_t position = 0;
  std::int64_t first_token = 0;
  bool accumulate_wte = false;
  bool accumulate_wpe = false;

  static constexpr std::string_view name = "embedding_backward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "tokens", op.tokens, "dout", op.dout);
    visit("dwte", op.dwte, access_of(op.accumulate_wte), op.accumulate_wte);
    visit("dwpe", op.dwpe, access_of(op.accumulate_wpe), op.accumulate_wpe);
  }
  double flops() const { return 2.0 * static_cast<double>(dout.size()); }
};

/// y = (x - mean) rstd gamma + beta rowwise, epsilon 1e-5. x, y (N, C); gamma, beta (C); mean, rstd (N) fp32.
struct LayernormForward {
  TensorRef x{}, gamma{}, beta{}, y{}, mean{}, rstd{};

  static constexpr std::string_view name = "layernorm_forward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "gamma", op.gamma, "beta", op.beta);
    visit_all(visit, Access::write, "y", op.y, "mean", op.mean, "rstd", op.rstd);
  }
  double flops() const { return 8.0 * static_cast<double>(x.size()); }
};

/// dx = (residual or 0) + the layernorm's input gradient. dy, x, residual, dx (N, C); dx may share the memory
/// of dy or residual.
struct LayernormBackwardInput {
  TensorRef dy{}, x{}, gamma{}, mean{}, rstd{}, residual{}, dx{};

  static constexpr std::string_view name = "layernorm_backward_input";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "dy", op.dy, "x", op.x, "gamma", op.gamma, "mean", op.mean, "rstd",
              op.rstd, "residual", op.residual);
    visit("dx", op.dx, Access::write);
  }
  static void in_place(auto& op, const auto& visit) {
    visit(op.dx, op.residual);
    visit(op.dx, op.dy);
  }
  double flops() const { return 12.0 * static_cast<double>(x.size()); }
};

/// Computes dgamma (C) and dbeta (C) from dy and x (N, C).
struct LayernormBackwardWeight {
  TensorRef dy{}, x{}, mean{}, rstd{}, dgamma{}, dbeta{};
  bool accumulate = false;

  static constexpr std::string_view name = "layernorm_backward_weight";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "dy", op.dy, "x", op.x, "mean", op.mean, "rstd", op.rstd);
    visit("dgamma", op.dgamma, access_of(op.accumulate), op.accumulate);
    visit("dbeta", op.dbeta, access_of(op.accumulate), op.accumulate);
  }
  double flops() const { return 5.0 * static_cast<double>(x.size()); }
};

/// y = gelu(x), the tanh form of Hendrycks and Gimpel (2016).
struct GeluForward {
  TensorRef x{}, y{};

  static constexpr std::string_view name = "gelu_forward";
  static void operands(auto& op, const auto& visit) {
    visit("x", op.x, Access::read);
    visit("y", op.y, Access::write);
  }
  double flops() const { return 10.0 * static_cast<double>(x.size()); }
};

/// dx = dy gelu'(x); dx may share the memory of dy.
struct GeluBackward {
  TensorRef x{}, dy{}, dx{};

  static constexpr std::string_view name = "gelu_backward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "dy", op.dy);
    visit("dx", op.dx, Access::write);
  }
  static void in_place(auto& op, const auto& visit) { visit(op.dx, op.dy); }
  double flops() const { return 18.0 * static_cast<double>(x.size()); }
};

/// Which elements a dropout layer zeroes. Element e of sample b is dropped if uniform01 of the Philox word (e
/// mod 4) of counter (e / 4 in two words, sample, step) is below `probability`. e is the index of (t, c), or
/// of (h, q, k) for attention, in the whole sample. `sample` = first_sample + b is the sample's index in the
/// global batch. The same elements are dropped in every layout.
struct Dropout {
  float probability = 0.0F;
  PhiloxKey key{};
  std::int64_t first_sample = 0;
  // The indices of the call's elements (t, c) in the whole sample; attention uses AttentionPlace instead.
  GlobalIndex index{};
  const StepScalars* scalars = nullptr;  // device memory
};

/// y = (residual or 0) + dropout(x) / (1 - p), where p = dropout.probability; a plain sum if p = 0. x, y (B,
/// T, C); y may share the memory of x or residual.
struct DropoutAdd {
  TensorRef x{}, residual{}, y{};
  Dropout dropout{};

  static constexpr std::string_view name = "dropout_add";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "residual", op.residual);
    visit("y", op.y, Access::write);
  }
  static void in_place(auto& op, const auto& visit) {
    visit(op.y, op.x);
    visit(op.y, op.residual);
  }
  double flops() const { return 2.0 * static_cast<double>(x.size()); }
};

/// Where the attention probabilities of a call lie in the probabilities (heads, positions, positions) of the
/// whole sample. Dropout uses the indices in the whole sample.
struct AttentionPlace {
  std::int64_t first_head = 0;
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
  std::int64_t positions = 0;  // of the whole sample; read only with dropout

  MYLOS_HOST_DEVICE std::int64_t element(std::int64_t h, std::int64_t q, std::int64_t k) const {
    return ((first_head + h) * positions + first_query + q) * positions + first_key + k;
  }
};

/// Causal attention without the T × T matrix (Dao, 2023), of queries at positions query_offset ..
/// query_offset + Tq - 1 over keys at 0 .. Tk - 1: query i sees key j if j <= query_offset + i. query, key,
/// value and output are strided with unit stride in D.
struct AttentionForward {
  TensorRef query{};   // (B, Tq, H, D) strided
  TensorRef key{};     // (B, Tk, H, D) strided
  TensorRef value{};   // (B, Tk, H, D) strided
  TensorRef output{};  // (B, Tq, H, D) strided
  TensorRef lse{};     // (B, H, Tq) fp32: log of the sum of exp(scale * q.k) over the keys seen
  std::int64_t query_offset = 0;
  float scale = 1.0F;
  Dropout dropout{};  // on the probabilities; e = place.element(h, i, j) for query i and key j of the call
  AttentionPlace place{};

  static constexpr std::string_view name = "attention_forward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "query", op.query, "key", op.key, "value", op.value);
    visit_all(visit, Access::write, "output", op.output, "lse", op.lse);
  }
  /// Returns the floating-point operations of one product of queries and the keys that they see.
  double product_flops() const {
    double pairs = 0.0;
    for (std::int64_t i = 0; i < query.shape[1]; ++i)
      pairs += static_cast<double>(std::min(key.shape[1], query_offset + i + 1));
    return 2.0 * pairs * static_cast<double>(query.shape[0] * query.shape[2] * query.shape[3]);
  }
  double flops() const { return 2.0 * product_flops(); }
};

struct AttentionBackward {
  AttentionForward forward{};  // the forward operation, with the output and lse that it wrote
  TensorRef output_grad{};     // (B, Tq, H, D) strided
  TensorRef query_grad{};      // (B, Tq, H, D) strided
  TensorRef key_grad{};        // (B, Tk, H, D) strided
  TensorRef value_grad{};      // (B, Tk, H, D) strided
  TensorRef delta{};           // (B, H, Tq) fp32: rowwise dot of output and output_grad

  static constexpr std::string_view name = "attention_backward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "query", op.forward.query, "key", op.forward.key, "value",
              op.forward.value, "output", op.forward.output, "lse", op.forward.lse, "output_grad",
              op.output_grad);
    visit_all(visit, Access::write, "query_grad", op.query_grad, "key_grad", op.key_grad, "value_grad",
              op.value_grad);
    visit("delta", op.delta, Access::scratch);
  }
  double flops() const { return 5.0 * forward.product_flops(); }
};

/// Puts the keys and values of new tokens into a cache, in which row r holds those of one text: token t of
/// text b goes to position positions[b] + t of row rows[b]. Tokens beyond the last position are left out. key
/// and value (B, T, H, D) strided with unit stride in D; rows, positions (B) int32, no row twice; keys,
/// values (R, H, S, D).
struct CacheAppend {
  TensorRef key{}, value{}, rows{}, positions{}, keys{}, values{};

  static constexpr std::string_view name = "cache_append";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "key", op.key, "value", op.value, "rows", op.rows, "positions",
              op.positions);
    visit_all(visit, Access::update, "keys", op.keys, "values", op.values);
  }
  double flops() const { return 0.0; }
};

/// Causal attention of new tokens over a cache that holds them already: query t of text b is at position
/// positions[b] + t, at most the last one, and sees positions 0 to its own of row rows[b]. Operands as in
/// CacheAppend; query, output (B, T, H, D) strided with unit stride in D. The result for a query depends on
/// nothing but what it sees: not on B, T, R, S or b.
struct CachedAttention {
  TensorRef query{}, keys{}, values{}, rows{}, positions{}, output{};
  float scale = 1.0F;

  static constexpr std::string_view name = "cached_attention";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "query", op.query, "keys", op.keys, "values", op.values, "rows", op.rows,
              "positions", op.positions);
    visit("output", op.output, Access::write);
  }
  /// As if every query were at the last position.
  double flops() const { return 4.0 * static_cast<double>(query.size() * keys.shape[2]); }
};

/// Statistics of one part of each row of logits, from which the softmax of the whole row is computed. The
/// part starts at token `first_token`. statistics[0][n] = the largest of logits[n, :vocab], [1] = the sum of
/// exp(logit - largest), [2] = the target's logit, [3] = 1 if the target's logit is the largest (the first of
/// equal logits), else 0. If the part lacks the logits that a statistic needs, the statistic is -inf, 0, -inf
/// or 0, respectively. logits (N, Vp) compute type, vocab 0 to Vp, targets (N) int32, statistics (4, N) fp32.
struct SoftmaxStatistics {
  TensorRef logits{}, targets{}, statistics{};
  std::int64_t vocab = 0;
  std::int64_t first_token = 0;

  static constexpr std::int64_t count = 4;
  static constexpr std::string_view name = "softmax_statistics";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "logits", op.logits, "targets", op.targets);
    visit("statistics", op.statistics, Access::write);
  }
  double flops() const { return 2.0 * static_cast<double>(targets.size() * vocab); }
};

/// losses[n] = -log softmax(logits[n, :vocab])[targets[n]]; a negative target gives loss 0 and gradient 0. If
/// `correct` is given, correct[n] = 1 if the target's logit is the largest (the first of equal logits), else
/// 0. If `scalars` is set, the gradient replaces the logits: gradient_scale * scalars->loss_scale * (softmax
/// - onehot), and 0 in columns >= vocab. logits (N, Vp) compute type, targets (N) int32, losses (N) fp32,
/// correct (N) int32 or empty. If the logits are one of P parts, `statistics` (P, 4, N) has the
/// SoftmaxStatistics of all parts, in the order of their tokens.
struct CrossEntropy {
  TensorRef logits{}, targets{}, losses{}, correct{}, statistics{};
  std::int64_t vocab = 0;
  std::int64_t first_token = 0;
  float gradient_scale = 1.0F;
  const StepScalars* scalars = nullptr;  // device memory

  static constexpr std::string_view name = "cross_entropy";
  static void operands(auto& op, const auto& visit) {
    visit("logits", op.logits, op.scalars != nullptr ? Access::update : Access::read);
    visit("targets", op.targets, Access::read);
    visit_all(visit, Access::write, "losses", op.losses, "correct", op.correct);
    visit("statistics", op.statistics, Access::read);
  }
  double flops() const { return 4.0 * static_cast<double>(targets.size() * vocab); }
};

/// pre = x w + bias, y = gelu(pre). x (N, I), w (I, O) and bias (O) as in LinearForward; pre, y (N, O).
struct LinearGeluForward {
  TensorRef x{}, w{}, bias{}, pre{}, y{};

  static constexpr std::string_view name = "linear_gelu_forward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "w", op.w, "bias", op.bias);
    visit_all(visit, Access::write, "pre", op.pre, "y", op.y);
  }
  double flops() const { return 2.0 * static_cast<double>(y.size() * w.shape[0]); }
  void compose(const auto& run) const {
    run(LinearForward{.x = x, .w = w, .bias = bias, .y = pre});
    run(GeluForward{.x = pre, .y = y});
  }
};

/// y = residual + LinearForward of x; residual (N, out).
struct LinearAddForward {
  TensorRef x{}, w{}, bias{}, residual{}, y{};

  static constexpr std::string_view name = "linear_add_forward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "w", op.w, "bias", op.bias, "residual", op.residual);
    visit("y", op.y, Access::write);
  }
  double flops() const { return 2.0 * static_cast<double>(y.size() * w.shape[0]); }
  void compose(const auto& run) const {
    run(LinearForward{.x = x, .w = w, .bias = bias, .y = y});
    run(DropoutAdd{.x = y, .residual = residual, .y = y});
  }
};

/// dpre = (dy wᵀ) gelu'(pre). dy (N, O), w (I, O) as in LinearForward, pre and dpre (N, I).
struct LinearGeluBackwardInput {
  TensorRef dy{}, w{}, pre{}, dpre{};

  static constexpr std::string_view name = "linear_gelu_backward_input";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "dy", op.dy, "w", op.w, "pre", op.pre);
    visit("dpre", op.dpre, Access::write);
  }
  double flops() const { return 2.0 * static_cast<double>(dpre.size() * w.shape[1]); }
  void compose(const auto& run) const {
    run(LinearBackwardInput{.dy = dy, .w = w, .dx = dpre});
    run(GeluBackward{.x = pre, .dy = dpre, .dx = dpre});
  }
};

/// sum = DropoutAdd of x and residual, y = LayernormForward of sum. x, residual, sum (B, T, C), y (B * T, C);
/// sum may share the memory of x or residual.
struct DropoutAddLayernorm {
  TensorRef x{}, residual{}, sum{}, gamma{}, beta{}, y{}, mean{}, rstd{};
  Dropout dropout{};

  static constexpr std::string_view name = "dropout_add_layernorm";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "residual", op.residual);
    visit("sum", op.sum, Access::write);
    visit_all(visit, Access::read, "gamma", op.gamma, "beta", op.beta);
    visit_all(visit, Access::write, "y", op.y, "mean", op.mean, "rstd", op.rstd);
  }
  static void in_place(auto& op, const auto& visit) {
    visit(op.sum, op.x);
    visit(op.sum, op.residual);
  }
  double flops() const { return 10.0 * static_cast<double>(x.size()); }
  void compose(const auto& run) const {
    run(DropoutAdd{.x = x, .residual = residual, .y = sum, .dropout = dropout});
    run(LayernormForward{.x = sum.reshaped({mean.size(), gamma.size()}),
                         .gamma = gamma,
                         .beta = beta,
                         .y = y,
                         .mean = mean,
                         .rstd = rstd});
  }
};

/// LayernormBackwardWeight and LayernormBackwardInput of the same dy and x (N, C). dx may share the memory of
/// dy or residual.
struct LayernormBackward {
  TensorRef dy{}, x{}, gamma{}, mean{}, rstd{}, residual{}, dx{}, dgamma{}, dbeta{};
  bool accumulate = false;

  static constexpr std::string_view name = "layernorm_backward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "dy", op.dy, "x", op.x, "gamma", op.gamma, "mean", op.mean, "rstd",
              op.rstd, "residual", op.residual);
    visit("dx", op.dx, Access::write);
    visit("dgamma", op.dgamma, access_of(op.accumulate), op.accumulate);
    visit("dbeta", op.dbeta, access_of(op.accumulate), op.accumulate);
  }
  static void in_place(auto& op, const auto& visit) {
    visit(op.dx, op.residual);
    visit(op.dx, op.dy);
  }
  double flops() const { return 17.0 * static_cast<double>(x.size()); }
  void compose(const auto& run) const {
    run(LayernormBackwardWeight{.dy = dy,
                                .x = x,
                                .mean = mean,
                                .rstd = rstd,
                                .dgamma = dgamma,
                                .dbeta = dbeta,
                                .accumulate = accumulate});
    run(LayernormBackwardInput{
        .dy = dy, .x = x, .gamma = gamma, .mean = mean, .rstd = rstd, .residual = residual, .dx = dx});
  }
};

/// A range of a flat buffer that belongs to one parameter.
struct Segment {
  std::int64_t begin = 0;  // elements
  std::int64_t end = 0;
  float decay = 0.0F;             // 1 or 0, multiplies the weight decay
  StochasticRounding rounding{};  // its `index` counts from `begin`; used if the weights have no master
};

/// Returns the number of the segment that holds `element`.
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

/// Visits the weights of an optimizer's step, of which `master` may be the same memory.
void visit_weights(auto& op, const auto& visit) {
  const bool is_own_master = op.master.data == op.weights.data;
  const bool in_place = !op.previous && (!op.master || is_own_master);
  visit("weights", op.weights, access_of(in_place));
  visit("master", op.master, op.previous && is_own_master ? Access::write : Access::update);
  visit("previous", op.previous, Access::read);
}

/// A step of AdamW (Loshchilov and Hutter, 2019) on n elements of a flat buffer; changes nothing if
/// scalars->skip is set.
struct AdamWStep {
  TensorRef weights{};   // (n) compute type; set to the rounded master, or updated if there is no master
  TensorRef gradient{};  // (n) fp32 or compute type
  /// (n) fp32, updated. The same memory as `weights` if these are fp32. Empty if bf16 or fp16 weights have no
  /// master: they are then updated in fp32 and rounded stochastically, as their segment says.
  TensorRef master{};
  /// (n) compute type: another version of the weights, which the update reads instead of those that it
  /// writes. A step that is skipped copies it. Empty: the update works in place.
  TensorRef previous{};
  TensorRef first_moment{};           // (n) fp32, updated
  TensorRef second_moment{};          // (n) fp32, updated
  const Segment* segments = nullptr;  // device memory; they cover [0, n) in order, without gaps
  int num_segments = 0;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  float weight_decay = 0.1F;
  const StepScalars* scalars = nullptr;  // device memory: step, learning_rate, clip_factor, skip

  static constexpr std::string_view name = "adamw";
  static void operands(auto& op, const auto& visit) {
    visit_weights(op, visit);
    visit("gradient", op.gradient, Access::read);
    visit_all(visit, Access::update, "first_moment", op.first_moment, "second_moment", op.second_moment);
  }
  double flops() const { return 16.0 * static_cast<double>(weights.size()); }
};

/// A step of gradient descent with momentum (Sutskever et al., 2013) on n elements of a flat buffer: momentum
/// = momentum_decay * momentum + clipped gradient + decay * weight; weight -= learning_rate * momentum. The
/// other members are as in AdamWStep.
struct SgdStep {
  TensorRef weights{}, gradient{}, master{}, previous{};
  TensorRef momentum{};  // (n) fp32, updated
  const Segment* segments = nullptr;
  int num_segments = 0;
  float momentum_decay = 0.9F;
  float weight_decay = 0.1F;
  const StepScalars* scalars = nullptr;

  static constexpr std::string_view name = "sgd";
  static void operands(auto& op, const auto& visit) {
    visit_weights(op, visit);
    visit("gradient", op.gradient, Access::read);
    visit("momentum", op.momentum, Access::update);
  }
  double flops() const { return 6.0 * static_cast<double>(weights.size()); }
};

/// Muon's step on n elements of matrices (Jordan, 2024; Liu et al., 2025): weight = (1 - rate weight_decay)
/// weight - rate scale direction, with rate = rate_factor learning_rate. The other members are as in
/// AdamWStep.
struct MuonStep {
  TensorRef weights{}, gradient{}, master{}, previous{};  // gradient (n) fp32: the direction
  const Segment* segments = nullptr;
  int num_segments = 0;
  float rate_factor = 1.0F;
  float scale = 1.0F;
  float weight_decay = 0.1F;
  const StepScalars* scalars = nullptr;

  static constexpr std::string_view name = "muon";
  static void operands(auto& op, const auto& visit) {
    visit_weights(op, visit);
    visit("gradient", op.gradient, Access::read);
  }
  double flops() const { return 5.0 * static_cast<double>(weights.size()); }
};

/// Runs `guard_update` (core/ops/grad_guard.hpp) on device memory.
struct GuardStep {
  GuardConfig config{};
  TensorRef input{};  // (2) fp32: a GuardInput
  TensorRef state{};  // (sizeof(GuardState)) uint8, updated: a GuardState
  StepScalars* scalars = nullptr;

  static constexpr std::string_view name = "guard_step";
  static void operands(auto& op, const auto& visit) {
    visit("input", op.input, Access::read);
    visit("state", op.state, Access::update);
  }
  double flops() const { return 0.0; }
};

/// An ordered list of operations.
template <class... Ops>
struct OperationList {
  static constexpr std::size_t count = sizeof...(Ops);
  static constexpr std::array<std::string_view, count> names = {Ops::name...};
  using Any = std::variant<Ops...>;

  template <class Op>
  static constexpr std::size_t index_of() {
    static_assert((std::is_same_v<Op, Ops> || ...), "not in the list of operations");
    std::size_t index = 0;
    static_cast<void>(((std::is_same_v<Op, Ops> || (++index, false)) || ...));
    return index;
  }
  /// Calls visit.template operator()<Op>() for each operation.
  static void for_each(const auto& visit) { (visit.template operator()<Ops>(), ...); }
};

template <class... First, class... Second>
OperationList<First..., Second...> operator+(OperationList<First...>, OperationList<Second...>) {
  return {};
}

/// All operations. A new one needs a record above, its name here and, unless it is fused, a kernel in the
/// root backend.
using Operations = OperationList<
    Fill, Cast, FillNormal, Sum, SumOfSquares, LinearForward, LinearBackwardInput, LinearBackwardWeight,
    EmbeddingForward, EmbeddingBackward, LayernormForward, LayernormBackwardInput, LayernormBackwardWeight,
    GeluForward, GeluBackward, DropoutAdd, AttentionForward, AttentionBackward, CacheAppend, CachedAttention,
    SoftmaxStatistics, CrossEntropy, LinearAddForward, LinearGeluForward, LinearGeluBackwardInput,
    DropoutAddLayernorm, LayernormBackward, AdamWStep, SgdStep, GuardStep, RouterForward, RouterBackwardInput,
    RouterBackwardWeight, RouterChoice, ExpertPlaces, GatherRows, CombineRows, CombineRowsBackward,
    GroupedLinearForward, GroupedLinearBackwardInput, GroupedLinearBackwardWeight, RouterStatistics,
    RouterGradient, TopTokens, PositiveTokens, Subtract, DepthPredictorLoss, MatrixProduct, ScaledSum,
    NormaliseMatrices, NesterovMomentum, CopyBlocks, MuonStep>;

/// Returns a hash (after FNV-1a) of the names of the operations, their order and the sizes of their records.
template <class... Ops>
constexpr std::uint64_t key_of(OperationList<Ops...> /*operations*/) {
  std::uint64_t key = 14695981039346656037ULL;
  const auto add = [&](std::uint64_t value) { key = (key ^ value) * 1099511628211ULL; };
  const auto add_operation = [&](std::string_view name, std::size_t size) {
    for (const char c : name) add(static_cast<std::uint64_t>(c));
    add(size);
  };
  (add_operation(Ops::name, sizeof(Ops)), ...);
  return key;
}

template <class Op>
concept Fused = requires(const Op& op) {
  op.compose([](const auto&) {});
};

}  // namespace mylos
