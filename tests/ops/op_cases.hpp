// SPDX-License-Identifier: BSD-3-Clause
// The operation cases: one table for the correctness test, the gradient check, the label test and the
// benchmark.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/ops/compute_backend.hpp"

namespace mylos {

/// In the order of `Operations`.
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
  cache_append,
  cached_attention,
  softmax_statistics,
  cross_entropy,
  linear_add_forward,
  linear_gelu_forward,
  linear_gelu_backward_input,
  dropout_add_layernorm,
  layernorm_backward,
  adamw,
  sgd,
  guard_step,
  router_forward,
  router_backward_input,
  router_backward_weight,
  router_choice,
  expert_places,
  gather_rows,
  combine_rows,
  combine_rows_backward,
  grouped_linear_forward,
  grouped_linear_backward_input,
  grouped_linear_backward_weight,
  router_statistics,
  router_gradient,
  top_tokens,
  positive_tokens,
  subtract,
  depth_predictor_loss,
  matrix_product,
  scaled_sum,
  normalise_matrices,
  nesterov_momentum,
  copy_blocks,
  muon,
};

static_assert(static_cast<std::size_t>(Op::muon) + 1 == Operations::count);

constexpr std::string_view name_of(Op op) {
  return Operations::names[static_cast<std::size_t>(op)];
}

/// Whether the operation is an optimizer's step.
constexpr bool is_step(Op op) {
  return op == Op::adamw || op == Op::sgd || op == Op::muon;
}

/// The model of the full-size cases: GPT-2 124M, 4 × 256 tokens.
struct FullSize {
  static constexpr std::int64_t rows = 1024, width = 768, layers = 12, padded_vocab = 50304;
};

enum class Role : std::uint8_t {
  input,    ///< read; uniform in [low, high), whole numbers if the type is an integer
  derived,  ///< read; results of earlier operations (output, lse, mean, rstd, scores, choices, gates, loads)
  written,  ///< its old content is ignored
  updated,  ///< its old content, uniform in [low, high), is used
  workspace,  ///< any content, before and after
};

/// One tensor of a case: a view without memory. Views that name the same storage share it.
struct Operand {
  std::string name;
  Role role = Role::input;
  TensorRef view;
  double low = 0.0;
  double high = 0.0;
  double tolerance = 0.0;  ///< largest relative error of a result; 0: exact
  double floor = 0.0;      ///< see oracle::relative_error
  std::string storage;
  std::int64_t offset = 0;  ///< elements from the start of the storage
  bool packed = false;      ///< packed rows (P, R, ...): part p has the first OpCase::part_rows[p]

  bool is_result() const { return role == Role::written || role == Role::updated; }
};

/// One call of one operation. Arguments that an operation does not have stay at their defaults.
struct OpCase {
  Op op = Op::fill;
  bool full_size = false;  ///< of the model FullSize: measured, too large for the oracle
  std::string detail{};
  std::vector<Operand> operands{};

  bool accumulate = false;
  bool accumulate_second = false;  ///< for wpe in embedding_backward
  bool write_gradient = true;
  /// Value, standard deviation, factor, softmax scale, gradient scale, first factor, least norm or scale of
  /// the direction.
  float scale = 1.0F;
  float second_scale = 1.0F;  ///< second factor or factor of the learning rate
  std::int64_t position = 0;  ///< position or query offset
  GlobalIndex index{};        ///< of normal numbers and dropout
  AttentionPlace place{};
  std::int64_t vocab = 0;
  std::int64_t first_token = 0;  ///< for a part of the vocabulary
  float dropout = 0.0F;
  std::int64_t choices = 1;  ///< of experts, by each token
  std::int64_t capacity = 0;
  bool by_choice = false;
  std::int64_t rows = 0;  ///< packed rows that exist
  RouterKind router = RouterKind::topk_softmax;
  RouterNoise::Kind noise = RouterNoise::Kind::none;
  float balance_scale = 0.0F;
  float z_scale = 0.0F;
  StepScalars scalars{};
  std::vector<Segment> segments{};
  bool x_transposed = false;
  bool y_transposed = false;
  std::vector<CopiedBlock> blocks{};
  /// The values of operands that are not drawn, such as positions in a cache.
  std::vector<std::pair<std::string, std::vector<std::int32_t>>> integers{};
  std::vector<std::int64_t> part_rows{};  ///< how many packed rows of each part exist

  double flops = 0.0;  ///< of the operation
  double bytes = 0.0;  ///< the least that must be read and written

  /// "linear_forward/small/fp32_N7_I25_O33"
  std::string name() const;
  /// The operand of this name, or null.
  const Operand* find(std::string_view operand) const;
};

/// The dropout of a case; `scalars` is the device's copy of the case's scalars, or null for the oracle.
Dropout dropout_of(const OpCase& c, const StepScalars* scalars);
/// The noise of a case's router, likewise.
RouterNoise noise_of(const OpCase& c, const StepScalars* scalars);

