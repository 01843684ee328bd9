// SPDX-License-Identifier: BSD-3-Clause
#include "tests/ops/op_cases.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "tests/ops/case_table.hpp"

namespace mylos {

Operand make(std::string name, Role role, DType dtype, Shape shape) {
  Operand operand;
  operand.storage = name;
  operand.name = std::move(name);
  operand.role = role;
  operand.view = TensorRef(nullptr, dtype, shape);
  return operand;
}

Operand input(std::string name, DType dtype, Shape shape, double low, double high) {
  Operand operand = make(std::move(name), Role::input, dtype, shape);
  operand.low = low;
  operand.high = high;
  return operand;
}

Operand derived(std::string name, DType dtype, Shape shape) {
  return make(std::move(name), Role::derived, dtype, shape);
}

Operand result(std::string name, DType dtype, Shape shape, double fp32_tolerance, bool accumulate,
               double bf16_tolerance) {
  Operand operand = make(std::move(name), accumulate ? Role::updated : Role::written, dtype, shape);
  operand.low = -unit_spread;
  operand.high = unit_spread;
  operand.tolerance = dtype == DType::bf16   ? bf16_tolerance
                      : dtype == DType::fp16 ? fp16_share * bf16_tolerance
                                             : fp32_tolerance;
  return operand;
}

Operand in_storage(Operand operand, std::string storage, std::int64_t offset) {
  operand.storage = std::move(storage);
  operand.offset = offset;
  return operand;
}

std::vector<DType> gradient_types(DType dtype) {
  return dtype == DType::fp32 ? std::vector{dtype} : std::vector{DType::fp32, dtype};
}

namespace {

/// Whether this result shares the memory of an updated operand: fp32 weights are their own master.
bool is_updated_elsewhere(const Operand& operand, const OpCase& c) {
  return operand.role == Role::written && std::ranges::any_of(c.operands, [&](const Operand& other) {
           return other.role == Role::updated && other.storage == operand.storage &&
                  other.offset == operand.offset;
         });
}

}  // namespace

void CaseTable::add(OpCase c) {
  if (c.bytes == 0.0) {
    for (const Operand& operand : c.operands) {
      if (operand.role == Role::workspace || is_updated_elsewhere(operand, c)) continue;
      const auto bytes = static_cast<double>(operand.view.bytes());
      if (operand.packed) {
        const auto rows = static_cast<double>(operand.view.shape[0] * operand.view.shape[1]);
        c.bytes += bytes / rows * static_cast<double>(c.rows);
      } else {
        c.bytes += bytes * (operand.role == Role::updated ? 2.0 : 1.0);
      }
    }
  }
  const auto view = [&](std::string_view name) {
    const Operand* operand = c.find(name);
    return operand != nullptr ? operand->view : TensorRef();
  };
  with_operation(c, view, {}, [&](const auto& record) { c.flops = record.flops(); });
  cases.push_back(std::move(c));
}

namespace {

/// The matrix (I, O), stored as (O, I) if `transposed`.
Operand transposed_if(bool transposed, Operand operand) {
  if (transposed) operand.view.stride = {1, operand.view.shape[0]};
  return operand;
}

class Table : public CaseTable {
 public:
  // ---- Flat tensors

  void elementwise(bool full_size, std::int64_t n) {
    for (const DType dtype : float_types) {
      add({.op = Op::fill,
           .full_size = full_size,
           .detail = fmt::format("{}_n{}", name_of(dtype), n),
           .operands = {result("y", dtype, {n}, 0.0, false, 0.0)},
           .scale = -1.375F});
      for (const DType to : float_types) {
        const bool narrows = to != DType::fp32 && to != dtype;
        add({.op = Op::cast,
             .full_size = full_size,
             .detail = fmt::format("{}_{}_n{}", name_of(dtype), name_of(to), n),
             .operands = {input("x", dtype, {n}),
                          result("y", to, {n}, 0.0, false, narrows ? bf16_rounded : 0.0)}});
      }
      for (const bool accumulate : {false, true}) {
        add({.op = Op::sum_of_squares,
             .full_size = full_size,
             .detail = fmt::format("{}_n{}{}", name_of(dtype), n, accumulate ? "_add" : ""),
             .operands = {input("x", dtype, {n}), result("out", DType::fp32, {1}, 2e-6, accumulate)},
             .accumulate = accumulate,
             .scale = accumulate ? 0.3F : 1.0F});
      }
    }
    for (const bool accumulate : {false, true}) {
      // Off centre: the sum of centred numbers cancels, and its relative error says nothing.
      add({.op = Op::sum,
           .full_size = full_size,
           .detail = fmt::format("n{}{}", n, accumulate ? "_add" : ""),
           .operands = {input("x", DType::fp32, {n}, -0.5, 1.5),
                        result("out", DType::fp32, {1}, 2e-6, accumulate)},
           .accumulate = accumulate});
    }
    for (const GlobalIndex& index : {GlobalIndex{}, GlobalIndex{.first = 5}, GlobalIndex{5, 33, 71, 40}}) {
      add({.op = Op::fill_normal,
           .full_size = full_size,
           .detail = fmt::format("n{}_{}", n, text_of(index)),
           .operands = {result("y", DType::fp32, {n}, 1e-6)},
           .scale = 0.02F,
           .index = index});
    }
  }

  // ---- Linear layers

  struct Linear {
    std::int64_t rows, inputs, outputs;
    bool transposed = false;
    bool bias = true;
    std::int64_t offset = 0;  // shifts every tensor off its 64-byte boundary
  };

