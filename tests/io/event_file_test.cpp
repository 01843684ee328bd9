// SPDX-License-Identifier: BSD-3-Clause
// TensorBoard's event files: read back by another implementation of the format.
#include "io/tensorboard/event_file.hpp"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/io/io_test_util.hpp"
#include "tests/support/event_reader.hpp"

namespace mylos::test {
namespace {

TEST(EventFile, TheChecksumIsCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);  // RFC 3720, B.4
}

TEST(EventFile, HoldsScalarsAndTexts) {
  const ScratchDirectory scratch;
  const fs::path folder = scratch.path() / "a/b";
  const std::string long_text(100'000, 'x');
  {
    EventFile file(folder, 1, 1000.5);
    file.scalars(1, 1001.25, {{"loss", 1.0 / 3.0}, {"a/b", -2.0}});
    file.text(1, 1001.5, "deck", long_text);
    file.scalars(std::int64_t{1} << 40U, 1002.0,
                 {{"loss", 1e300}, {"a/b", -1e300}, {"nan", std::nan("")}, {"tiny", 1e-300}});
    file.scalars(3, 1003.0, {});
  }
  const ReadEvents events = read_events(folder);
  EXPECT_EQ(events.starts, std::vector<std::int64_t>{1});
  EXPECT_EQ(events.torn_bytes, 0);
  const std::vector<ReadScalar>& loss = events.scalars.at("loss");
  ASSERT_EQ(loss.size(), 2U);
  EXPECT_EQ(loss[0].step, 1);
  EXPECT_EQ(loss[0].value, static_cast<float>(1.0 / 3.0));
  EXPECT_EQ(loss[0].time, 1001.25);
  EXPECT_EQ(loss[1].step, std::int64_t{1} << 40U);
  constexpr float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(loss[1].value, infinity);
  EXPECT_EQ(events.scalars.at("a/b")[1].value, -infinity);
  EXPECT_TRUE(std::isnan(events.scalars.at("nan")[0].value));
  EXPECT_EQ(events.scalars.at("tiny")[0].value, 0.0F);
  using Texts = std::vector<std::pair<std::int64_t, std::string>>;
  EXPECT_EQ(events.texts.at("deck"), (Texts{{1, long_text}}));
}

TEST(EventFile, OneThatIsMadeLaterComesLater) {
  const ScratchDirectory scratch;
  std::vector<std::string> names;
  for (const double time : {1000.0, 1000.0, 7.0, 2000.0}) {  // the clock of another node may be behind
    EventFile file(scratch.path(), static_cast<std::int64_t>(names.size()) + 2, time);
    for (int step = static_cast<int>(names.size()) + 2; step < 8; ++step)
      file.scalars(step, time, {{"loss", static_cast<double>(names.size())}});
    names.push_back(file.path().filename());
  }
  EXPECT_TRUE(std::ranges::is_sorted(names)) << testing::PrintToString(names);
  EXPECT_THAT(names.back(), testing::StartsWith("events.out.tfevents.0000002000."));
  std::vector<float> values;
  const ReadEvents events = read_events(scratch.path());
  for (const ReadScalar& point : events.scalars.at("loss")) values.push_back(point.value);
  EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3, 3, 3}));
}

}  // namespace
}  // namespace mylos::test
