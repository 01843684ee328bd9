// SPDX-License-Identifier: BSD-3-Clause
// Runs on device memory that the host cannot reach: what a GPU asks of everything outside the backends.
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

class DistantMemory : public RunTest, public testing::WithParamInterface<RunTest::Words> {
 protected:
  void SetUp() override {
    if (!fs::exists(MYLOS_TEST_PLUGINS)) GTEST_SKIP() << "a static build loads no plugins";
  }
  /// The words that make a run compute on distant memory and communicate as the parameter says.
  static Words distant(Words more) {
    more.insert(more.end(), {"--backend.compute=distant", "--plugin-path=" MYLOS_TEST_PLUGINS});
    more.insert(more.end(), GetParam().begin(), GetParam().end());
    return more;
  }
};

TEST_P(DistantMemory, GivesTheSameRun) {
  Words reference = {"--backend.compute=kokkos"};
  reference.insert(reference.end(), GetParam().begin(), GetParam().end());
  ASSERT_EQ(train("reference", reference).exit_code, 0);
  const Outcome first = train("run", distant({"--train.stop_step=5"}));
  ASSERT_EQ(first.exit_code, 0) << first.output;
  const Outcome rest = train("run", distant({"--restart"}));
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  expect_same_run("run", "reference", 8);
}

INSTANTIATE_TEST_SUITE_P(Communication, DistantMemory,
                         testing::Values(RunTest::Words{"--backend.comm=mpi"},
                                         RunTest::Words{"--backend.comm=shm", "--train.dtype=bf16"},
                                         RunTest::Words{"--backend.comm=mpi", "--train.dtype=fp16",
                                                        "--optim.master=none"}));

}  // namespace
}  // namespace mylos::test