  /// The forward product alone.
  const OpCase& linear_forward(bool full_size, const Linear& s, DType dtype) {
    OpCase forward{.op = Op::linear_forward,
                   .full_size = full_size,
                   .detail = linear_detail(s, dtype),
                   .operands = {shifted(s, input("x", dtype, {s.rows, s.inputs})), weight(s, dtype),
                                shifted(s, result("y", dtype, {s.rows, s.outputs}, 2e-6))}};
    if (s.bias) forward.operands.push_back(shifted(s, input("bias", dtype, {s.outputs})));
    add(std::move(forward));
    return cases.back();
  }

  void linear(bool full_size, const Linear& s, DType dtype) {
    OpCase sum = linear_forward(full_size, s, dtype);
    sum.bytes = 0.0;
    sum.op = Op::linear_add_forward;
    sum.operands[2] = shifted(s, result("y", dtype, {s.rows, s.outputs}, 2e-6, false, bf16_chained));
    sum.operands[2].floor = unit_spread;  // the terms may cancel
    sum.operands.push_back(shifted(s, input("residual", dtype, {s.rows, s.outputs})));
    if (!s.transposed) add(std::move(sum));
    add({.op = Op::linear_backward_input,
         .full_size = full_size,
         .detail = linear_detail(s, dtype),
         .operands = {shifted(s, input("dy", dtype, {s.rows, s.outputs})), weight(s, dtype),
                      shifted(s, result("dx", dtype, {s.rows, s.inputs}, 2e-6))}});
  }

  /// The feed-forward layers: GELU after the first layer, its derivative after the input gradient of the
  /// second.
  void linear_gelu(bool full_size, const Linear& s, DType dtype) {
    const std::string detail = linear_detail(s, dtype);
    const double spread = unit_spread / std::sqrt(static_cast<double>(s.inputs));
    OpCase forward{.op = Op::linear_gelu_forward,
                   .full_size = full_size,
                   .detail = detail,
                   .operands = {input("x", dtype, {s.rows, s.inputs}),
                                input("w", dtype, {s.inputs, s.outputs}, -spread, spread),
                                result("pre", dtype, {s.rows, s.outputs}, 2e-6),
                                result("y", dtype, {s.rows, s.outputs}, 2e-6, false, bf16_chained)}};
    if (s.bias) forward.operands.push_back(input("bias", dtype, {s.outputs}));
    add(std::move(forward));
    add({.op = Op::linear_gelu_backward_input,
         .full_size = full_size,
         .detail = detail,
         .operands = {input("dy", dtype, {s.rows, s.outputs}),
                      input("w", dtype, {s.inputs, s.outputs}, -spread, spread),
                      input("pre", dtype, {s.rows, s.inputs}, -3.0, 3.0),
                      result("dpre", dtype, {s.rows, s.inputs}, 4e-6, false, bf16_chained)}});
  }

  void linear_weight(bool full_size, const Linear& s, DType dtype, DType gradient, bool accumulate) {
    OpCase c{.op = Op::linear_backward_weight,
             .full_size = full_size,
             .detail = fmt::format("{}_d{}{}", linear_detail(s, dtype), name_of(gradient),
                                   accumulate ? "_add" : ""),
             .operands = {shifted(s, input("x", dtype, {s.rows, s.inputs})),
                          shifted(s, input("dy", dtype, {s.rows, s.outputs})),
                          shifted(s, transposed_if(s.transposed, result("dw", gradient, {s.inputs, s.outputs},
                                                                        2e-6, accumulate)))},
             .accumulate = accumulate};
    if (s.bias) c.operands.push_back(shifted(s, result("dbias", gradient, {s.outputs}, 2e-6, accumulate)));
    add(std::move(c));
  }

  // ---- Embedding

  struct Embedding {
    std::int64_t samples, length, vocab, width, context, position;
    std::int64_t first_token = 0;
    std::int64_t tokens_without_row = 0;  // outside the matrix, before or after its tokens
  };

  void embedding(bool full_size, const Embedding& s, DType dtype) {
    const std::string part = s.tokens_without_row > 0 ? fmt::format("_from{}", s.first_token) : "";
    const std::string detail = fmt::format("{}_B{}_T{}_V{}_C{}_S{}_at{}{}", name_of(dtype), s.samples,
                                           s.length, s.vocab, s.width, s.context, s.position, part);
    const double all_tokens = static_cast<double>(s.vocab + s.tokens_without_row);
    const Operand tokens = input("tokens", DType::int32, {s.samples, s.length}, 0.0, all_tokens);
    const double rows = static_cast<double>(s.samples * s.length);
    const double positions = static_cast<double>(s.length);
    const double vocab = static_cast<double>(s.vocab);
    const double distinct_tokens = vocab * (1.0 - std::pow(1.0 - 1.0 / all_tokens, rows));  // expected
    const auto bytes_of_rows = [&](double count, DType type) {
      return count * static_cast<double>(s.width) * static_cast<double>(size_of(type));
    };
    const double moved_by_both = 4.0 * rows + bytes_of_rows(rows, dtype);  // tokens, and out or dout
    add({.op = Op::embedding_forward,
         .full_size = full_size,
         .detail = detail,
         .operands = {tokens, input("wte", dtype, {s.vocab, s.width}),
                      input("wpe", dtype, {s.context, s.width}),
                      result("out", dtype, {s.samples, s.length, s.width}, 1e-6)},
         .position = s.position,
         .first_token = s.first_token,
         .bytes = moved_by_both + bytes_of_rows(distinct_tokens + positions, dtype)});
    for (const DType gradient : gradient_types(dtype)) {
      for (const auto& [add_wte, add_wpe] :
           {std::pair(false, false), std::pair(true, false), std::pair(true, true)}) {
        add({.op = Op::embedding_backward,
             .full_size = full_size,
             .detail = fmt::format("{}_d{}{}{}", detail, name_of(gradient), add_wte ? "_addwte" : "",
                                   add_wpe ? "_addwpe" : ""),
             .operands = {tokens, input("dout", dtype, {s.samples, s.length, s.width}),
                          result("dwte", gradient, {s.vocab, s.width}, 2e-6, add_wte),
                          result("dwpe", gradient, {s.context, s.width}, 2e-6, add_wpe)},
             .accumulate = add_wte,
             .accumulate_second = add_wpe,
             .position = s.position,
             .first_token = s.first_token,
             .bytes = moved_by_both + bytes_of_rows(add_wte ? 2.0 * distinct_tokens : vocab, gradient) +
                      bytes_of_rows(add_wpe ? 2.0 * positions : static_cast<double>(s.context), gradient)});
      }
    }
  }

