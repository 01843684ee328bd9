// SPDX-License-Identifier: BSD-3-Clause
// Operations of a mixture of experts (Shazeer et al., "Outrageously large neural networks", 2017; Lepikhin et
// al., "GShard", 2020; Fedus et al., "Switch transformers", 2021). The conventions are those of
// operations.hpp.
//
// Each of the B * T rows of a micro-batch chooses k of E experts. A *pair* is a row and one of its choices;
// its number is row * k + choice. A pair that is not dropped has a place among the *packed rows*: P parts of
// R rows each, of which part p has the rows for the experts p L to (p + 1) L - 1, with L = E / P, in the
// order of experts, sequences and tokens. `offsets` (P, L + 1) int32 divides the rows of a part among its
// experts: those of its expert l are rows offsets[p][l] to offsets[p][l + 1] - 1 of the part, and
// offsets[p][0] is 0. Rows from offsets[p][L] on do not exist: operations neither read nor write them.
//
// After an exchange among P ranks, part p has the rows that rank p sent, and `offsets` divides each part
// among the L experts of this rank. So operations on packed rows take P runs of rows for each of L experts,
// of which w (L, I, O) has the weights. Where all rows are of one rank's own experts, P = 1 and L = E.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/rng.hpp"
#include "core/base/tensor.hpp"
#include "core/ops/access.hpp"
#include "core/ops/step_scalars.hpp"

namespace mylos {

/// How the probabilities of the chosen experts become gates.
enum class RouterKind : std::uint8_t {
  topk_softmax,  ///< softmax over the scores of the chosen experts (Shazeer et al., 2017, eq. 3)
  softmax_topk,  ///< softmax over all scores, not normalised among the chosen (Fedus et al., 2021, eq. 2)
};

/// What is added to a router's logits, in training.
struct RouterNoise {
  enum class Kind : std::uint8_t {
    none,
    normal,   ///< z / E
    learned,  ///< z softplus(noise logit) (Shazeer et al., 2017, eq. 4)
  };
  Kind kind = Kind::none;
  /// z is the normal number of element e = t E + expert of a sample: number e mod 2 of normal_pair(x[0],
  /// x[1]) of counter (e / 2 in two words, sample, step).
  PhiloxKey key{};
  std::int64_t first_sample = 0;
  const StepScalars* scalars = nullptr;  // device memory
};

constexpr std::string_view name_of(RouterKind kind) {
  return kind == RouterKind::topk_softmax ? "topk_softmax" : "softmax_topk";
}
constexpr std::string_view name_of(RouterNoise::Kind kind) {
  return kind == RouterNoise::Kind::none ? "none" : kind == RouterNoise::Kind::normal ? "normal" : "learned";
}

/// logits = x w, in fp32. x (B, T, C), w (C, E), logits (B, T, E) fp32.
struct RouterForward {
  TensorRef x{}, w{}, logits{};

  static constexpr std::string_view name = "router_forward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "w", op.w);
    visit("logits", op.logits, Access::write);
  }
  double flops() const { return 2.0 * static_cast<double>(logits.size() * w.shape[0]); }
};

/// dx = (residual or 0) + scale dlogits wᵀ. dlogits (B, T, E) fp32; residual, dx (B, T, C); dx may share the
/// memory of residual.
struct RouterBackwardInput {
  TensorRef dlogits{}, w{}, residual{}, dx{};
  float scale = 1.0F;

  static constexpr std::string_view name = "router_backward_input";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "dlogits", op.dlogits, "w", op.w, "residual", op.residual);
    visit("dx", op.dx, Access::write);
  }
  static void in_place(auto& op, const auto& visit) { visit(op.dx, op.residual); }
  double flops() const { return 2.0 * static_cast<double>(dlogits.size() * w.shape[0]); }
};

/// dw = xᵀ dlogits; `accumulate` adds to the old content. dw (C, E).
struct RouterBackwardWeight {
  TensorRef x{}, dlogits{}, dw{};
  bool accumulate = false;

  static constexpr std::string_view name = "router_backward_weight";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "dlogits", op.dlogits);
    visit("dw", op.dw, access_of(op.accumulate), op.accumulate);
  }
  double flops() const { return 2.0 * static_cast<double>(dlogits.size() * dw.shape[0]); }
};

