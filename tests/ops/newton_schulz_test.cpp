// SPDX-License-Identifier: BSD-3-Clause
// Five iterations of Newton and Schulz, as Muon combines them from the operations: against the same in fp64,
// and what the result must be whatever the rounding.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/ops/matrix_oracle.hpp"
#include "tests/support/backend_fixture.hpp"

namespace mylos {

namespace {

using oracle::Array;

// Of the quintic a X + b (X Xᵀ) X + c (X Xᵀ)² X (Jordan, 2024).
constexpr float quintic_a = 3.4445F, quintic_b = -4.775F, quintic_c = 2.0315F;
constexpr int num_iterations = 5;

/// Matrices with different singular values, none of them near 0.
Array some_matrices(std::int64_t batches, std::int64_t rows, std::int64_t columns) {
  Array x({batches, rows, columns});
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const double random = std::ldexp(static_cast<double>(mix64(static_cast<std::uint64_t>(i)) >> 11U), -53);
    const bool is_diagonal = i / columns % rows == i % columns;
    x[i] = static_cast<float>(random - 0.5 + (is_diagonal ? 2.0 : 0.0));
  }
  return x;
}

Array transposed(const Array& x) {
  Array y({x.dim(0), x.dim(2), x.dim(1)});
  const std::int64_t rows = x.dim(1), columns = x.dim(2);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::int64_t matrix = i / (rows * columns), row = i / columns % rows, column = i % columns;
    y[(matrix * columns + column) * rows + row] = x[i];
  }
  return y;
}

/// Whether X Xᵀ is larger than Xᵀ X.
bool is_tall(const Array& x) {
  return x.dim(1) > x.dim(2);
}

Array orthogonalise_in_fp64(Array x) {
  oracle::normalise_matrices(1e-7, x);
  for (int i = 0; i < num_iterations; ++i) {
    const Array a = oracle::matrix_product(x, is_tall(x), x, !is_tall(x));
    const Array square = oracle::matrix_product(a, false, a, false);
    const Array p = oracle::scaled_sum(quintic_c, square, quintic_b, a);
    const Array px =
        is_tall(x) ? oracle::matrix_product(x, false, p, false) : oracle::matrix_product(p, false, x, false);
    x = oracle::scaled_sum(1.0, px, quintic_a, x);
  }
  return x;
}

/// Returns the singular values of one matrix: the roots of the eigenvalues of X Xᵀ or Xᵀ X, which rotations
/// of two rows and columns at a time make diagonal (Jacobi, 1846).
std::vector<double> singular_values(const Array& x, std::int64_t matrix) {
  Array gram = oracle::matrix_product(x, is_tall(x), x, !is_tall(x));
  const std::int64_t n = gram.dim(1);
  const auto at = [&](std::int64_t i, std::int64_t j) -> double& { return gram[(matrix * n + i) * n + j]; };
  for (int sweep = 0; sweep < 12; ++sweep) {
    for (std::int64_t p = 0; p < n; ++p) {
      for (std::int64_t q = p + 1; q < n; ++q) {
        const double angle = 0.5 * std::atan2(2.0 * at(p, q), at(q, q) - at(p, p));
        const double c = std::cos(angle), s = std::sin(angle);
        const auto rotate = [&](double& first, double& second) {
          const double old = first;
          first = c * old - s * second;
          second = s * old + c * second;
        };
        for (std::int64_t i = 0; i < n; ++i) rotate(at(p, i), at(q, i));
        for (std::int64_t i = 0; i < n; ++i) rotate(at(i, p), at(i, q));
      }
    }
  }
  std::vector<double> values;
  for (std::int64_t i = 0; i < n; ++i) values.push_back(std::sqrt(std::max(at(i, i), 0.0)));
  return values;
}

class NewtonSchulzTest : public testing::TestWithParam<std::string> {
 protected:
  ComputeBackend& backend() { return test_backends().at(GetParam()); }