  /// Texts at positions of their own; tokens beyond the last position contribute without one.
  void embedding_at(bool full_size, const Embedding& s, DType dtype, std::vector<std::int32_t> positions) {
    const double rows = static_cast<double>(s.samples * s.length * s.width);
    add({.op = Op::embedding_forward,
         .full_size = full_size,
         .detail = fmt::format("{}_B{}_T{}_V{}_C{}_S{}_at{}_positions", name_of(dtype), s.samples, s.length,
                               s.vocab, s.width, s.context, s.position),
         .operands = {input("tokens", DType::int32, {s.samples, s.length}, 0.0, static_cast<double>(s.vocab)),
                      input("wte", dtype, {s.vocab, s.width}), input("wpe", dtype, {s.context, s.width}),
                      input("positions", DType::int32, {s.samples}),
                      result("out", dtype, {s.samples, s.length, s.width}, 1e-6)},
         .position = s.position,
         .integers = {{"positions", std::move(positions)}},
         .bytes = 3.0 * rows * static_cast<double>(size_of(dtype))});
  }

  // ---- Layer normalisation

  enum class Residual : std::uint8_t { none, separate, is_result, gradient_is_result };

  void layernorm(bool full_size, std::int64_t rows, std::int64_t width, DType dtype, double centre = 0.0) {
    const std::string detail =
        fmt::format("{}_N{}_C{}{}", name_of(dtype), rows, width, centre == 0.0 ? "" : "_off_centre");
    const Operand x = input("x", dtype, {rows, width}, centre - unit_spread, centre + unit_spread);
    const Operand gamma = input("gamma", dtype, {width}, 0.5, 1.5);
    const Operand dy = input("dy", dtype, {rows, width});
    const Operand mean = derived("mean", DType::fp32, {rows});
    const Operand rstd = derived("rstd", DType::fp32, {rows});
    add({.op = Op::layernorm_forward,
         .full_size = full_size,
         .detail = detail,
         .operands = {x, gamma, input("beta", dtype, {width}), result("y", dtype, {rows, width}, 2e-6),
                      result("mean", DType::fp32, {rows}, 1e-5), result("rstd", DType::fp32, {rows}, 2e-6)}});
    for (const Residual residual :
         {Residual::none, Residual::separate, Residual::is_result, Residual::gradient_is_result}) {
      if (full_size && residual != Residual::separate) continue;
      Operand dx = result("dx", dtype, {rows, width}, 4e-6);
      std::vector<Operand> operands = {dy, x, gamma, mean, rstd};
      if (residual != Residual::none) operands.push_back(input("residual", dtype, {rows, width}));
      if (residual == Residual::is_result) dx = in_storage(dx, "residual");
      if (residual == Residual::gradient_is_result) dx = in_storage(dx, "dy");
      operands.push_back(dx);
      constexpr std::array<std::string_view, 4> suffix = {"", "_residual", "_into_residual", "_into_dy"};
      add({.op = Op::layernorm_backward_input,
           .full_size = full_size,
           .detail = fmt::format("{}{}", detail, suffix[static_cast<std::size_t>(residual)]),
           .operands = operands});
      for (const DType gradient : gradient_types(dtype)) {
        const bool accumulate = residual == Residual::separate || residual == Residual::gradient_is_result;
        std::vector<Operand> all = operands;
        all.push_back(result("dgamma", gradient, {width}, 2e-6, accumulate));
        all.push_back(result("dbeta", gradient, {width}, 2e-6, accumulate));
        add({.op = Op::layernorm_backward,
             .full_size = full_size,
             .detail = fmt::format("{}_d{}{}{}", detail, name_of(gradient),
                                   suffix[static_cast<std::size_t>(residual)], accumulate ? "_add" : ""),
             .operands = std::move(all),
             .accumulate = accumulate});
      }
    }
    for (const DType gradient : gradient_types(dtype)) {
      for (const bool accumulate : {false, true}) {
        add({.op = Op::layernorm_backward_weight,
             .full_size = full_size,
             .detail = fmt::format("{}_d{}{}", detail, name_of(gradient), accumulate ? "_add" : ""),
             .operands = {dy, x, mean, rstd, result("dgamma", gradient, {width}, 2e-6, accumulate),
                          result("dbeta", gradient, {width}, 2e-6, accumulate)},
             .accumulate = accumulate});
      }
    }
  }

  // ---- GELU, dropout

