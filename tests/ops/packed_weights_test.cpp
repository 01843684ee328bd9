// SPDX-License-Identifier: BSD-3-Clause
// Products large enough to be divided into blocks, and products with versioned weights: a backend that keeps
// packed copies must multiply by the current weights.
#include <algorithm>
#include <iterator>
#include <omp.h>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/backend_fixture.hpp"

namespace mylos {
namespace {

/// Small multiples of 1/2, whose products every order of summation adds without rounding.
std::vector<float> pattern(std::int64_t elements, int seed) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<float>(static_cast<int>((i * 7 + i / 61 * 3 + static_cast<std::size_t>(seed)) % 5) - 2) /
        2;
  }
  return values;
}

using ProductParam = std::tuple<std::string, DType>;

class ProductsTest : public testing::TestWithParam<ProductParam> {
 protected:
  ComputeBackend& backend() { return test_backends().at(std::get<0>(GetParam())); }
  DType dtype() const { return std::get<1>(GetParam()); }

  /// Whether compute_onednn multiplies with its own kernel here.
  bool is_own_product() {
    const std::string text = backend().description();
    const std::size_t begin = text.find("own GEMM (");
    return begin != std::string::npos &&
           text.substr(begin, text.find(')', begin) - begin).find(name_of(dtype())) != std::string::npos;
  }

  Allocation allocate(std::int64_t elements) {
    return backend().allocate(static_cast<std::size_t>(elements) * size_of(dtype()), "mylos::tests::packed");
  }
  void write(void* memory, const std::vector<float>& values) {
    const auto n = static_cast<std::int64_t>(values.size());
    const Allocation wide = backend().allocate(values.size() * sizeof(float), "mylos::tests::packed");
    backend().copy_to_device(values.data(), wide.get(), values.size() * sizeof(float));
    backend().run(Cast{.x = TensorRef(wide.get(), DType::fp32, {n}), .y = TensorRef(memory, dtype(), {n})});
    backend().synchronize();
  }
  std::vector<float> read(void* memory, std::int64_t elements) { return read(memory, elements, dtype()); }
  std::vector<float> read(void* memory, std::int64_t elements, DType type) {
    std::vector<float> values(static_cast<std::size_t>(elements));
    const Allocation wide = backend().allocate(values.size() * sizeof(float), "mylos::tests::packed");
    backend().run(
        Cast{.x = TensorRef(memory, type, {elements}), .y = TensorRef(wide.get(), DType::fp32, {elements})});
    backend().copy_to_host(wide.get(), values.data(), values.size() * sizeof(float));
    backend().synchronize();
    return values;
  }
};

class PackedWeightsTest : public ProductsTest {
 protected:
  static constexpr std::int64_t rows = 1024;  // enough for packed copies to pay off
  static constexpr std::int64_t in = 64;
  static constexpr std::int64_t out = 128;

  /// x w and dy wᵀ, for weights in either storage order.
  std::pair<std::vector<float>, std::vector<float>> products(void* weights, std::uint64_t version,
                                                             bool transposed) {
    const Allocation x_memory = allocate(rows * in);
    const Allocation y_memory = allocate(rows * out);
    void* x = x_memory.get();
    void* y = y_memory.get();
    TensorRef w(weights, dtype(), {in, out}, version);
    if (transposed) w.stride = {1, in};
    write(x, pattern(rows * in, 1));
    backend().run(LinearForward{.x = {x, dtype(), {rows, in}}, .w = w, .y = {y, dtype(), {rows, out}}});
    std::vector<float> forward = read(y, rows * out);
    write(y, pattern(rows * out, 2));
    backend().run(
        LinearBackwardInput{.dy = {y, dtype(), {rows, out}}, .w = w, .dx = {x, dtype(), {rows, in}}});
    std::vector<float> backward = read(x, rows * in);
    return {std::move(forward), std::move(backward)};
  }
};

TEST_P(PackedWeightsTest, AreRenewedWithTheVersion) {
  for (const bool transposed : {false, true}) {
    Allocation weights = allocate(in * out);
    for (const std::uint64_t version : {1, 2, 3}) {
      write(weights.get(), pattern(in * out, static_cast<int>(version)));
      const auto expected = products(weights.get(), 0, transposed);  // without a version, no copy is kept
      for (int repetition = 0; repetition < 2; ++repetition) {
        EXPECT_TRUE(products(weights.get(), version, transposed) == expected);
      }
    }
    weights.reset();
  }
}

TEST_P(PackedWeightsTest, WithoutAVersionAreNotKept) {
  Allocation weights = allocate(in * out);
  write(weights.get(), pattern(in * out, 1));
  const auto first = products(weights.get(), 0, false);
  write(weights.get(), pattern(in * out, 2));
  EXPECT_FALSE(products(weights.get(), 0, false) == first);
  weights.reset();
}