/// scores = logits + noise; choices = the k experts with the largest scores, the largest first, of equal
/// scores the lower expert first; gates = what `kind` says. logits, noise_logits, scores (B, T, E) fp32;
/// choices (B, T, k) int32, gates (B, T, k) fp32. Without noise, `scores` is omitted; `noise_logits` is there
/// with learned noise only.
struct RouterChoice {
  TensorRef logits{}, noise_logits{}, scores{}, choices{}, gates{};
  RouterKind kind = RouterKind::topk_softmax;
  RouterNoise noise{};

  static constexpr std::string_view name = "router_choice";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "logits", op.logits, "noise_logits", op.noise_logits);
    visit_all(visit, Access::write, "scores", op.scores, "choices", op.choices, "gates", op.gates);
  }
  double flops() const { return 4.0 * static_cast<double>(logits.size()); }
};

/// Gives the pairs their places. Of the pairs of a sequence that chose an expert, the first `capacity` (all,
/// if it is 0) have one, in the order of tokens, then choices, or, if `by_choice`, of choices, then tokens.
/// choices (B, T, k) int32; loads (B, E) int32 = the pairs of each sequence that chose the expert, with those
/// that are dropped; places (B, T, k) int32 = the pair's packed row, counted over all parts, or -1; pairs (P,
/// R) int32 = the pair of each packed row that exists; offsets (P, L + 1) int32. R must suffice.
struct ExpertPlaces {
  TensorRef choices{}, loads{}, places{}, pairs{}, offsets{};
  std::int64_t capacity = 0;
  bool by_choice = false;

  static constexpr std::string_view name = "expert_places";
  static void operands(auto& op, const auto& visit) {
    visit("choices", op.choices, Access::read);
    visit_all(visit, Access::write, "loads", op.loads, "places", op.places, "pairs", op.pairs, "offsets",
              op.offsets);
  }
  double flops() const { return 0.0; }
};

/// rows[r] = x[pairs[r] / k] for the packed rows that exist. x (B, T, C), pairs (P, R), offsets (P, L + 1),
/// rows (P, R, C); k = `choices`.
struct GatherRows {
  TensorRef x{}, pairs{}, offsets{}, rows{};
  std::int64_t choices = 1;

  static constexpr std::string_view name = "gather_rows";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "pairs", op.pairs, "offsets", op.offsets);
    visit("rows", op.rows, Access::write);
  }
  double flops() const { return 0.0; }
};

/// y[n] = (residual[n] or 0) + sum over j of gates[n, j] rows[places[n, j]]; a dropped pair adds nothing.
/// rows (P, R, C), places (B, T, k) int32, gates (B, T, k) fp32 or empty for ones; residual, y (B, T, C); y
/// may share the memory of residual.
struct CombineRows {
  TensorRef rows{}, places{}, gates{}, residual{}, y{};

  static constexpr std::string_view name = "combine_rows";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "rows", op.rows, "places", op.places, "gates", op.gates, "residual",
              op.residual);
    visit("y", op.y, Access::write);
  }
  static void in_place(auto& op, const auto& visit) { visit(op.y, op.residual); }
  double flops() const { return 2.0 * static_cast<double>(places.size() * y.shape[2]); }
};

/// The backward pass of CombineRows with gates: drows[places[n, j]] = gates[n, j] dy[n], and dgates[n, j] =
/// rows[places[n, j]] . dy[n], 0 for a dropped pair. dy (B, T, C); rows, drows (P, R, C); dgates (B, T, k)
/// fp32; drows may share the memory of rows.
struct CombineRowsBackward {
  TensorRef dy{}, rows{}, places{}, gates{}, drows{}, dgates{};

  static constexpr std::string_view name = "combine_rows_backward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "dy", op.dy, "rows", op.rows, "places", op.places, "gates", op.gates);
    visit_all(visit, Access::write, "drows", op.drows, "dgates", op.dgates);
  }
  static void in_place(auto& op, const auto& visit) { visit(op.drows, op.rows); }
  double flops() const { return 3.0 * static_cast<double>(places.size() * dy.shape[2]); }
};

/// y[r] = x[r] w[l] + bias[l] for each packed row r of expert l; if `activated` is given, activated =
/// gelu(y). x (P, R, I), w (L, I, O), bias (L, O) or empty, offsets (P, L + 1), y and activated (P, R, O).
/// `rows` is how many rows exist if none is dropped, for the count of operations.
struct GroupedLinearForward {
  TensorRef x{}, w{}, bias{}, offsets{}, y{}, activated{};
  std::int64_t rows = 0;