  void gelu(bool full_size, std::int64_t n, DType dtype, std::int64_t offset = 0) {
    const auto shifted_by = [&](Operand operand) {
      operand.offset = offset;
      // Values of GELU near 0 are subnormal in fp16.
      if (dtype == DType::fp16 && operand.is_result()) operand.floor = 1e-3;
      return operand;
    };
    const std::string detail = fmt::format("{}_n{}{}", name_of(dtype), n, offset == 0 ? "" : "_unaligned");
    const Operand x = shifted_by(input("x", dtype, {n}, -6.0, 6.0));
    add({.op = Op::gelu_forward,
         .full_size = full_size,
         .detail = detail,
         .operands = {x, shifted_by(result("y", dtype, {n}, 2e-6))}});
    for (const bool in_place : {false, true}) {
      if (full_size && in_place) continue;
      Operand dx = shifted_by(result("dx", dtype, {n}, 2e-6));
      if (in_place) dx = in_storage(dx, "dy", offset);
      add({.op = Op::gelu_backward,
           .full_size = full_size,
           .detail = fmt::format("{}{}", detail, in_place ? "_into_dy" : ""),
           .operands = {x, shifted_by(input("dy", dtype, {n})), dx}});
    }
  }

  void dropout(bool full_size, std::int64_t samples, std::int64_t length, std::int64_t width, DType dtype,
               const GlobalIndex& index = {}) {
    for (const float probability : {0.0F, 0.1F}) {
      for (const std::string_view into : {"", "none", "x", "residual"}) {
        if (full_size && !into.empty()) continue;
        std::vector<Operand> operands = {input("x", dtype, {samples, length, width})};
        Operand y = result("y", dtype, {samples, length, width}, 2e-6);
        if (into != "none") operands.push_back(input("residual", dtype, {samples, length, width}));
        if (into == "x" || into == "residual") y = in_storage(y, std::string(into));
        operands.push_back(y);
        add({.op = Op::dropout_add,
             .full_size = full_size,
             .detail = fmt::format("{}_B{}_T{}_C{}_p{}{}{}", name_of(dtype), samples, length, width,
                                   probability * 10.0F, index == GlobalIndex{} ? "" : "_" + text_of(index),
                                   into.empty()     ? ""
                                   : into == "none" ? "_alone"
                                                    : fmt::format("_into_{}", into)),
             .operands = std::move(operands),
             .index = index,
             .dropout = probability,
             .scalars = {.step = 3}});
      }
    }
  }

  void dropout_add_layernorm(bool full_size, std::int64_t samples, std::int64_t length, std::int64_t width,
                             DType dtype) {
    const std::int64_t rows = samples * length;
    // The statistics are computed from the rounded sum.
    const auto statistic = [&](std::string name) {
      Operand operand = result(std::move(name), DType::fp32, {rows}, 0.0);
      operand.tolerance = result("", dtype, {rows}, 1e-5).tolerance;
      operand.floor = 0.1;
      return operand;
    };
    for (const float probability : {0.0F, 0.1F}) {
      for (const std::string_view into : {"", "x", "residual"}) {
        if (full_size && into != "x") continue;
        Operand sum = result("sum", dtype, {samples, length, width}, 2e-6);
        if (!into.empty()) sum = in_storage(sum, std::string(into));
        add({.op = Op::dropout_add_layernorm,
             .full_size = full_size,
             .detail = fmt::format("{}_B{}_T{}_C{}_p{:.1f}{}{}", name_of(dtype), samples, length, width,
                                   probability, into.empty() ? "" : "_into_", into),
             .operands = {input("x", dtype, {samples, length, width}),
                          input("residual", dtype, {samples, length, width}),
                          input("gamma", dtype, {width}, 0.5, 1.5), input("beta", dtype, {width}), sum,
                          result("y", dtype, {rows, width}, 4e-6, false, bf16_chained), statistic("mean"),
                          statistic("rstd")},
             .dropout = probability,
             .scalars = {.step = 3}});
      }
    }
  }

  // ---- Attention

  struct Attention {
    std::int64_t samples, queries, keys, heads, head_size;
    std::int64_t query_offset = 0;
    float dropout = 0.0F;
    bool packed = true;      // (B, T, 3, H, D); otherwise keys and values lie in a cache (B, H, S, D), S > Tk
    double amplitude = 1.0;  // of queries and keys
    AttentionPlace place{};  // positions = 0: all heads and keys of the whole sample
  };

  void attention(bool full_size, const Attention& s, DType dtype) {
    const std::string detail =
        fmt::format("{}_B{}_Tq{}_Tk{}_H{}_D{}_at{}_p{}{}{}", name_of(dtype), s.samples, s.queries, s.keys,
                    s.heads, s.head_size, s.query_offset, s.dropout * 10.0F, s.packed ? "_packed" : "_cache",
                    s.amplitude == 1.0 ? "" : "_sharp") +
        (s.place.positions == 0 ? ""
                                : fmt::format("_of{}_h{}_q{}_k{}", s.place.positions, s.place.first_head,
                                              s.place.first_query, s.place.first_key));
    const double spread = unit_spread * s.amplitude;
    const Shape query_shape = {s.samples, s.queries, s.heads, s.head_size};
    const Shape key_shape = {s.samples, s.keys, s.heads, s.head_size};
    const Shape lse_shape = {s.samples, s.heads, s.queries};
    const std::vector<Operand> inputs = {
        place(s, 0, "qkv", input("query", dtype, query_shape, -spread, spread)),
        place(s, 1, "qkv", input("key", dtype, key_shape, -spread, spread)),
        place(s, 2, "qkv", input("value", dtype, key_shape))};
    OpCase forward{.op = Op::attention_forward,
                   .full_size = full_size,
                   .detail = detail,
                   .operands = inputs,
                   .scale = 1.0F / std::sqrt(static_cast<float>(s.head_size)),
                   .position = s.query_offset,
                   .place = s.place.positions > 0
                                ? s.place
                                : AttentionPlace{.first_query = s.query_offset, .positions = s.keys},
                   .dropout = s.dropout,
                   .scalars = {.step = 3}};
    OpCase backward = forward;
    forward.operands.push_back(result("output", dtype, query_shape, 2e-6));
    forward.operands.push_back(result("lse", DType::fp32, lse_shape, 2e-6));
    add(std::move(forward));

    backward.op = Op::attention_backward;
    // The gradient of a query that sees only one key is nothing but rounding error.
    const double floor = s.keys == 1 ? 0.1 : 0.0;
    const auto gradient = [&](int part, std::string name, Shape shape) {
      Operand operand =
          place(s, part, "dqkv", result(std::move(name), dtype, shape, 1e-5, false, bf16_chained));
      operand.floor = part < 2 ? floor : 0.0;
      return operand;
    };
    Operand delta = make("delta", Role::workspace, DType::fp32, lse_shape);
    backward.operands.insert(
        backward.operands.end(),
        {derived("output", dtype, query_shape), derived("lse", DType::fp32, lse_shape),
         input("output_grad", dtype, query_shape), gradient(0, "query_grad", query_shape),
         gradient(1, "key_grad", key_shape), gradient(2, "value_grad", key_shape), delta});
    add(std::move(backward));
  }

