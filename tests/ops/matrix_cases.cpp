// SPDX-License-Identifier: BSD-3-Clause
// The cases of the operations of optimizers that update whole matrices.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tests/ops/case_table.hpp"

namespace mylos {

namespace {

struct Product {
  std::int64_t batches, rows, inner, columns;
  bool x_transposed = false, y_transposed = false;
  bool y_is_x = false;
  std::int64_t offset = 0;  // shifts every tensor off its 64-byte boundary
};

OpCase product_of(bool full_size, const Product& s, DType dtype) {
  const std::int64_t b = s.batches, m = s.rows, k = s.inner, n = s.columns;
  const Operand x =
      in_storage(input("x", dtype, {b, s.x_transposed ? k : m, s.x_transposed ? m : k}), "x", s.offset);
  const Operand y = in_storage(input("y", dtype, {b, s.y_transposed ? n : k, s.y_transposed ? k : n}),
                               s.y_is_x ? "x" : "y", s.offset);
  Operand z = in_storage(result("z", DType::fp32, {b, m, n}, 2e-6), "z", s.offset);
  z.floor = 1.0;  // the terms of few elements may cancel
  OpCase c{.op = Op::matrix_product,
           .full_size = full_size,
           .detail = fmt::format("{}_B{}_M{}_K{}_N{}{}{}{}{}", name_of(dtype), b, m, k, n,
                                 s.x_transposed ? "_xT" : "", s.y_transposed ? "_yT" : "",
                                 s.y_is_x ? "_y_is_x" : "", s.offset == 0 ? "" : "_unaligned"),
           .operands = {x, y, z},
           .x_transposed = s.x_transposed,
           .y_transposed = s.y_transposed};
  if (s.y_is_x) c.bytes = static_cast<double>(x.view.bytes() + z.view.bytes());
  return c;
}

void matrix_product(CaseTable& table, bool full_size, const Product& s, DType dtype) {
  table.add(product_of(full_size, s, dtype));
}

/// The squares of symmetric matrices of whole numbers.
void symmetric_square(CaseTable& table, std::int64_t batches, std::int64_t n, DType dtype) {
  std::vector<std::int32_t> numbers;
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t i = 0; i < n * n; ++i) {
      const std::int64_t larger = std::max(i / n, i % n), smaller = std::min(i / n, i % n);
      const std::uint64_t random = mix64(static_cast<std::uint64_t>((b * n + larger) * n + smaller + 1));
      numbers.push_back(static_cast<std::int32_t>(random % 7) - 3);
    }
  }
  OpCase c =
      product_of(false, {.batches = batches, .rows = n, .inner = n, .columns = n, .y_is_x = true}, dtype);
  c.detail += "_symmetric";
  c.operands.back().tolerance = 0.0;
  c.integers = {{"x", std::move(numbers)}};
  table.add(std::move(c));
}

void scaled_sum(CaseTable& table, bool full_size, std::int64_t n, float a, float b, std::int64_t offset = 0) {
  for (const std::string_view storage : {"z", "x", "y"}) {
    if (full_size && storage != "y") continue;
    Operand z = in_storage(result("z", DType::fp32, {n}, 3e-7), std::string(storage), offset);
    z.floor = std::abs(a) + std::abs(b);  // the terms of few elements may cancel
    table.add({.op = Op::scaled_sum,
               .full_size = full_size,
               .detail = fmt::format("n{}_a{}_b{}{}{}", n, a, b, offset == 0 ? "" : "_unaligned",
                                     storage == "z" ? "" : fmt::format("_into_{}", storage)),
               .operands = {in_storage(input("x", DType::fp32, {n}), "x", offset),
                            in_storage(input("y", DType::fp32, {n}), "y", offset), z},
               .scale = a,
               .second_scale = b});
  }
}

/// Matrices of numbers between -spread and spread.
OpCase matrices_of(bool full_size, std::int64_t batches, std::int64_t n, double spread, float least) {
  Operand x = result("x", DType::fp32, {batches, n}, 2e-6, true);
  x.low = -spread;
  x.high = spread;
  return {.op = Op::normalise_matrices,
          .full_size = full_size,
          .detail = fmt::format("B{}_n{}_spread{}_least{}", batches, n, spread, least),
          .operands = {x},
          .scale = least};
}

