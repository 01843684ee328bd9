// SPDX-License-Identifier: BSD-3-Clause
// Runs on a device that works late, on memory that the host cannot reach: what a GPU asks of everything
// outside the backends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;

class DistantTest : public RunTest {
 protected:
  void SetUp() override {
    if (!fs::exists(MYLOS_TEST_PLUGINS)) GTEST_SKIP() << "a static build loads no plugins";
  }
  static Words joined(Words words, const Words& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Words on_host(const Words& more) { return joined({"--backend.compute=kokkos"}, more); }
  static Words on_device(const Words& more) {
    return joined({"--backend.compute=distant", "--plugin-path=" MYLOS_TEST_PLUGINS}, more);
  }
};

class DistantDevice : public DistantTest, public testing::WithParamInterface<RunTest::Words> {};

TEST_P(DistantDevice, GivesTheSameRun) {
  ASSERT_EQ(train("reference", on_host(GetParam())).exit_code, 0);
  const Outcome first = train("run", on_device(joined(GetParam(), {"--train.stop_step=5"})));
  ASSERT_EQ(first.exit_code, 0) << first.output;
  const Outcome rest = train("run", on_device(joined(GetParam(), {"--restart"})));
  ASSERT_EQ(rest.exit_code, 0) << rest.output;
  expect_same_run("run", "reference", 8);
}

TEST_P(DistantDevice, ComparesReplicasOfTheStep) {
  const Words words = {"--guard.replica_check_every=2", "--checkpoint.every=0"};
  train_with_fault("run", "step:1:4:flip", on_device(joined(GetParam(), words)));
  EXPECT_THAT(expect_status("run", "failed", ExitCode::numerical), HasSubstr("step 4: the weights of unit"));
}

INSTANTIATE_TEST_SUITE_P(Communication, DistantDevice,
                         testing::Values(RunTest::Words{"--backend.comm=mpi"},
                                         RunTest::Words{"--backend.comm=shm", "--train.dtype=bf16"}));

}  // namespace
}  // namespace mylos::test