TEST_P(PackedWeightsTest, EndWithTheMemoryOfTheWeights) {
  for (const int model : {1, 2}) {  // two models in succession: same version, often same address
    Allocation weights = allocate(in * out);
    write(weights.get(), pattern(in * out, model));
    EXPECT_TRUE(products(weights.get(), 1, false) == products(weights.get(), 0, false));
    weights.reset();
  }
  Allocation weights = allocate(in * out);
  write(weights.get(), pattern(in * out, 1));
  const std::size_t unpacked = test_backends().ledger().current();
  products(weights.get(), 1, false);
  const bool falls_through = backend().description().find("with AVX2 ") != std::string::npos;
  const bool keeps_copies = !is_own_product() && (dtype() == DType::fp32 || !falls_through);
  if (std::get<0>(GetParam()) == "onednn" && keeps_copies && dtype() != DType::fp16) {
    const std::size_t copies = dtype() == DType::bf16 ? 2 : 1;  // in fp32, only dX is computed from a copy
    EXPECT_EQ(test_backends().ledger().current(), unpacked + copies * in * out * size_of(dtype()));
  }
  weights.reset();
  EXPECT_EQ(test_backends().ledger().current(), unpacked);
}

/// Every product, with rows and columns that do not fill tiles and, for compute_onednn's own kernel, with
/// more than one block along the summed dimension.
class LargeProductsTest : public ProductsTest {
 protected:
  /// compute_onednn's own kernel sums over blocks of at most 512 or 1024. The other kernels get smaller
  /// products, because they are slow under sanitizers.
  bool is_large() { return is_own_product(); }

  float rounded(double value, DType type) const {
    const auto wide = static_cast<float>(value);
    return type == DType::bf16   ? static_cast<float>(bf16(wide))
           : type == DType::fp16 ? static_cast<float>(fp16(wide))
                                 : wide;
  }
  /// Checks some elements of a matrix, and more in its last rows and columns, where blocks end.
  template <class Check>
  static void for_some_elements(std::int64_t height, std::int64_t columns, Check check) {
    for (std::int64_t e = 0; e < height * columns; e += 3203) check(e / columns, e % columns);
    for (std::int64_t i = height - 9; i < height; ++i) {
      for (std::int64_t j = columns - 49; j < columns; j += 12) check(i, j);
    }
  }
  void check_products(std::int64_t rows, std::int64_t in, std::int64_t out, bool transposed,
                      DType gradient_type);
};

void LargeProductsTest::check_products(std::int64_t rows, std::int64_t in, std::int64_t out, bool transposed,
                                       DType gradient_type) {
  const std::vector<float> x = pattern(rows * in, 1);
  const std::vector<float> w = pattern(in * out, 2);
  const std::vector<float> dy = pattern(rows * out, 3);
  const std::vector<float> b = pattern(out, 4);
  const Allocation px_memory = allocate(rows * in);
  void* px = px_memory.get();
  const Allocation pw_memory = allocate(in * out);
  void* pw = pw_memory.get();
  const Allocation pdy_memory = allocate(rows * out);
  void* pdy = pdy_memory.get();
  const Allocation py_memory = allocate(rows * out);
  void* py = py_memory.get();
  const Allocation pdx_memory = allocate(rows * in);
  void* pdx = pdx_memory.get();
  const Allocation pdw_memory = allocate(2 * in * out);
  void* pdw = pdw_memory.get();
  const Allocation pb_memory = allocate(out);
  void* pb = pb_memory.get();
  const Allocation pdb_memory = allocate(2 * out);
  void* pdb = pdb_memory.get();
  write(px, x);
  write(pw, w);
  write(pdy, dy);
  write(pb, b);
  const auto at = [&](std::int64_t i, std::int64_t o) {
    return static_cast<std::size_t>(transposed ? i + o * in : i * out + o);
  };
  const auto weight = [&](void* memory, DType type) {
    TensorRef ref(memory, type, {in, out});
    if (transposed) ref.stride = {1, in};
    return ref;
  };
  const auto index = [](std::int64_t i, std::int64_t j, std::int64_t columns) {
    return static_cast<std::size_t>(i * columns + j);
  };
  backend().run(LinearForward{.x = {px, dtype(), {rows, in}},
                              .w = weight(pw, dtype()),
                              .bias = {pb, dtype(), {out}},
                              .y = {py, dtype(), {rows, out}}});
  const std::vector<float> y = read(py, rows * out);
  for_some_elements(rows, out, [&](std::int64_t r, std::int64_t o) {
    double sum = b[static_cast<std::size_t>(o)];
    for (std::int64_t i = 0; i < in; ++i) sum += x[index(r, i, in)] * w[at(i, o)];
    EXPECT_EQ(y[index(r, o, out)], rounded(sum, dtype())) << "y(" << r << ", " << o << ")";
  });

  backend().run(LinearBackwardInput{
      .dy = {pdy, dtype(), {rows, out}}, .w = weight(pw, dtype()), .dx = {pdx, dtype(), {rows, in}}});
  const std::vector<float> dx = read(pdx, rows * in);
  for_some_elements(rows, in, [&](std::int64_t r, std::int64_t i) {
    double sum = 0.0;
    for (std::int64_t o = 0; o < out; ++o) sum += dy[index(r, o, out)] * w[at(i, o)];
    EXPECT_EQ(dx[index(r, i, in)], rounded(sum, dtype())) << "dx(" << r << ", " << i << ")";
  });

  for (const bool accumulate : {false, true}) {
    backend().run(LinearBackwardWeight{.x = {px, dtype(), {rows, in}},
                                       .dy = {pdy, dtype(), {rows, out}},
                                       .dw = weight(pdw, gradient_type),
                                       .dbias = {pdb, gradient_type, {out}},
                                       .accumulate = accumulate});
    const auto expected = [&](double sum) {
      const float once = rounded(sum, gradient_type);
      return accumulate ? rounded(once + sum, gradient_type) : once;
    };
    const std::vector<float> dw = read(pdw, in * out, gradient_type);
    for_some_elements(in, out, [&](std::int64_t i, std::int64_t o) {
      double sum = 0.0;
      for (std::int64_t r = 0; r < rows; ++r) sum += x[index(r, i, in)] * dy[index(r, o, out)];
      EXPECT_EQ(dw[at(i, o)], expected(sum)) << "dw(" << i << ", " << o << ")";
    });
    const std::vector<float> db = read(pdb, out, gradient_type);
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = 0.0;
      for (std::int64_t r = 0; r < rows; ++r) sum += dy[index(r, o, out)];
      EXPECT_EQ(db[static_cast<std::size_t>(o)], expected(sum)) << "db(" << o << ")";
    }
  }
}

