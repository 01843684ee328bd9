// SPDX-License-Identifier: BSD-3-Clause
// The cases of the operations of a mixture of depths.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/ops/case_table.hpp"

namespace mylos {

namespace {

/// What scores or logits are drawn from: `count` whole numbers from `low` on, or, if it is 0, all numbers
/// between -low and low.
struct Drawn {
  std::string_view suffix;
  std::int32_t low = 0, count = 0;
};

std::vector<std::int32_t> draw(const Drawn& from, std::int64_t n) {
  std::vector<std::int32_t> values;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t random = mix64(static_cast<std::uint64_t>(i + 1));
    values.push_back(from.low + static_cast<std::int32_t>(random % static_cast<std::uint64_t>(from.count)));
  }
  return values;
}

/// Adds a case whose first operand is drawn.
void add_drawn(CaseTable& table, OpCase c, const Drawn& from) {
  Operand& drawn = c.operands.front();
  drawn.low = -from.low;
  drawn.high = from.low;
  if (from.count > 0) c.integers.emplace_back(drawn.name, draw(from, drawn.view.size()));
  c.detail += from.suffix;
  table.add(std::move(c));
}

/// A case of an operation that takes tokens, with `packed_rows` for each sequence.
OpCase taking(Op op, bool full_size, std::int64_t samples, std::int64_t length, std::int64_t packed_rows,
              DType dtype) {
  return {.op = op,
          .full_size = full_size,
          .detail = fmt::format("{}_B{}_T{}_K{}", name_of(dtype), samples, length, packed_rows),
          .operands = {input("scores", dtype, {samples, length, 1}),
                       result("places", DType::int32, {samples, length, 1}, 0.0),
                       result("pairs", DType::int32, {1, samples * packed_rows}, 0.0),
                       result("offsets", DType::int32, {1, 2}, 0.0)}};
}

struct CachedTexts {
  std::int64_t length, capacity, num_rows;
  std::vector<std::int32_t> rows, positions;
};

void positive_tokens_of(CaseTable& table, const CachedTexts& s, DType dtype, const Drawn& from) {
  const auto texts = static_cast<std::int64_t>(s.rows.size());
  OpCase c = taking(Op::positive_tokens, false, texts, s.length, s.length, dtype);
  // Never 0, so that a read at position 0 shows.
  Operand taken = result("taken", DType::int32, {s.num_rows, s.capacity + 1}, 0.0, true);
  taken.low = 5.0;
  taken.high = 100.0;
  c.operands.insert(c.operands.end(),
                    {input("rows", DType::int32, {texts}), input("positions", DType::int32, {texts}), taken,
                     result("own_positions", DType::int32, {texts}, 0.0)});
  c.detail += fmt::format("_S{}_R{}_at{}", s.capacity, s.num_rows, fmt::join(s.positions, "_"));
  c.integers = {{"rows", s.rows}, {"positions", s.positions}};
  add_drawn(table, std::move(c), from);
}

void subtract(CaseTable& table, bool full_size, std::int64_t n, DType dtype, std::int64_t offset = 0) {
  for (const bool in_place : {false, true}) {
    if (full_size && in_place) continue;
    table.add({.op = Op::subtract,
               .full_size = full_size,
               .detail = fmt::format("{}_n{}{}{}", name_of(dtype), n, offset == 0 ? "" : "_unaligned",
                                     in_place ? "_into_a" : ""),
               .operands = {in_storage(input("a", dtype, {n}), "a", offset),
                            in_storage(input("b", dtype, {n}), "b", offset),
                            in_storage(result("y", dtype, {n}, 1e-7), in_place ? "a" : "y", offset)}});
  }
}

void depth_predictor_loss(CaseTable& table, bool full_size, std::int64_t samples, std::int64_t length,
                          DType dtype, bool accumulate, const Drawn& from) {
  const Shape shape = {samples, length, 1};
  std::vector<std::int32_t> places = draw({"", 0, 3}, samples * length);
  std::int32_t taken = 0;
  for (std::int32_t& place : places) place = place == 0 ? taken++ : -1;
  // Of confident predictors, the loss and its gradients vanish.
  Operand dlogits = result("dlogits", dtype, shape, 2e-6);
  dlogits.floor = 1e-3;
  Operand sums = result("sums", DType::fp32, {3}, 2e-6, accumulate);
  sums.floor = 1.0;
  OpCase c{.op = Op::depth_predictor_loss,
           .full_size = full_size,
           .detail = fmt::format("{}_B{}_T{}{}", name_of(dtype), samples, length, accumulate ? "_add" : ""),
           .operands = {input("logits", dtype, shape), input("places", DType::int32, shape), dlogits, sums},
           .accumulate = accumulate,
           .scale = 0.375F,
           .scalars = {.loss_scale = 4.0F},
           .integers = {{"places", std::move(places)}}};
  if (accumulate) c.integers.push_back({"sums", {7, 400, 900}});  // whole, so that counts stay exact
  add_drawn(table, std::move(c), from);
}

}  // namespace

