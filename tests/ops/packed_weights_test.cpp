// SPDX-License-Identifier: BSD-3-Clause
// Products with weights that carry a version: whatever a backend keeps of them, it multiplies the present
// ones.
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/backend_fixture.hpp"

namespace mylos {
namespace {

constexpr std::int64_t rows = 1024;  // enough for packed copies to pay
constexpr std::int64_t in = 48;
constexpr std::int64_t out = 80;

class PackedWeightsTest : public testing::TestWithParam<std::string> {
 protected:
  ComputeBackend& backend() { return test_backends().at(GetParam()); }

  void* allocate(std::int64_t elements) {
    return backend().allocate(static_cast<std::size_t>(elements) * sizeof(float), "mylos::tests::packed");
  }
  void fill(void* memory, std::int64_t elements, float value) {
    backend().tensor_ops().fill({}, TensorRef(memory, DType::fp32, {elements}), value);
  }
  float first_of(const void* memory) {
    float value = 0.0F;
    backend().copy_to_host({}, memory, &value, sizeof value);
    backend().synchronize({});
    return value;
  }
  /// The first elements of x w and dy wᵀ, all of x, dy and w being equal.
  std::pair<float, float> products(void* weights, std::uint64_t version) {
    void* x = allocate(rows * in);
    void* y = allocate(rows * out);
    fill(x, rows * in, 1.0F);
    const TensorRef w(weights, DType::fp32, {in, out}, version);
    backend().transformer_ops().linear_forward({}, {x, DType::fp32, {rows, in}}, w, {},
                                               {y, DType::fp32, {rows, out}});
    const float forward = first_of(y);
    fill(y, rows * out, 1.0F);
    backend().transformer_ops().linear_backward_input({}, {y, DType::fp32, {rows, out}}, w,
                                                      {x, DType::fp32, {rows, in}});
    const float backward = first_of(x);
    backend().deallocate(y);
    backend().deallocate(x);
    return {forward, backward};
  }
};

TEST_P(PackedWeightsTest, AreRenewedWithTheVersion) {
  void* weights = allocate(in * out);
  for (const std::uint64_t version : {1, 2, 3}) {
    const auto value = static_cast<float>(version);
    fill(weights, in * out, value);
    for (int repetition = 0; repetition < 2; ++repetition) {
      EXPECT_EQ(products(weights, version), std::pair(in * value, out * value));
    }
  }
  backend().deallocate(weights);
}

TEST_P(PackedWeightsTest, WithoutAVersionAreNotKept) {
  void* weights = allocate(in * out);
  for (const float value : {1.0F, 2.0F}) {
    fill(weights, in * out, value);
    EXPECT_EQ(products(weights, 0), std::pair(in * value, out * value));
  }
  backend().deallocate(weights);
}

TEST_P(PackedWeightsTest, EndWithTheMemoryOfTheWeights) {
  const std::size_t before = test_backends().ledger().current();
  for (const float value : {1.0F, 2.0F}) {  // a model after another one: the same address, the same version
    void* weights = allocate(in * out);
    fill(weights, in * out, value);
    EXPECT_EQ(products(weights, 1), std::pair(in * value, out * value));
    backend().deallocate(weights);
  }
  void* weights = allocate(in * out);
  fill(weights, in * out, 1.0F);
  const std::size_t unpacked = test_backends().ledger().current();
  products(weights, 1);
  const std::size_t packed = test_backends().ledger().current();
  if (GetParam() == "onednn") {
    EXPECT_GE(packed, unpacked + in * out * sizeof(float));  // of dX; forward needs none in fp32
  }
  backend().deallocate(weights);
  EXPECT_EQ(test_backends().ledger().current(), unpacked);
  EXPECT_GE(unpacked, before);  // a scratchpad stays
}

INSTANTIATE_TEST_SUITE_P(Backends, PackedWeightsTest, testing::ValuesIn(compute_backend_names()),
                         backend_test_name);

}  // namespace
}  // namespace mylos
