// SPDX-License-Identifier: BSD-3-Clause
// Products with weights that carry a version: whatever a backend keeps of them, it multiplies the present
// ones.
#include <cstdlib>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/backend_fixture.hpp"

namespace mylos {
namespace {

constexpr std::int64_t rows = 1024;  // enough for packed copies to pay
constexpr std::int64_t in = 64;
constexpr std::int64_t out = 128;

/// Small whole numbers, which every order of summation adds without rounding.
std::vector<float> pattern(std::int64_t elements, int seed) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<float>(static_cast<int>((i * 7 + i / 61 * 3 + static_cast<std::size_t>(seed)) % 5) - 2) /
        2;
  }
  return values;
}

using Param = std::tuple<std::string, DType>;

class PackedWeightsTest : public testing::TestWithParam<Param> {
 protected:
  ComputeBackend& backend() { return test_backends().at(std::get<0>(GetParam())); }
  DType dtype() const { return std::get<1>(GetParam()); }

  void* allocate(std::int64_t elements) {
    return backend().allocate(static_cast<std::size_t>(elements) * size_of(dtype()), "mylos::tests::packed");
  }
  void write(void* memory, const std::vector<float>& values) {
    const auto n = static_cast<std::int64_t>(values.size());
    void* wide = backend().allocate(values.size() * sizeof(float), "mylos::tests::packed");
    backend().copy_to_device({}, values.data(), wide, values.size() * sizeof(float));
    backend().tensor_ops().cast({}, TensorRef(wide, DType::fp32, {n}), TensorRef(memory, dtype(), {n}));
    backend().synchronize({});
    backend().deallocate(wide);
  }
  std::vector<float> read(void* memory, std::int64_t elements) {
    std::vector<float> values(static_cast<std::size_t>(elements));
    void* wide = backend().allocate(values.size() * sizeof(float), "mylos::tests::packed");
    backend().tensor_ops().cast({}, TensorRef(memory, dtype(), {elements}),
                                TensorRef(wide, DType::fp32, {elements}));
    backend().copy_to_host({}, wide, values.data(), values.size() * sizeof(float));
    backend().synchronize({});
    backend().deallocate(wide);
    return values;
  }
  /// x w and dy wᵀ, for weights in either storage order.
  std::pair<std::vector<float>, std::vector<float>> products(void* weights, std::uint64_t version,
                                                             bool transposed) {
    void* x = allocate(rows * in);
    void* y = allocate(rows * out);
    TensorRef w(weights, dtype(), {in, out}, version);
    if (transposed) w.stride = {1, in};
    write(x, pattern(rows * in, 1));
    backend().transformer_ops().linear_forward({}, {x, dtype(), {rows, in}}, w, {},
                                               {y, dtype(), {rows, out}});
    std::vector<float> forward = read(y, rows * out);
    write(y, pattern(rows * out, 2));
    backend().transformer_ops().linear_backward_input({}, {y, dtype(), {rows, out}}, w,
                                                      {x, dtype(), {rows, in}});
    std::vector<float> backward = read(x, rows * in);
    backend().deallocate(y);
    backend().deallocate(x);
    return {std::move(forward), std::move(backward)};
  }
};

TEST_P(PackedWeightsTest, AreRenewedWithTheVersion) {
  for (const bool transposed : {false, true}) {
    void* weights = allocate(in * out);
    for (const std::uint64_t version : {1, 2, 3}) {
      write(weights, pattern(in * out, static_cast<int>(version)));
      const auto expected = products(weights, 0, transposed);  // nothing is kept of what has no version
      for (int repetition = 0; repetition < 2; ++repetition) {
        EXPECT_TRUE(products(weights, version, transposed) == expected);
      }
    }
    backend().deallocate(weights);
  }
}

TEST_P(PackedWeightsTest, WithoutAVersionAreNotKept) {
  void* weights = allocate(in * out);
  write(weights, pattern(in * out, 1));
  const auto first = products(weights, 0, false);
  write(weights, pattern(in * out, 2));
  EXPECT_FALSE(products(weights, 0, false) == first);
  backend().deallocate(weights);
}

TEST_P(PackedWeightsTest, EndWithTheMemoryOfTheWeights) {
  for (const int model : {1, 2}) {  // a model after another one: the same address, the same version
    void* weights = allocate(in * out);
    write(weights, pattern(in * out, model));
    EXPECT_TRUE(products(weights, 1, false) == products(weights, 0, false));
    backend().deallocate(weights);
  }
  void* weights = allocate(in * out);
  write(weights, pattern(in * out, 1));
  const std::size_t unpacked = test_backends().ledger().current();
  products(weights, 1, false);
  const bool is_limited = std::getenv("DNNL_MAX_CPU_ISA") != nullptr;  // then bf16 falls through
  if (std::get<0>(GetParam()) == "onednn" && !(is_limited && dtype() == DType::bf16)) {
    const std::size_t copies = dtype() == DType::bf16 ? 2 : 1;  // fp32 packs as it goes in forward
    EXPECT_EQ(test_backends().ledger().current(), unpacked + copies * in * out * size_of(dtype()));
  }
  backend().deallocate(weights);
  EXPECT_EQ(test_backends().ledger().current(), unpacked);
}

INSTANTIATE_TEST_SUITE_P(Backends, PackedWeightsTest,
                         testing::Combine(testing::ValuesIn(compute_backend_names()),
                                          testing::Values(DType::fp32, DType::bf16)),
                         [](const testing::TestParamInfo<Param>& param) {
                           return std::get<0>(param.param) + "_" +
                                  std::string(name_of(std::get<1>(param.param)));
                         });

}  // namespace
}  // namespace mylos