  // ---- A cache of keys and values

  struct Cache {
    std::int64_t tokens, heads, head_size, capacity, num_rows;
    std::vector<std::int32_t> rows, positions;  // of the texts
  };

  void cache(bool full_size, const Cache& s, DType dtype) {
    const auto texts = static_cast<std::int64_t>(s.rows.size());
    const std::string detail =
        fmt::format("{}_B{}_T{}_H{}_D{}_S{}_R{}_at{}", name_of(dtype), texts, s.tokens, s.heads, s.head_size,
                    s.capacity, s.num_rows, fmt::join(s.positions, "_"));
    const Shape cache_shape = {s.num_rows, s.heads, s.capacity, s.head_size};
    const Shape token_shape = {texts, s.tokens, s.heads, s.head_size};
    const std::int64_t row = s.heads * s.head_size;
    const auto packed = [&](std::int64_t part, std::string name) {  // in (B, T, 3, H, D)
      Operand operand = input(std::move(name), dtype, token_shape);
      operand.view.stride = {s.tokens * 3 * row, 3 * row, s.head_size, 1};
      return in_storage(std::move(operand), "qkv", part * row);
    };
    const Operand rows = input("rows", DType::int32, {texts});
    const Operand positions = input("positions", DType::int32, {texts});
    double appended = 0.0;
    double seen = 0.0;  // positions, by each text once
    for (const std::int32_t first : s.positions) {
      appended += static_cast<double>(std::min(s.tokens, s.capacity - first));
      seen += static_cast<double>(std::min(s.tokens + first, s.capacity));
    }
    const double token_bytes = static_cast<double>(row) * static_cast<double>(size_of(dtype));
    OpCase append{.op = Op::cache_append,
                  .full_size = full_size,
                  .detail = detail,
                  .operands = {packed(1, "key"), packed(2, "value"), rows, positions,
                               result("keys", dtype, cache_shape, 0.0, true, 0.0),
                               result("values", dtype, cache_shape, 0.0, true, 0.0)},
                  .integers = {{"rows", s.rows}, {"positions", s.positions}},
                  .bytes = 4.0 * appended * token_bytes};
    // A benchmark would need very many caches, until they are out of the processor's.
    if (!full_size) add(std::move(append));
    add({.op = Op::cached_attention,
         .full_size = full_size,
         .detail = detail,
         .operands = {packed(0, "query"), input("keys", dtype, cache_shape),
                      input("values", dtype, cache_shape), rows, positions,
                      result("output", dtype, token_shape, 2e-6)},
         .scale = 1.0F / std::sqrt(static_cast<float>(s.head_size)),
         .integers = {{"rows", s.rows}, {"positions", s.positions}},
         .bytes = 2.0 * (seen + static_cast<double>(texts * s.tokens)) * token_bytes});
  }

  // ---- Cross entropy

  void softmax_statistics(bool full_size, std::int64_t rows, std::int64_t vocab, std::int64_t padded,
                          std::int64_t first_token, DType dtype) {
    const auto first = static_cast<double>(first_token);
    add({.op = Op::softmax_statistics,
         .full_size = full_size,
         .detail =
             fmt::format("{}_N{}_V{}_padded{}_from{}", name_of(dtype), rows, vocab, padded, first_token),
         .operands = {input("logits", dtype, {rows, padded}, -3.0, 3.0),
                      input("targets", DType::int32, {rows}, first, first + static_cast<double>(vocab)),
                      result("statistics", DType::fp32, {SoftmaxStatistics::count, rows}, 2e-6)},
         .vocab = vocab,
         .first_token = first_token});
  }

  void cross_entropy(bool full_size, std::int64_t rows, std::int64_t vocab, std::int64_t padded, DType dtype,
                     double amplitude = 3.0) {
    for (const bool write_gradient : {true, false}) {
      std::vector<Operand> operands = {input("logits", dtype, {rows, padded}, -amplitude, amplitude),
                                       input("targets", DType::int32, {rows},
                                             -0.25 * static_cast<double>(vocab), static_cast<double>(vocab)),
                                       result("losses", DType::fp32, {rows}, 2e-6)};
      if (write_gradient) {
        operands.push_back(in_storage(result("gradient", dtype, {rows, padded}, 4e-6), "logits"));
      } else {
        operands.push_back(result("correct", DType::int32, {rows}, 0.0));
      }
      add({.op = Op::cross_entropy,
           .full_size = full_size,
           .detail = fmt::format("{}_N{}_V{}_padded{}{}{}", name_of(dtype), rows, vocab, padded,
                                 amplitude > 10.0 ? "_sharp" : "", write_gradient ? "_gradient" : "_loss"),
           .operands = std::move(operands),
           .write_gradient = write_gradient,
           .scale = 0.125F,
           .vocab = vocab,
           .scalars = {.loss_scale = 2.0F}});
    }
  }