  Array orthogonalise(const Array& matrices) {
    const bool tall = is_tall(matrices);
    const std::int64_t batches = matrices.dim(0), rows = matrices.dim(1), columns = matrices.dim(2);
    const std::int64_t n = std::min(rows, columns), size = matrices.size();
    std::vector<float> values;
    for (const double value : matrices.values) values.push_back(static_cast<float>(value));
    const auto bytes_of = [](std::int64_t elements) {
      return static_cast<std::size_t>(elements) * sizeof(float);
    };
    const auto allocate = [&](std::int64_t elements) {
      return backend().allocate(bytes_of(elements), "mylos::tests::newton_schulz");
    };
    const Allocation x_memory = allocate(size), product_memory = allocate(size);
    const Allocation a_memory = allocate(batches * n * n), p_memory = allocate(batches * n * n);
    backend().copy_to_device(values.data(), x_memory.get(), bytes_of(size));
    const TensorRef x(x_memory.get(), DType::fp32, {batches, rows, columns});
    const TensorRef px(product_memory.get(), DType::fp32, {batches, rows, columns});
    const TensorRef a(a_memory.get(), DType::fp32, {batches, n, n});
    const TensorRef p(p_memory.get(), DType::fp32, {batches, n, n});
    backend().run(NormaliseMatrices{.x = x.reshaped({batches, rows * columns})});
    for (int i = 0; i < num_iterations; ++i) {
      backend().run(MatrixProduct{.x = x, .y = x, .z = a, .x_transposed = tall, .y_transposed = !tall});
      backend().run(MatrixProduct{.x = a, .y = a, .z = p});
      backend().run(ScaledSum{.x = p.flat(), .y = a.flat(), .z = p.flat(), .a = quintic_c, .b = quintic_b});
      backend().run(MatrixProduct{.x = tall ? x : p, .y = tall ? p : x, .z = px});
      backend().run(ScaledSum{.x = px.flat(), .y = x.flat(), .z = x.flat(), .b = quintic_a});
    }
    backend().copy_to_host(x_memory.get(), values.data(), bytes_of(size));
    backend().synchronize();
    Array result(matrices.shape);
    std::ranges::copy(values, result.values.begin());
    return result;
  }

  /// Calls check(matrices) for matrices of several shapes.
  static void for_each_shape(const auto& check) {
    for (const auto& [rows, columns] : {std::pair{16, 16}, {16, 48}, {48, 16}, {1, 5}, {33, 70}}) {
      SCOPED_TRACE(fmt::format("{} x {}", rows, columns));
      check(some_matrices(2, rows, columns));
    }
  }
};

TEST_P(NewtonSchulzTest, AgreesWithFp64) {
  for_each_shape([&](const Array& x) {
    EXPECT_LE(oracle::relative_error(orthogonalise(x), orthogonalise_in_fp64(x)), 1e-4);
  });
}

TEST_P(NewtonSchulzTest, BringsSingularValuesNearOne) {
  for_each_shape([&](const Array& x) {
    const Array result = orthogonalise(x);
    for (const std::int64_t matrix : {0, 1}) {
      const auto before = std::ranges::minmax(singular_values(x, matrix));
      const auto after = std::ranges::minmax(singular_values(result, matrix));
      EXPECT_TRUE(x.dim(1) == 1 || before.max > 1.5 * before.min) << "the input is nearly orthogonal";
      EXPECT_GT(after.min, 0.6);
      EXPECT_LT(after.max, 1.3);
    }
  });
}

TEST_P(NewtonSchulzTest, OfTheTransposeIsTheTranspose) {
  for_each_shape([&](const Array& x) {
    EXPECT_LE(oracle::relative_error(orthogonalise(transposed(x)), transposed(orthogonalise(x))), 1e-4);
  });
}

TEST_P(NewtonSchulzTest, DoesNotDependOnTheScale) {
  for_each_shape([&](const Array& x) {
    const Array expected = orthogonalise(x);
    for (const double scale : {1e-3, 1e3, -1.0}) {
      Array scaled = orthogonalise(oracle::scaled_sum(scale, x, 0.0, x));
      if (scale < 0.0) scaled = oracle::scaled_sum(-1.0, scaled, 0.0, scaled);
      EXPECT_LE(oracle::relative_error(scaled, expected), 1e-4) << scale;
    }
  });
}

TEST_P(NewtonSchulzTest, OfZeroIsZero) {
  for_each_shape([&](const Array& x) {
    const auto half = static_cast<std::ptrdiff_t>(x.size() / 2);
    Array second_is_zero = x;
    std::fill(second_is_zero.values.begin() + half, second_is_zero.values.end(), 0.0);
    const Array result = orthogonalise(second_is_zero);
    const Array expected = orthogonalise(x);
    EXPECT_TRUE(std::equal(result.values.begin(), result.values.begin() + half, expected.values.begin()))
        << "a matrix depends on the others";
    EXPECT_TRUE(std::all_of(result.values.begin() + half, result.values.end(),
                            [](double value) { return value == 0.0; }));
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, NewtonSchulzTest, testing::ValuesIn(compute_backend_names()),
                         backend_test_name);

}  // namespace

}  // namespace mylos
