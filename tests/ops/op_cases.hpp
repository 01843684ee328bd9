// SPDX-License-Identifier: BSD-3-Clause
// The operation cases: one table for the correctness test, the gradient check, the label test and the
// benchmark.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/ops/compute_backend.hpp"

namespace mylos {

enum class Op : std::uint8_t {
  fill,
  cast,
  fill_normal,
  sum,
  sum_of_squares,
  linear_forward,
  linear_backward_input,
  linear_backward_weight,
  embedding_forward,
  embedding_backward,
  layernorm_forward,
  layernorm_backward_input,
  layernorm_backward_weight,
  gelu_forward,
  gelu_backward,
  dropout_add,
  attention_forward,
  attention_backward,
  cross_entropy,
  linear_gelu_forward,
  linear_gelu_backward_input,
  dropout_add_layernorm,
  adamw,
  guard_step,
};

std::string_view name_of(Op op);

/// The model of the full-size cases: GPT-2 124M, 4 × 256 tokens.
struct FullSize {
  static constexpr std::int64_t rows = 1024, width = 768, layers = 12, padded_vocab = 50304;
};

enum class Role : std::uint8_t {
  input,      ///< read; uniform in [low, high), whole numbers where the type is an integer
  derived,    ///< read; what the forward operation leaves (output, lse, mean, rstd)
  written,    ///< its old content is ignored
  updated,    ///< its old content, uniform in [low, high), counts
  workspace,  ///< any content, before and after
};

/// One tensor of a case: a view without memory. Views that name the same storage share it.
struct Operand {
  std::string name;
  Role role = Role::input;
  TensorRef view;
  double low = 0.0;
  double high = 0.0;
  double tolerance = 0.0;  ///< largest relative error of a result; 0 for "exact"
  double floor = 0.0;      ///< see oracle::relative_error
  std::string storage;
  std::int64_t offset = 0;  ///< elements from the start of the storage

  bool is_result() const { return role == Role::written || role == Role::updated; }
};

/// One call of one operation. Arguments that an operation does not have stay at their defaults.
struct OpCase {
  Op op = Op::fill;
  bool full_size = false;  ///< of the model FullSize: measured, too large for the oracle
  std::string detail{};
  std::vector<Operand> operands{};

  bool accumulate = false;
  bool accumulate_second = false;  ///< wpe of embedding_backward
  bool write_gradient = true;
  float scale = 1.0F;         ///< value, standard deviation, softmax scale or gradient scale
  std::int64_t position = 0;  ///< position or query offset
  GlobalIndex index{};        ///< of normal numbers and dropout
  AttentionPlace place{};
  std::int64_t vocab = 0;
  float dropout = 0.0F;
  StepScalars scalars{};
  std::vector<Segment> segments{};

  double flops = 0.0;
  double bytes = 0.0;  ///< that must at least be read and written

  /// "linear_forward/small/fp32_N7_I25_O33"
  std::string name() const;
  /// The operand of this name, or null.
  const Operand* find(std::string_view operand) const;
};

/// The dropout of a case; `scalars` is the device's copy of the case's.
Dropout dropout_of(const OpCase& c, const StepScalars* scalars);

/// What every adamw case has: the coefficients.
AdamWArgs adamw_coefficients();

const std::vector<OpCase>& op_cases();

}  // namespace mylos