TEST_P(LargeProductsTest, AreThoseOfTheirSums) {
  const std::int64_t rows = is_large() ? 1037 : 141;
  const std::int64_t in = is_large() ? 1033 : 137;
  const std::int64_t out = is_large() ? 1081 : 269;
  check_products(rows, in, out, false, dtype());
  check_products(rows, in + 1, out + 1, true, DType::fp32);  // rows of x and dy have an even length
}

TEST_P(LargeProductsTest, DependOnNoNumberOfThreads) {
  if (!is_own_product()) GTEST_SKIP() << "promised by the own kernel only";
  constexpr std::int64_t rows = 1037;
  constexpr std::int64_t in = 301;
  const Allocation px_memory = allocate(rows * in);
  void* px = px_memory.get();
  const Allocation py_memory = allocate(rows * in);
  void* py = py_memory.get();
  const Allocation pw_memory = allocate(in * in);
  void* pw = pw_memory.get();
  const Allocation pb_memory = allocate(in);
  void* pb = pb_memory.get();
  std::vector<float> values = pattern(rows * in, 5);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] += 1.0F / static_cast<float>(i % 97 + 3);
  write(px, values);
  write(py, values);
  const int threads = omp_get_max_threads();
  // 40 columns fit in one panel: if there are more threads than panels, the threads divide the rows.
  for (const std::int64_t out : {std::int64_t{40}, in}) {
    std::vector<float> first;
    for (const int count : {1, 3, 5}) {
      omp_set_num_threads(count);
      const TensorRef w(pw, dtype(), {in, out});
      backend().run(LinearBackwardWeight{.x = {px, dtype(), {rows, in}},
                                         .dy = {py, dtype(), {rows, out}},
                                         .dw = w,
                                         .dbias = {pb, dtype(), {out}}});
      std::vector<float> results = read(pw, in * out);
      std::ranges::copy(read(pb, out), std::back_inserter(results));
      backend().run(LinearForward{.x = {px, dtype(), {rows, in}}, .w = w, .y = {py, dtype(), {rows, out}}});
      std::ranges::copy(read(py, rows * out), std::back_inserter(results));
      write(py, values);
      if (first.empty()) first = results;
      EXPECT_TRUE(results == first) << count << " threads";
    }
  }
  omp_set_num_threads(threads);
}

INSTANTIATE_TEST_SUITE_P(Backends, PackedWeightsTest,
                         testing::Combine(testing::ValuesIn(compute_backend_names()),
                                          testing::Values(DType::fp32, DType::bf16, DType::fp16)),
                         [](const testing::TestParamInfo<ProductParam>& param) {
                           return std::get<0>(param.param) + "_" +
                                  std::string(name_of(std::get<1>(param.param)));
                         });
INSTANTIATE_TEST_SUITE_P(Backends, LargeProductsTest,
                         testing::Combine(testing::ValuesIn(compute_backend_names()),
                                          testing::Values(DType::fp32, DType::bf16, DType::fp16)),
                         [](const testing::TestParamInfo<ProductParam>& param) {
                           return std::get<0>(param.param) + "_" +
                                  std::string(name_of(std::get<1>(param.param)));
                         });

}  // namespace
}  // namespace mylos