  // ---- Optimizer

  void adamw(bool full_size, std::int64_t n, DType dtype, DType gradient, std::int64_t step,
             bool with_state = true) {
    // A large learning rate, so that the weights do not hide the error of the update.
    const StepScalars scalars{.step = step, .learning_rate = 0.05F, .clip_factor = 0.7F};
    const double past = with_state ? 1.0 : 0.0;
    Operand first = result("first_moment", DType::fp32, {n}, 2e-6, true);
    Operand second = result("second_moment", DType::fp32, {n}, 2e-6, true);
    first.low = -past;
    first.high = past;
    second.low = 0.1 * past;
    second.high = past;
    optimizer_step({.op = Op::adamw,
                    .full_size = full_size,
                    .detail = fmt::format("{}_n{}_d{}_step{}", name_of(dtype), n, name_of(gradient), step),
                    .operands = {first, second},
                    .scalars = scalars},
                   n, dtype, gradient);
  }

  void sgd(bool full_size, std::int64_t n, DType dtype, DType gradient) {
    optimizer_step({.op = Op::sgd,
                    .full_size = full_size,
                    .detail = fmt::format("{}_n{}_d{}", name_of(dtype), n, name_of(gradient)),
                    .operands = {result("momentum", DType::fp32, {n}, 2e-6, true)},
                    .scalars = {.step = 10, .learning_rate = 0.05F, .clip_factor = 0.7F}},
                   n, dtype, gradient);
  }

  void muon(bool full_size, std::int64_t n, DType dtype) {
    optimizer_step({.op = Op::muon,
                    .full_size = full_size,
                    .detail = fmt::format("{}_n{}", name_of(dtype), n),
                    .scale = 2.0F,
                    .second_scale = 3.0F,
                    .scalars = {.step = 10, .learning_rate = 0.05F, .clip_factor = 0.7F}},
                   n, dtype, DType::fp32);
  }

  /// Adds an optimizer's case without its master. The oracle rounds with the same random bits, so the results
  /// differ only in the few elements whose fp32 error carries the update across the rounding threshold that
  /// those bits set.
  void without_master(OpCase c, const GlobalIndex& index) {
    std::erase_if(c.operands, [](const Operand& operand) { return operand.name == "master"; });
    const auto weights = std::ranges::find(c.operands, "weights", &Operand::name);
    weights->role = Role::updated;
    weights->tolerance *= 0.1;
    c.detail += "_rounded_" + text_of(index);
    for (Segment& segment : c.segments) {
      segment.rounding = {stream_key(1234, fmt::format("rounding {}", segment.begin)), index};
    }
    c.bytes = 0.0;
    add(std::move(c));
  }

 private:
  /// Adds weights, gradient, master and segments to a case that has the optimizer's states.
  void optimizer_step(OpCase c, std::int64_t n, DType dtype, DType gradient) {
    Operand weights = result("weights", dtype, {n}, 2e-6);
    if (dtype == DType::fp32) weights = in_storage(weights, "master");
    const Operand front[] = {input("gradient", gradient, {n}), result("master", DType::fp32, {n}, 2e-6, true),
                             weights};
    c.operands.insert(c.operands.begin(), std::begin(front), std::end(front));
    c.segments = {{0, n / 3, 1.0F, {}}, {n / 3, n / 2, 0.0F, {}}, {n / 2, n, 1.0F, {}}};
    std::erase_if(c.segments, [](const Segment& s) { return s.begin == s.end; });
    add(std::move(c));
  }

  static std::string text_of(const GlobalIndex& index) {
    if (index.pitch == 0) return fmt::format("from{}", index.first);
    return fmt::format("from{}_rows{}of{}", index.first, index.width, index.pitch);
  }

  static std::string linear_detail(const Linear& s, DType dtype) {
    return fmt::format("{}_N{}_I{}_O{}{}{}{}", name_of(dtype), s.rows, s.inputs, s.outputs,
                       s.transposed ? "_transposed" : "", s.bias ? "_bias" : "",
                       s.offset == 0 ? "" : "_unaligned");
  }

  static Operand weight(const Linear& s, DType dtype) {
    const double spread = unit_spread / std::sqrt(static_cast<double>(s.inputs));
    return shifted(s, transposed_if(s.transposed, input("w", dtype, {s.inputs, s.outputs}, -spread, spread)));
  }

  static Operand shifted(const Linear& s, Operand operand) {
    operand.offset = s.offset;
    return operand;
  }

