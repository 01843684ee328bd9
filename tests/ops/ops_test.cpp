// SPDX-License-Identifier: BSD-3-Clause
// Every small case of the table on every backend, against the fp64 oracle.
#include <algorithm>
#include <cctype>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/ops/op_run.hpp"
#include "tests/support/backend_fixture.hpp"

namespace mylos {

namespace {

std::vector<const OpCase*> small_cases() {
  std::vector<const OpCase*> cases;
  for (const OpCase& c : op_cases()) {
    if (!c.full_size) cases.push_back(&c);
  }
  return cases;
}

using Param = std::tuple<std::string, const OpCase*>;

class OpsTest : public testing::TestWithParam<Param> {};

std::string test_name(const testing::TestParamInfo<Param>& info) {
  std::string name = fmt::format("{}_{}", std::get<0>(info.param), std::get<1>(info.param)->name());
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

TEST_P(OpsTest, AgreesWithOracle) {
  const auto& [backend, case_pointer] = GetParam();
  const OpCase& c = *case_pointer;
  const Contents initial = initial_contents(c);
  Arrays expected = read_all(c, initial);
  run_oracle(c, expected);

  OpRun run(c, test_backends().at(backend), initial);
  run.run();
  const Contents contents = run.contents();
  for (const Operand& operand : c.operands) {
    if (!operand.is_result()) continue;
    const double error =
        oracle::relative_error(read(operand, contents), expected.at(operand.name), operand.floor);
    EXPECT_LE(error, operand.tolerance) << operand.name;
  }
  EXPECT_EQ(stray_write(c, initial, contents), "");

  run.reset();
  run.run();
  EXPECT_TRUE(run.contents() == contents) << "two runs differ";
}

INSTANTIATE_TEST_SUITE_P(Cases, OpsTest,
                         testing::Combine(testing::ValuesIn(compute_backend_names()),
                                          testing::ValuesIn(small_cases())),
                         test_name);

TEST(Backends, KokkosIsFound) {
  const std::vector<std::string> names = compute_backend_names();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.front(), "kokkos");
}

}  // namespace

}  // namespace mylos