void add_small_depth_cases(CaseTable& table) {
  const auto top_tokens = [&](std::int64_t samples, std::int64_t length, std::int64_t count) {
    for (const Drawn& from :
         {Drawn{"", 2}, Drawn{"_ties", -1, 3}, Drawn{"_negative", -4, 2}, Drawn{"_equal", -2, 1}}) {
      add_drawn(table, taking(Op::top_tokens, false, samples, length, count, DType::fp32), from);
    }
  };
  for (const std::int64_t samples : {1, 3}) {
    top_tokens(samples, 1, 1);
    for (const std::int64_t count : {1, 3, 7}) top_tokens(samples, 7, count);
    for (const std::int64_t count : {1, 8, 63, 64}) top_tokens(samples, 64, count);
    for (const std::int64_t count : {1, 25, 200}) top_tokens(samples, 200, count);
  }
  top_tokens(2, 1500, 190);  // more tokens than a GPU's block has threads

  for (const DType dtype : float_types) {
    const std::vector<Drawn> scores = {{"", 2}, {"_some", -1, 3}, {"_none", -1, 2}, {"_all", 1, 3}};
    for (const Drawn& from : scores) {
      for (const auto& [samples, length] :
           {std::pair{1, 1}, {3, 1}, {1, 7}, {3, 7}, {1, 64}, {3, 64}, {3, 200}, {2, 1500}})
        add_drawn(table, taking(Op::positive_tokens, false, samples, length, length, dtype), from);
      positive_tokens_of(table, {1, 1, 1, {0}, {0}}, dtype, from);
      positive_tokens_of(table, {1, 40, 5, {3, 0, 4}, {17, 0, 39}}, dtype, from);
      positive_tokens_of(table, {7, 40, 4, {2, 0, 3}, {0, 33, 5}}, dtype, from);  // to the last position
      positive_tokens_of(table, {9, 20, 3, {1, 0}, {15, 3}}, dtype, from);        // and beyond
      positive_tokens_of(table, {200, 256, 2, {1, 0}, {0, 50}}, dtype, from);
    }

    for (const std::int64_t n : {1, 17, 1000, 100003}) subtract(table, false, n, dtype);
    subtract(table, false, 999, dtype, 3);

    const std::vector<Drawn> logits = {{"", 3}, {"_whole", -2, 5}, {"_large", 60}, {"_very_large", 300}};
    for (const Drawn& from : logits) {
      for (const bool accumulate : {false, true}) {
        for (const auto& [samples, length] : {std::pair{1, 1}, {2, 7}, {3, 65}, {4, 700}})
          depth_predictor_loss(table, false, samples, length, dtype, accumulate, from);
      }
    }
  }
}

void add_full_size_depth_cases(CaseTable& table) {
  constexpr std::int64_t samples = 4, length = 256;
  static_assert(samples * length == FullSize::rows);
  add_drawn(table, taking(Op::top_tokens, true, samples, length, length / 8, DType::fp32), {"", 2});
  for (const DType dtype : float_types) {
    add_drawn(table, taking(Op::positive_tokens, true, samples, length, length, dtype), {"", 2});
    subtract(table, true, samples * length * FullSize::width, dtype);
    depth_predictor_loss(table, true, samples, length, dtype, true, {"", 3});
  }
}

}  // namespace mylos