/// Three matrices of whole numbers, of which the second is zero.
void normalise_zero_among_others(CaseTable& table, std::int64_t n) {
  OpCase c = matrices_of(false, 3, n, 1.0, 1e-7F);
  std::vector<std::int32_t> numbers;
  for (std::int64_t i = 0; i < 3 * n; ++i)
    numbers.push_back(i / n == 1 ? 0
                                 : 1 + static_cast<std::int32_t>(mix64(static_cast<std::uint64_t>(i)) % 9));
  c.integers = {{"x", std::move(numbers)}};
  c.detail += "_zero_among_others";
  table.add(std::move(c));
}

void nesterov_momentum(CaseTable& table, bool full_size, std::int64_t n, DType gradient, float clip_factor,
                       bool skips = false, std::int64_t offset = 0) {
  Operand momentum = result("momentum", DType::fp32, {n}, skips ? 0.0 : 5e-7, true);
  Operand direction = result("direction", DType::fp32, {n}, skips ? 0.0 : 5e-7);
  momentum.floor = direction.floor = 1.0;  // the terms of few elements may cancel
  table.add(
      {.op = Op::nesterov_momentum,
       .full_size = full_size,
       .detail = fmt::format("{}_n{}_clip{}{}{}", name_of(gradient), n, clip_factor, skips ? "_skip" : "",
                             offset == 0 ? "" : "_unaligned"),
       .operands = {in_storage(input("gradient", gradient, {n}), "gradient", offset),
                    in_storage(momentum, "momentum", offset), in_storage(direction, "direction", offset)},
       .scalars = {.step = 10, .clip_factor = clip_factor, .skip = skips ? 1 : 0}});
}

/// A matrix that is copied in tiles.
struct Tiling {
  std::vector<std::int64_t> rows, columns;  // of the tiles
};

std::int64_t sum_of(const std::vector<std::int64_t>& extents) {
  return std::accumulate(extents.begin(), extents.end(), std::int64_t{0});
}

/// Copies matrices that follow each other. Their tiles lie in reverse order in `from`, or every third in
/// `other`, with gaps of `gap` elements before each tile and after each of its rows.
void copy_blocks(CaseTable& table, bool full_size, std::string detail, const std::vector<Tiling>& matrices,
                 bool has_other, std::int64_t gap) {
  std::vector<CopiedBlock> blocks;
  std::int64_t size = 0;
  for (const Tiling& matrix : matrices) {
    const std::int64_t pitch = sum_of(matrix.columns);
    for (const std::int64_t rows : matrix.rows) {
      std::int64_t column = 0;
      for (const std::int64_t columns : matrix.columns) {
        blocks.push_back({.rows = rows, .columns = columns, .to = size + column, .to_pitch = pitch});
        column += columns;
      }
      size += rows * pitch;
    }
  }
  std::ranges::reverse(blocks);
  std::array<std::int64_t, 2> used = {0, 0};  // of `from` and `other`
  std::int64_t num_rows = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    CopiedBlock& block = blocks[i];
    block.first_row = num_rows;
    block.is_from_other = has_other && i % 3 == 1;
    block.from = used[block.is_from_other ? 1 : 0] + gap;
    block.from_pitch = block.columns + gap;
    used[block.is_from_other ? 1 : 0] = block.from + block.rows * block.from_pitch;
    num_rows += block.rows;
  }
  OpCase c{.op = Op::copy_blocks,
           .full_size = full_size,
           .detail = fmt::format("{}_blocks{}_gap{}", detail, blocks.size(), gap),
           .operands = {input("from", DType::fp32, {used[0]}), result("to", DType::fp32, {size}, 0.0)},
           .blocks = std::move(blocks),
           .bytes = 2.0 * static_cast<double>(size) * sizeof(float)};
  if (has_other) {
    c.operands.push_back(input("other", DType::fp32, {used[1]}));
    c.detail += "_other";
  }
  table.add(std::move(c));
}

}  // namespace