/// The arguments other than tensors that operations take by address.
struct CaseMemory {
  StepScalars* scalars = nullptr;
  GuardInput* guard_input = nullptr;
  GuardState* guard_state = nullptr;
  const Segment* segments = nullptr;
  const CopiedBlock* blocks = nullptr;
};

/// Calls visit(record) with the operation of a case. tensor(name) gives its tensors.
template <class Tensor, class Visit>
void with_operation(const OpCase& c, const Tensor& tensor, const CaseMemory& memory, const Visit& visit) {
  std::size_t index = 0;
  Operations::for_each([&]<class Record>() {
    if (index++ != static_cast<std::size_t>(c.op)) return;
    Record record;
    if constexpr (std::is_same_v<Record, GuardStep>) {
      record.input = {memory.guard_input, DType::fp32, {2}};
      record.state = {memory.guard_state, DType::uint8, {sizeof(GuardState)}};
    } else {
      Record::operands(record, [&](const char* name, TensorRef& operand, Access /*access*/,
                                   const auto&... /*flag*/) { operand = tensor(name); });
    }
    if constexpr (requires { record.accumulate; }) record.accumulate = c.accumulate;
    if constexpr (requires { record.position; }) record.position = c.position;
    if constexpr (requires { record.index; }) record.index = c.index;
    if constexpr (requires { record.first_token; }) record.first_token = c.first_token;
    if constexpr (requires { record.vocab; }) record.vocab = c.vocab;
    if constexpr (requires { record.dropout; }) record.dropout = dropout_of(c, memory.scalars);
    if constexpr (requires { record.scalars; }) record.scalars = memory.scalars;
    if constexpr (requires { requires std::is_arithmetic_v<decltype(record.choices)>; })
      record.choices = c.choices;
    if constexpr (requires { record.capacity; }) record.capacity = c.capacity;
    if constexpr (requires { record.by_choice; }) record.by_choice = c.by_choice;
    if constexpr (requires { requires std::is_arithmetic_v<decltype(record.rows)>; }) record.rows = c.rows;
    if constexpr (requires { record.noise; }) {
      record.kind = c.router;
      record.noise = noise_of(c, memory.scalars);
    }
    if constexpr (requires { record.z_scale; }) {
      record.balance_scale = c.balance_scale;
      record.z_scale = c.z_scale;
    }
    if constexpr (std::is_same_v<Record, Fill>) record.value = c.scale;
    if constexpr (std::is_same_v<Record, FillNormal>) {
      record.key = stream_key(1234, "normal");
      record.stddev = c.scale;
    }
    if constexpr (std::is_same_v<Record, SumOfSquares>) record.factor = c.scale;
    if constexpr (std::is_same_v<Record, RouterBackwardInput>) record.scale = c.scale;
    if constexpr (std::is_same_v<Record, DepthPredictorLoss>) record.scale = c.scale;
    if constexpr (std::is_same_v<Record, EmbeddingBackward>) {
      record.accumulate_wte = c.accumulate;
      record.accumulate_wpe = c.accumulate_second;
    }
    const auto set_attention = [&](AttentionForward& forward) {
      forward.query_offset = c.position;
      forward.scale = c.scale;
      forward.dropout = dropout_of(c, memory.scalars);
      forward.place = c.place;
    };
    if constexpr (std::is_same_v<Record, AttentionForward>) set_attention(record);
    if constexpr (std::is_same_v<Record, AttentionBackward>) set_attention(record.forward);
    if constexpr (std::is_same_v<Record, CachedAttention>) record.scale = c.scale;
    if constexpr (std::is_same_v<Record, CrossEntropy>) {
      record.gradient_scale = c.scale;
      if (!c.write_gradient) record.scalars = nullptr;
    }
    if constexpr (requires { record.x_transposed; }) {
      record.x_transposed = c.x_transposed;
      record.y_transposed = c.y_transposed;
    }
    if constexpr (std::is_same_v<Record, ScaledSum>) {
      record.a = c.scale;
      record.b = c.second_scale;
    }
    if constexpr (std::is_same_v<Record, NormaliseMatrices>) record.least = c.scale;
    if constexpr (std::is_same_v<Record, MuonStep>) {
      record.scale = c.scale;
      record.rate_factor = c.second_scale;
    }
    if constexpr (std::is_same_v<Record, CopyBlocks>) {
      record.blocks = memory.blocks;
      record.num_blocks = static_cast<int>(c.blocks.size());
      record.num_rows = c.blocks.empty() ? 0 : c.blocks.back().first_row + c.blocks.back().rows;
    }
    if constexpr (requires { record.segments; }) {
      record.segments = memory.segments;
      record.num_segments = static_cast<int>(c.segments.size());
    }
    visit(record);
  });
}

const std::vector<OpCase>& op_cases();

}  // namespace mylos
