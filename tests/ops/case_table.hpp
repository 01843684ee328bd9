// SPDX-License-Identifier: BSD-3-Clause
// What the files that list operation cases share.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "tests/ops/op_cases.hpp"

namespace mylos {

using Shape = std::initializer_list<std::int64_t>;

constexpr double unit_spread = 1.7320508;  // bound of uniform numbers with unit variance
// bf16 results are rounded once from fp32: the root mean square of the relative error is 1.7e-3. Sums of
// rounded intermediates get a larger tolerance.
constexpr double bf16_rounded = 4e-3;
constexpr double bf16_chained = 6e-3;
constexpr double fp16_share = 0.125;  // of the bf16 tolerances: fp16 has three more bits
constexpr std::array<DType, 3> float_types = {DType::fp32, DType::bf16, DType::fp16};

Operand make(std::string name, Role role, DType dtype, Shape shape);
Operand input(std::string name, DType dtype, Shape shape, double low = -unit_spread,
              double high = unit_spread);
Operand derived(std::string name, DType dtype, Shape shape);
/// A result: updated if it accumulates, otherwise written.
Operand result(std::string name, DType dtype, Shape shape, double fp32_tolerance, bool accumulate = false,
               double bf16_tolerance = bf16_rounded);
Operand in_storage(Operand operand, std::string storage, std::int64_t offset = 0);

/// The types of gradients for weights of type `dtype`.
std::vector<DType> gradient_types(DType dtype);

class CaseTable {
 public:
  std::vector<OpCase> cases;

  /// Counts operations, and bytes if the case does not say them.
  void add(OpCase c);
};

void add_small_depth_cases(CaseTable& table);
void add_full_size_depth_cases(CaseTable& table);
void add_small_expert_cases(CaseTable& table);
void add_full_size_expert_cases(CaseTable& table);
void add_small_matrix_cases(CaseTable& table);
void add_full_size_matrix_cases(CaseTable& table);

}  // namespace mylos
