// SPDX-License-Identifier: BSD-3-Clause
// The results of an evaluation by target: written whole or not at all.
#include "io/metrics/target_file.hpp"

#include <cmath>
#include <ctime>
#include <limits>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/io/stored_targets.hpp"

namespace mylos::test {
namespace {

class TargetFile : public testing::Test {
 protected:
  static TargetFileInfo info(const std::vector<std::int64_t>& targets) {
    return {.model = "a run é",
            .step = 7,
            .context = 16,
            .stride = 8,
            .data = "300 tokens, 0123",
            .targets = targets};
  }
  static TargetResult result(std::int32_t index) {
    return {.token = 65535 - index, .loss = 0.1F * static_cast<float>(index), .is_correct = index % 3 == 0};
  }
  fs::path file() const { return scratch_.path() / "tokens.h5"; }

  ScratchDirectory scratch_;
  IoThread io_;
};

TEST_F(TargetFile, HoldsEveryResultInOrder) {
  constexpr std::int32_t count = 70000;
  TargetFileWriter writer(io_, file(), info({69999, 0, 1}));
  std::int32_t next = 0;
  for (const std::int32_t part : {1, 0, 40000, 2, count - 40003}) {
    std::vector<TargetResult> results;
    for (std::int32_t i = 0; i < part; ++i) results.push_back(result(next++));
    writer.append(results);
  }
  EXPECT_FALSE(fs::exists(file()));
  writer.finish();
  const StoredTargets stored = read_targets(io_, file());
  ASSERT_EQ(stored.token.size(), static_cast<std::size_t>(count));
  ASSERT_EQ(stored.loss.size(), stored.token.size());
  ASSERT_EQ(stored.correct.size(), stored.token.size());
  for (std::int32_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    ASSERT_EQ(stored.token[at], 65535 - i);
    ASSERT_EQ(stored.loss[at], 0.1F * static_cast<float>(i));
    ASSERT_EQ(stored.correct[at], i % 3 == 0 ? 1 : 0);
  }
  EXPECT_EQ(stored.targets, (std::vector<std::int64_t>{69999, 0, 1}));
  EXPECT_EQ(stored.what, "loss in nats of each target token of an evaluation");
  EXPECT_EQ(stored.model, "a run é");
  EXPECT_EQ(stored.data, "300 tokens, 0123");
  EXPECT_EQ(stored.step, 7);
  EXPECT_EQ(stored.context, 16);
  EXPECT_EQ(stored.stride, 8);
}

TEST_F(TargetFile, HoldsLossesThatAreNotFinite) {
  TargetFileWriter writer(io_, file(), info({2}));
  writer.append(std::vector<TargetResult>{{.loss = std::numeric_limits<float>::infinity()},
                                          {.loss = std::numeric_limits<float>::quiet_NaN()}});
  writer.finish();
  const StoredTargets stored = read_targets(io_, file());
  EXPECT_TRUE(std::isinf(stored.loss[0]));
  EXPECT_TRUE(std::isnan(stored.loss[1]));
}

TEST_F(TargetFile, ReplacesAnotherOnlyAsAWhole) {
  spill(file(), "of an earlier evaluation");
  {
    TargetFileWriter writer(io_, file(), info({2}));
    writer.append(std::vector<TargetResult>{result(0)});
    EXPECT_THROW(writer.finish(), Error);
    EXPECT_THROW(writer.append(std::vector<TargetResult>{result(1), result(2)}), Error);
  }
  EXPECT_EQ(slurp(file()), "of an earlier evaluation");
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), {}), 1);
  TargetFileWriter writer(io_, file(), info({1}));
  writer.append(std::vector<TargetResult>{result(0)});
  writer.finish();
  EXPECT_EQ(read_targets(io_, file()).token, std::vector<std::int32_t>{65535});
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), {}), 1);
}

/// Equal results make equal files, whenever they are written. HDF5 stores times as seconds in 32 bits.
TEST_F(TargetFile, HasNoTimes) {
  const auto now = [] { return static_cast<std::uint32_t>(std::time(nullptr)); };
  const std::uint32_t before = now();
  TargetFileWriter writer(io_, file(), info({1}));
  writer.append(std::vector<TargetResult>{result(0)});
  writer.finish();
  const std::string content = slurp(file());
  for (std::uint32_t time = before; time <= now(); ++time) {
    const std::string bytes(reinterpret_cast<const char*>(&time), sizeof(time));
    EXPECT_EQ(content.find(bytes), std::string::npos);
  }
}

TEST_F(TargetFile, ThatCannotBeCreatedIsNamed) {
  try {
    const TargetFileWriter writer(io_, scratch_.path() / "none" / "tokens.h5", info({1}));
    ADD_FAILURE() << "created";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
    EXPECT_NE(std::string(error.what()).find((scratch_.path() / "none").string()), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace mylos::test
