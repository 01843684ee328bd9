// SPDX-License-Identifier: BSD-3-Clause
// Operations of optimizers that update whole matrices: products of stacks of matrices, and what brings the
// matrices together. The conventions are those of operations.hpp.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/dtype.hpp"
#include "core/base/tensor.hpp"
#include "core/ops/access.hpp"
#include "core/ops/step_scalars.hpp"

namespace mylos {

/// z[i] = x[i] y[i] for each of B pairs of matrices, summed in fp32. x (B, m, k), or (B, k, m) if
/// `x_transposed`; y (B, k, n), or (B, n, k) if `y_transposed`; both fp32, bf16 or fp16; z (B, m, n) fp32. x
/// and y may be the same tensor.
struct MatrixProduct {
  TensorRef x{}, y{}, z{};
  bool x_transposed = false, y_transposed = false;

  static constexpr std::string_view name = "matrix_product";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "y", op.y);
    visit("z", op.z, Access::write);
  }
  std::int64_t inner() const { return x.shape[x_transposed ? 1 : 2]; }
  double flops() const { return 2.0 * static_cast<double>(z.size() * inner()); }
};

/// z = a x + b y, all (n) fp32; z may be x or y.
struct ScaledSum {
  TensorRef x{}, y{}, z{};
  float a = 1.0F, b = 1.0F;

  static constexpr std::string_view name = "scaled_sum";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "x", op.x, "y", op.y);
    visit("z", op.z, access_of(op.z.data == op.x.data || op.z.data == op.y.data));
  }
  double flops() const { return 3.0 * static_cast<double>(z.size()); }
};

/// Divides each of B matrices by its Frobenius norm, or by `least` if that is larger; x (B, n) fp32, updated.
struct NormaliseMatrices {
  TensorRef x{};
  float least = 1e-7F;

  static constexpr std::string_view name = "normalise_matrices";
  static void operands(auto& op, const auto& visit) { visit("x", op.x, Access::update); }
  double flops() const { return 3.0 * static_cast<double>(x.size()); }
};

/// Nesterov's momentum as in Muon (Jordan, 2024): with the clipped gradient g, momentum = decay momentum + g;
/// direction = decay momentum + g. If scalars->skip is set, the momentum does not change and the direction is
/// 0.
struct NesterovMomentum {
  TensorRef gradient{};   // (n) fp32, bf16 or fp16
  TensorRef momentum{};   // (n) fp32, updated
  TensorRef direction{};  // (n) fp32
  float decay = 0.95F;
  const StepScalars* scalars = nullptr;  // device memory: clip_factor, skip

  static constexpr std::string_view name = "nesterov_momentum";
  static void operands(auto& op, const auto& visit) {
    visit("gradient", op.gradient, Access::read);
    visit("momentum", op.momentum, Access::update);
    visit("direction", op.direction, Access::write);
  }
  double flops() const { return 5.0 * static_cast<double>(direction.size()); }
};

/// A block of a matrix that CopyBlocks copies: `rows` rows of `columns` elements. Row r is read from element
/// from + r from_pitch, and written at to + r to_pitch.
struct CopiedBlock {
  std::int64_t first_row = 0;  // the rows of the blocks before it
  std::int64_t rows = 0, columns = 0;
  std::int64_t from = 0, from_pitch = 0;
  std::int64_t to = 0, to_pitch = 0;
  bool is_from_other = false;  // reads `other` instead of `from`
};

/// Copies blocks from `from` and `other` to `to`, which they cover disjointly and completely. All fp32;
/// `other` may be empty.
struct CopyBlocks {
  TensorRef from{}, other{}, to{};
  const CopiedBlock* blocks = nullptr;  // device memory
  int num_blocks = 0;
  std::int64_t num_rows = 0;  // of all blocks

  static constexpr std::string_view name = "copy_blocks";
  static void operands(auto& op, const auto& visit) {
    visit_all(visit, Access::read, "from", op.from, "other", op.other);
    visit("to", op.to, Access::write);
  }
  double flops() const { return 0.0; }
};

}  // namespace mylos