void add_small_matrix_cases(CaseTable& table) {
  for (const DType dtype : float_types) {
    for (const std::int64_t batches : {1, 3}) {
      for (const bool x_transposed : {false, true}) {
        for (const bool y_transposed : {false, true}) {
          const auto product = [&](std::int64_t rows, std::int64_t inner, std::int64_t columns,
                                   std::int64_t offset = 0) {
            matrix_product(table, false,
                           {batches, rows, inner, columns, x_transposed, y_transposed, false, offset}, dtype);
          };
          product(1, 1, 1);
          product(3, 5, 2);
          product(17, 33, 9);
          product(64, 64, 64);
          product(65, 130, 70);
          product(1, 200, 300);
          product(300, 1, 7);
          product(40, 1000, 33);
          product(128, 128, 128);
          product(33, 48, 40, 3);
        }
        // A product with itself: x xᵀ and xᵀ x of any shape, x x and xᵀ xᵀ of square matrices.
        for (const auto& [rows, columns] :
             {std::pair<std::int64_t, std::int64_t>{3, 5}, {65, 130}, {130, 65}, {128, 512}}) {
          const std::int64_t n = x_transposed ? columns : rows, inner = x_transposed ? rows : columns;
          matrix_product(table, false, {batches, n, inner, n, x_transposed, !x_transposed, true}, dtype);
        }
        for (const std::int64_t n : {1, 17, 64, 129}) {
          for (const bool y_transposed : {false, true})
            matrix_product(table, false, {batches, n, n, n, x_transposed, y_transposed, true}, dtype);
        }
      }
      for (const std::int64_t n : {3, 65, 128}) symmetric_square(table, batches, n, dtype);
    }
    for (const std::int64_t n : {1, 7, 1000, 4099}) {
      for (const float clip_factor : {1.0F, 0.375F}) nesterov_momentum(table, false, n, dtype, clip_factor);
      nesterov_momentum(table, false, n, dtype, 0.0F, true);
    }
    nesterov_momentum(table, false, 100003, dtype, 0.7F);
    nesterov_momentum(table, false, 999, dtype, 0.7F, false, 3);
  }

  for (const std::int64_t n : {1, 7, 1000, 4099, 100003}) {
    for (const auto& [a, b] : {std::pair{1.0F, 1.0F}, {2.0315F, -4.775F}, {-1.5F, 0.25F}})
      scaled_sum(table, false, n, a, b);
  }
  scaled_sum(table, false, 999, 1.0F, 3.4445F, 3);

  for (const std::int64_t batches : {1, 3, 40}) {
    for (const std::int64_t n : {1, 15, 1000, 8450}) {
      table.add(matrices_of(false, batches, n, unit_spread, 1e-7F));
      table.add(matrices_of(false, batches, n, 0.0, 1e-7F));
      table.add(matrices_of(false, batches, n, 1e-12, 1e-7F));  // norms below `least`
      table.add(matrices_of(false, batches, n, 1.0, 1000.0F));
      table.add(matrices_of(false, batches, n, 1e-4, 1e-7F));
      table.add(matrices_of(false, batches, n, 1e15, 1e-7F));
    }
  }
  table.add(matrices_of(false, 2, (1 << 20) + 3, unit_spread, 1e-7F));
  for (const std::int64_t n : {1, 48, 5000}) normalise_zero_among_others(table, n);

  copy_blocks(table, false, "none", {}, false, 0);
  copy_blocks(table, false, "element", {{{1}, {1}}}, false, 0);
  for (const std::int64_t gap : {0, 3, 16}) {
    copy_blocks(table, false, "whole", {{{33}, {64}}}, false, gap);
    for (const bool has_other : {false, true}) {
      copy_blocks(table, false, "columns", {{{64}, {32, 32, 32, 32}}}, has_other, gap);
      copy_blocks(table, false, "rows", {{{16, 16, 1, 7}, {100}}}, has_other, gap);
      copy_blocks(table, false, "tiles", {{{3, 1, 20}, {5, 64, 1, 17}}}, has_other, gap);
      copy_blocks(table, false, "matrices", {{{8}, {48}}, {{1, 130}, {7, 25}}, {{5, 5}, {1}}, {{1}, {3001}}},
                  has_other, gap);
      copy_blocks(table, false, "many", {{std::vector<std::int64_t>(100, 1), {4, 9}}}, has_other, gap);
    }
  }
}

void add_full_size_matrix_cases(CaseTable& table) {
  constexpr std::int64_t matrices = 4, width = FullSize::width, hidden = 4 * width;
  for (const DType dtype : float_types) {
    matrix_product(table, true, {matrices, width, width, width, false, false, true}, dtype);
    matrix_product(table, true, {matrices, width, hidden, width, false, true, true}, dtype);
    matrix_product(table, true, {matrices, width, hidden, width, true, false, true}, dtype);
    matrix_product(table, true, {matrices, width, width, hidden}, dtype);
    matrix_product(table, true, {matrices, hidden, width, width}, dtype);
    nesterov_momentum(table, true, matrices * width * hidden, dtype, 0.7F);
  }
  scaled_sum(table, true, matrices * width * hidden, 1.0F, 3.4445F);
  table.add(matrices_of(true, matrices, width * hidden, unit_spread, 1e-7F));
  copy_blocks(table, true, "columns",
              {{std::vector<std::int64_t>(matrices, width), std::vector<std::int64_t>(2, hidden / 2)}}, true,
              0);
}

}  // namespace mylos