  static constexpr std::string_view name = "grouped_linear_forward";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "w", op.w, "bias", op.bias, "offsets", op.offsets);
    visit_all(visit, Access::write, "y", op.y, "activated", op.activated);
  }
  double flops() const { return 2.0 * static_cast<double>(rows * w.shape[1] * w.shape[2]); }
};

/// dx[r] = dy[r] w[l]ᵀ for each packed row r of expert l, times gelu'(pre[r]) if `pre` is given. dy (P, R,
/// O), pre and dx (P, R, I).
struct GroupedLinearBackwardInput {
  TensorRef dy{}, w{}, offsets{}, pre{}, dx{};
  std::int64_t rows = 0;

  static constexpr std::string_view name = "grouped_linear_backward_input";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "dy", op.dy, "w", op.w, "offsets", op.offsets, "pre", op.pre);
    visit("dx", op.dx, Access::write);
  }
  double flops() const { return 2.0 * static_cast<double>(rows * w.shape[1] * w.shape[2]); }
};

/// dw[l] = sum of x[r]ᵀ dy[r] and dbias[l] = sum of dy[r], over the packed rows r of expert l; 0 if there are
/// none. `accumulate` adds both to the old content. dw (L, I, O), dbias (L, O) or empty.
struct GroupedLinearBackwardWeight {
  TensorRef x{}, dy{}, offsets{}, dw{}, dbias{};
  std::int64_t rows = 0;
  bool accumulate = false;

  static constexpr std::string_view name = "grouped_linear_backward_weight";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "dy", op.dy, "offsets", op.offsets);
    visit("dw", op.dw, access_of(op.accumulate), op.accumulate);
    visit("dbias", op.dbias, access_of(op.accumulate), op.accumulate);
  }
  double flops() const { return 2.0 * static_cast<double>(rows * dw.shape[1] * dw.shape[2]); }
};

/// What a router did, summed over a micro-batch. sums[0] = (accumulate ? sums[0] : 0) + sum over sequences of
/// the balance loss E sum over e of f_e P_e, with f_e = loads[b, e] / (k T) and P_e the mean probability of
/// expert e over the sequence's tokens (Fedus et al., 2021, eq. 4); sums[1] likewise + sum over tokens of
/// logsumexp(logits)² (Zoph et al., "ST-MoE", 2022, eq. 5); sums[2] + the dropped pairs, those of a sequence
/// beyond `capacity` on an expert (0: none); sums[3 + e] + sum over sequences of loads[b, e]. Probabilities
/// are the softmax of `scores`, or of `logits` if `scores` is omitted. logits, scores (B, T, E) fp32, loads
/// (B, E) int32, sums (3 + E) fp32; k = `choices`.
struct RouterStatistics {
  TensorRef logits{}, scores{}, loads{}, sums{};
  std::int64_t choices = 1;
  std::int64_t capacity = 0;
  bool accumulate = false;

  static constexpr std::string_view name = "router_statistics";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "logits", op.logits, "scores", op.scores, "loads", op.loads);
    visit("sums", op.sums, access_of(op.accumulate), op.accumulate);
  }
  double flops() const { return 6.0 * static_cast<double>(logits.size()); }
};

/// The gradient of a router's logits: of the gates, from dgates, and of the losses of RouterStatistics, with
/// factors: loss_scale (balance_scale T sums[0] + z_scale sums[1]). So both scales are a factor of the
/// deck over the tokens of the global batch. The loads have no gradient. logits, noise_logits, scores,
/// dlogits, dnoise_logits (B, T, E) fp32, choices (B, T, k) int32, gates and dgates (B, T, k) fp32, loads (B,
/// E) int32. `noise_logits` and `dnoise_logits` are there with learned noise only.
struct RouterGradient {
  TensorRef logits{}, noise_logits{}, scores{}, choices{}, gates{}, dgates{}, loads{};
  TensorRef dlogits{}, dnoise_logits{};
  RouterKind kind = RouterKind::topk_softmax;
  RouterNoise noise{};
  float balance_scale = 0.0F;
  float z_scale = 0.0F;
  const StepScalars* scalars = nullptr;  // device memory: loss_scale

  static constexpr std::string_view name = "router_gradient";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "logits", op.logits, "noise_logits", op.noise_logits, "scores", op.scores,
              "choices", op.choices, "gates", op.gates, "dgates", op.dgates, "loads", op.loads);
    visit_all(visit, Access::write, "dlogits", op.dlogits, "dnoise_logits", op.dnoise_logits);
  }
  double flops() const { return 10.0 * static_cast<double>(logits.size()); }
};

}  // namespace mylos