  /// Parts 0, 1 and 2 are query, key and value.
  static Operand place(const Attention& s, int part, std::string storage, Operand operand) {
    const std::int64_t row = s.heads * s.head_size;
    if (s.packed) {
      operand.view.stride = {s.keys * 3 * row, 3 * row, s.head_size, 1};
      return in_storage(std::move(operand), std::move(storage), part * row);
    }
    const std::int64_t capacity = s.keys + 3;
    if (part > 0)
      operand.view.stride = {s.heads * capacity * s.head_size, s.head_size, capacity * s.head_size, 1};
    return operand;
  }
};

void add_small_cases(Table& table) {
  for (const std::int64_t n : {1, 7, 1000, 100003, (1 << 20) + 3}) table.elementwise(false, n);

  const std::vector<Table::Linear> layers = {{1, 1, 1},      {1, 16, 48},   {1, 85, 1030}, {2, 64, 257},
                                             {3, 33, 40},    {4, 17, 85},   {5, 100, 300}, {7, 25, 33},
                                             {8, 130, 515},  {33, 100, 12}, {65, 80, 257}, {130, 64, 320},
                                             {256, 96, 384}, {3, 40, 1},    {130, 85, 1}};
  bool bias = true;
  for (Table::Linear layer : layers) {
    for (const bool transposed : {false, true}) {
      layer.transposed = transposed;
      layer.bias = bias = !bias;
      for (const DType dtype : float_types) {
        table.linear(false, layer, dtype);
        if (!transposed) table.linear_gelu(false, layer, dtype);
        for (const bool accumulate : {false, true}) {
          for (const DType gradient : gradient_types(dtype)) {
            table.linear_weight(false, layer, dtype, gradient, accumulate);
          }
        }
      }
    }
    bias = !bias;  // the next shape has the other combination
  }
  for (const DType dtype : float_types) {
    const Table::Linear unaligned{.rows = 33, .inputs = 48, .outputs = 40, .offset = 3};
    table.linear(false, unaligned, dtype);
    for (const bool transposed : {false, true}) table.linear(false, {3, 48, 140, transposed, true, 3}, dtype);
    table.linear_weight(false, unaligned, dtype, dtype, true);

    table.embedding(false, {1, 1, 17, 16, 8, 0}, dtype);
    table.embedding(false, {2, 7, 257, 25, 16, 0}, dtype);
    table.embedding(false, {3, 65, 50, 100, 80, 5}, dtype);
    table.embedding(false, {2, 130, 3, 48, 130, 0}, dtype);
    table.embedding(false, {1, 130, 1, 24, 130, 0}, dtype);   // one token
    table.embedding(false, {3, 130, 2, 300, 130, 0}, dtype);  // more columns than a GPU's block has threads
    table.embedding(false, {3, 65, 50, 100, 80, 5, 20, 40}, dtype);
    table.embedding(false, {3, 65, 50, 25, 80, 0, 0, 30}, dtype);

    table.embedding_at(false, {3, 1, 50, 25, 16, 0}, dtype, {0, 15, 7});
    table.embedding_at(false, {2, 5, 50, 100, 16, 2}, dtype, {9, 0});
    table.embedding_at(false, {2, 70, 50, 100, 90, 0}, dtype, {19, 35});  // one text goes on beyond the end

    for (const std::int64_t rows : {1, 7, 130}) {
      for (const std::int64_t width : {16, 25, 100, 768}) table.layernorm(false, rows, width, dtype);
    }
    // On a GPU: not all lanes have columns in the last turn, more than eight turns, too many columns for
    // registers, blocks that take rows more than once.
    for (const std::int64_t width : {1600, 2304, 4104}) table.layernorm(false, 9, width, dtype);
    table.layernorm(false, 5000, 16, dtype);
    for (const std::int64_t n : {1, 7, 1000, 4099}) table.gelu(false, n, dtype);
    table.gelu(false, 999, dtype, 3);
    table.dropout(false, 1, 1, 1, dtype);
    table.dropout(false, 2, 7, 25, dtype);
    table.dropout(false, 3, 65, 64, dtype);
    table.dropout(false, 2, 13, 64, dtype, {.first = 64 * 13});  // later positions
    table.dropout(false, 2, 13, 20, dtype, {7, 20, 60});         // some of the channels
    table.dropout_add_layernorm(false, 2, 7, 25, dtype);
    table.dropout_add_layernorm(false, 3, 9, 768, dtype);

    for (const std::int64_t head_size : {16, 25, 64, 80}) {
      for (const std::int64_t length : {1, 7, 65, 130})
        table.attention(false, {2, length, length, 3, head_size}, dtype);
    }
    table.attention(false, {2, 7, 7, 3, 16, 0, 0.1F}, dtype);
    table.attention(false, {2, 65, 65, 3, 25, 0, 0.1F}, dtype);
    table.attention(false, {1, 130, 130, 2, 64, 0, 0.1F}, dtype);
    table.attention(false, {2, 65, 65, 3, 16, 0, 0.1F, true, 1.0, {3, 65, 65, 131}}, dtype);
    table.attention(false, {1, 66, 66, 2, 64, 0, 0.1F, true, 1.0, {2, 66, 0, 132}}, dtype);
    table.attention(false, {2, 65, 65, 2, 64, 0, 0.0F, true, 3.0}, dtype);
    table.attention(false, {2, 65, 65, 3, 64, 0, 0.0F, false}, dtype);
    table.attention(false, {2, 1, 8, 3, 64, 7, 0.0F, false}, dtype);
    table.attention(false, {2, 7, 20, 3, 25, 13, 0.0F, false}, dtype);
    table.attention(false, {1, 16, 40, 2, 80, 10, 0.0F, false}, dtype);  // keys that no query sees
    table.attention(false, {2, 33, 97, 2, 64, 64, 0.1F, false}, dtype);

    table.cache(false, {1, 1, 1, 1, 1, {0}, {0}}, dtype);
    table.cache(false, {1, 12, 64, 70, 4, {2, 0, 3}, {0, 63, 64}}, dtype);
    table.cache(false, {1, 5, 17, 130, 3, {1, 2}, {129, 40}}, dtype);
    table.cache(false, {7, 5, 17, 40, 3, {2, 0}, {0, 33}}, dtype);   // to the last position
    table.cache(false, {9, 3, 100, 20, 2, {1, 0}, {15, 3}}, dtype);  // and beyond
    table.cache(false, {33, 2, 16, 200, 2, {0, 1}, {167, 90}}, dtype);
    table.cache(false, {2, 2, 80, 300, 1, {0}, {255}}, dtype);

    table.softmax_statistics(false, 1, 257, 320, 0, dtype);
    table.softmax_statistics(false, 33, 2, 16, 40, dtype);
    table.softmax_statistics(false, 65, 1000, 1000, 24, dtype);
    table.cross_entropy(false, 1, 257, 320, dtype);
    table.cross_entropy(false, 7, 257, 257, dtype);
    table.cross_entropy(false, 33, 2, 16, dtype);
    table.cross_entropy(false, 65, 1000, 1024, dtype);
    table.cross_entropy(false, 130, 257, 320, dtype, 60.0);

    for (const std::int64_t n : {1, 7, 1000, 4099}) {
      table.muon(false, n, dtype);
      if (dtype != DType::fp32) {
        table.without_master(table.cases.back(), {.first = 20});
        table.without_master(table.cases.rbegin()[1], {12, 30, 77, 11});
      }
      table.sgd(false, n, dtype, DType::fp32);
      if (dtype != DType::fp32) {
        table.sgd(false, n, dtype, dtype);
        table.without_master(table.cases.back(), {.first = 20});
      }
      table.adamw(false, n, dtype, DType::fp32, 10);
      if (dtype == DType::fp32) continue;
      const OpCase with_master = table.cases.back();
      // Draws that begin on a counter, draws that begin within one, draws that cross counter 2^32, and draws
      // for a part that holds only some of the columns.
      for (const GlobalIndex& index :
           {GlobalIndex{}, GlobalIndex{.first = 20}, GlobalIndex{.first = (std::int64_t{1} << 35U) - 6},
            GlobalIndex{12, 30, 77, 11}})
        table.without_master(with_master, index);
      table.adamw(false, n, dtype, dtype, 1000);
      table.without_master(table.cases.back(), {.first = 128});
    }
    table.adamw(false, 333, dtype, DType::fp32, 1, false);
  }
  table.layernorm(false, 33, 768, DType::fp32, 10.0);
  table.add({.op = Op::guard_step, .detail = "once"});
}

void add_full_size_cases(Table& table) {
  constexpr std::int64_t rows = FullSize::rows, width = FullSize::width;
  constexpr std::int64_t padded_vocab = FullSize::padded_vocab, block = 7087872;
  table.elementwise(true, block);
  for (const DType dtype : float_types) {
    for (const Table::Linear& layer :
         {Table::Linear{rows, width, 3 * width}, Table::Linear{rows, width, width},
          Table::Linear{rows, width, 4 * width}, Table::Linear{rows, 4 * width, width},
          Table::Linear{
              .rows = rows, .inputs = width, .outputs = padded_vocab, .transposed = true, .bias = false}}) {
      table.linear(true, layer, dtype);
      table.linear_weight(true, layer, dtype, DType::fp32, true);
    }
    for (const std::int64_t few : {1, 8}) {
      for (Table::Linear layer : {Table::Linear{few, width, 3 * width}, Table::Linear{few, width, width},
                                  Table::Linear{few, width, 4 * width}, Table::Linear{few, 4 * width, width},
                                  Table::Linear{few, width, padded_vocab, true, false}})
        table.linear_forward(true, layer, dtype);
      for (const std::int32_t position : {127, 1023}) {
        Table::Cache cache{1, 12, 64, position + 1, few, {}, {}};
        for (std::int32_t r = 0; r < few; ++r) {
          cache.rows.push_back(r);
          cache.positions.push_back(position);
        }
        table.cache(true, cache, dtype);
      }
    }
    table.linear_gelu(true, {rows, width, 4 * width}, dtype);
    table.linear_gelu(true, {rows, 4 * width, width}, dtype);
    table.embedding(true, {4, 256, padded_vocab, width, 1024, 0}, dtype);
    table.layernorm(true, rows, width, dtype);
    table.gelu(true, rows * 4 * width, dtype);
    table.dropout(true, 4, 256, width, dtype);
    table.dropout_add_layernorm(true, 4, 256, width, dtype);
    for (const float probability : {0.0F, 0.1F})
      table.attention(true, {4, 256, 256, 12, 64, 0, probability}, dtype);
    table.softmax_statistics(true, rows, padded_vocab / 2, padded_vocab / 2, 0, dtype);
    table.cross_entropy(true, rows, 50257, padded_vocab, dtype);
    table.adamw(true, block, dtype, DType::fp32, 10);
    if (dtype != DType::fp32) table.without_master(table.cases.back(), {});
    table.sgd(true, block, dtype, DType::fp32);
    table.muon(true, block, dtype);
    if (dtype != DType::fp32) table.without_master(table.cases.back(), {});
  }
}

}  // namespace

std::string OpCase::name() const {
  return fmt::format("{}/{}/{}", name_of(op), full_size ? "gpt2" : "small", detail);
}

const Operand* OpCase::find(std::string_view operand) const {
  const auto found = std::ranges::find(operands, operand, &Operand::name);
  return found == operands.end() ? nullptr : &*found;
}

Dropout dropout_of(const OpCase& c, const StepScalars* scalars) {
  if (c.dropout == 0.0F) return {};
  return {.probability = c.dropout,
          .key = stream_key(1234, "dropout"),
          .first_sample = 5,
          .index = c.index,
          .scalars = scalars};
}

RouterNoise noise_of(const OpCase& c, const StepScalars* scalars) {
  return {.kind = c.noise, .key = stream_key(1234, "noise"), .first_sample = 3, .scalars = scalars};
}

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> cases = [] {
    Table table;
    add_small_cases(table);
    add_small_expert_cases(table);
    add_small_depth_cases(table);
    add_small_matrix_cases(table);
    add_full_size_cases(table);
    add_full_size_expert_cases(table);
    add_full_size_depth_cases(table);
    add_full_size_matrix_cases(table);
    return std::move(table.cases);
  }();
  return cases;
}

}  // namespace mylos
