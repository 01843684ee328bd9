// SPDX-License-Identifier: BSD-3-Clause
// Operations of a mixture of depths (Raposo et al., "Mixture-of-depths", 2024), in which a block processes
// some tokens of each sequence. The conventions are those of operations.hpp.
//
// The tokens that a block takes are *packed*: each of B sequences has K packed rows, and its tokens fill them
// from the first one in their order. They travel by GatherRows and CombineRows with one choice and one part,
// to which all packed rows belong.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/tensor.hpp"
#include "core/ops/access.hpp"
#include "core/ops/step_scalars.hpp"

namespace mylos {

/// Takes, of each sequence, the K tokens with the largest scores, of equal scores the earlier ones (Raposo et
/// al., 2024, section 3.3). scores (B, T, 1) fp32; places (B, T, 1) int32 = the token's packed row, counted
/// over all sequences, or -1; pairs (1, B K) int32 = the token of each packed row, counted likewise; offsets
/// (1, 2) int32 = 0, B K.
struct TopTokens {
  TensorRef scores{}, places{}, pairs{}, offsets{};

  static constexpr std::string_view name = "top_tokens";
  static void operands(auto& op, const auto& visit) {
    visit("scores", op.scores, Access::read);
    visit_all(visit, Access::write, "places", op.places, "pairs", op.pairs, "offsets", op.offsets);
  }
  double flops() const { return 0.0; }
};

/// Takes, of each sequence, the tokens with a score above 0. scores (B, T, 1) fp32, bf16 or fp16; places,
/// pairs and offsets as in TopTokens, with K = T. Packed rows that no token fills stand for the sequence's
/// first token, so that they hold numbers.
///
/// For texts in a cache, of which `scores` has the new tokens: token t of text b is at position positions[b]
/// + t of row rows[b], and taken[r, p] is the number of tokens that row r took before position p. Reads it at
/// positions[b], where it is 0 if the position is 0, into own_positions[b], and sets it after each new token
/// that is not beyond position S.
/// rows, positions, own_positions (B) int32, taken (R, S + 1) int32; all four may be omitted.
struct PositiveTokens {
  TensorRef scores{}, rows{}, positions{};
  TensorRef taken{}, places{}, pairs{}, offsets{}, own_positions{};

  static constexpr std::string_view name = "positive_tokens";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "scores", op.scores, "rows", op.rows, "positions", op.positions);
    visit("taken", op.taken, Access::update);
    visit_all(visit, Access::write, "places", op.places, "pairs", op.pairs, "offsets", op.offsets,
              "own_positions", op.own_positions);
  }
  double flops() const { return 0.0; }
};

/// y = a - b, all (n) of one type; y may share the memory of a.
struct Subtract {
  TensorRef a{}, b{}, y{};

  static constexpr std::string_view name = "subtract";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "a", op.a, "b", op.b);
    visit("y", op.y, Access::write);
  }
  static void in_place(auto& op, const auto& visit) { visit(op.y, op.a); }
  double flops() const { return static_cast<double>(y.size()); }
};

/// The binary cross-entropy of a predictor's logits q (B, T, 1) and of which tokens were taken (those with
/// places (B, T, 1) int32 >= 0): dlogits = loss_scale scale (sigmoid(q) - taken), of the type of q. Of all
/// tokens, sums[0] = (accumulate ? sums[0] : 0) + cross-entropy, sums[1] likewise + the number with q > 0,
/// sums[2] + the number for which q > 0 says whether they were taken. sums (3) fp32.
struct DepthPredictorLoss {
  TensorRef logits{}, places{}, dlogits{}, sums{};
  float scale = 1.0F;
  const StepScalars* scalars = nullptr;  // device memory: loss_scale
  bool accumulate = false;

  static constexpr std::string_view name = "depth_predictor_loss";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "logits", op.logits, "places", op.places);
    visit("dlogits", op.dlogits, Access::write);
    visit("sums", op.sums, access_of(op.accumulate), op.accumulate);
  }
  double flops() const { return 6.0 * static_cast<double>(logits.size()); }
};

}  // namespace mylos
