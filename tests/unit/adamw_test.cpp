// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/adamw.hpp"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/support/backend_fixture.hpp"

namespace mylos {
namespace {

class AdamWTest : public testing::TestWithParam<std::string> {
 protected:
  /// Steps weights without a master in `parts` of each unit; all units' weights, one behind the other.
  std::vector<std::uint16_t> step(std::int64_t cuts, std::uint64_t seed) {
    std::vector<UnitPart> parts;
    std::vector<std::int64_t> offsets;
    std::int64_t total = 0;
    for (int unit = 0; unit < table_.num_units(); ++unit) {
      const std::int64_t size = table_.units()[static_cast<std::size_t>(unit)].size;
      for (std::int64_t cut = 0; cut < cuts; ++cut) {
        const std::int64_t begin = size * cut / cuts;
        parts.push_back({unit, begin, size * (cut + 1) / cuts - begin});
        offsets.push_back(total + begin);
      }
      total += size;
    }
    MemoryLedger ledger;
    AdamW optimizer(backend_, ledger, table_, {.keeps_master = false, .seed = seed}, DType::bf16, parts);
    const auto bytes = static_cast<std::size_t>(total) * sizeof(bf16);
    const DeviceBuffer weights(backend_, ledger, MemoryCategory::parameters, bytes, "mylos::tests::weights");
    const DeviceBuffer gradient(backend_, ledger, MemoryCategory::gradients, bytes, "mylos::tests::gradient");
    const DeviceBuffer scalars(backend_, ledger, MemoryCategory::workspace, sizeof(StepScalars),
                               "mylos::tests::scalars");
    std::vector<bf16> values;
    for (std::int64_t i = 0; i < total; ++i) {
      values.emplace_back(normal_pair(static_cast<std::uint32_t>(mix64(static_cast<std::uint64_t>(i))),
                                      static_cast<std::uint32_t>(i))[0]);
    }
    backend_.copy_to_device({}, values.data(), weights.data(), bytes);
    std::ranges::reverse(values);
    backend_.copy_to_device({}, values.data(), gradient.data(), bytes);
    for (std::int64_t t = 1; t <= 3; ++t) {
      const StepScalars host{.step = t, .learning_rate = 1e-3F};
      backend_.copy_to_device({}, &host, scalars.data(), sizeof(host));
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const auto part = [&](const DeviceBuffer& buffer) {
          return TensorRef(buffer.data(), DType::bf16, {total}).flat(offsets[i], parts[i].count);
        };
        optimizer.step(i, part(weights), part(gradient), static_cast<const StepScalars*>(scalars.data()));
      }
      backend_.synchronize({});
    }
    std::vector<std::uint16_t> stepped(static_cast<std::size_t>(total));
    backend_.copy_to_host({}, weights.data(), stepped.data(), bytes);
    backend_.synchronize({});
    return stepped;
  }

  static ModelConfig model() {
    ModelConfig model;
    model.layers = 2;
    model.heads = 3;
    model.width = 27;
    model.context = 10;
    model.vocab = 101;
    return model;
  }

  ParameterTable table_{model()};
  ComputeBackend& backend_ = test_backends().at(GetParam());
};

TEST_P(AdamWTest, RoundsTheSameHoweverUnitsAreDivided) {
  const std::vector<std::uint16_t> whole = step(1, 5);
  EXPECT_EQ(step(2, 5), whole);
  EXPECT_EQ(step(7, 5), whole);
  EXPECT_NE(step(1, 6), whole) << "another seed";
}

INSTANTIATE_TEST_SUITE_P(Backends, AdamWTest, testing::ValuesIn(compute_backend_names()), backend_test_name);

}  // namespace
}  // namespace mylos
