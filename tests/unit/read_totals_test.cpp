// SPDX-License-Identifier: BSD-3-Clause
// What a run has read so far, over restarts that change the length of samples, the data and their weights.
#include "app/train/read_totals.hpp"

#include <gtest/gtest.h>

#include "tests/io/io_test_util.hpp"

namespace mylos {
namespace {

class ReadTotalsTest : public testing::Test {
 protected:
  /// A file of `windows` windows of 10 tokens, different from that of any other number.
  std::string file(std::int64_t windows) {
    const std::filesystem::path path = scratch_.path() / fmt::format("{}.bin", windows);
    TokenFileWriter writer(path);
    writer.append(std::vector<std::uint16_t>(static_cast<std::size_t>(windows * 10 + 10), 1));
    writer.finish();
    return path.string();
  }
  static TokenDataset open(const std::string& sources, std::int64_t seq_len = 10) {
    return open_dataset(parse_sources(sources), TokenFile::most_ids, seq_len, 1);
  }

  test::ScratchDirectory scratch_;
};

TEST_F(ReadTotalsTest, AddWhatWasReadBeforeAndAfterALengthChanged) {
  const TokenDataset first = open(file(20));
  const ReadTotals before = ReadCounter(first).at(50);
  EXPECT_EQ(before.tokens, 500);
  EXPECT_EQ(before.sources[0].epochs, 2.5);
  const TokenDataset second = open(file(20), 5);  // 210 tokens hold 41 windows
  ReadCounter counter(second);
  counter.continue_at(50, before);
  EXPECT_EQ(counter.at(50).tokens, 500);
  EXPECT_EQ(counter.at(50).sources[0].epochs, 2.5);
  EXPECT_EQ(counter.at(91).tokens, 500 + 41 * 5);
  EXPECT_NEAR(counter.at(91).sources[0].epochs, 3.5, 1e-12);
}

TEST_F(ReadTotalsTest, FollowSourcesByContent) {
  const std::string a = file(20);
  const std::string b = file(30);
  const TokenDataset first = open(fmt::format("{}:1,{}:3", a, b));
  const ReadTotals before = ReadCounter(first).at(80);
  EXPECT_EQ(before.sources[0].epochs, 1.0);
  EXPECT_EQ(before.sources[1].epochs, 2.0);
  const TokenDataset second = open(fmt::format("{}:1,{}:1,{}:2", b, file(10), a));
  ReadCounter counter(second);
  counter.continue_at(80, before);
  EXPECT_EQ(counter.at(80).tokens, 800);
  EXPECT_EQ(counter.at(80).sources[0].epochs, 2.0);
  EXPECT_EQ(counter.at(80).sources[1].epochs, 0.0);
  EXPECT_EQ(counter.at(80).sources[2].epochs, 1.0);
  EXPECT_EQ(counter.at(200).sources[0].epochs, 2.0 + 30.0 / 30.0);
  EXPECT_EQ(counter.at(200).sources[1].epochs, 30.0 / 10.0);
  EXPECT_EQ(counter.at(200).sources[2].epochs, 1.0 + 60.0 / 20.0);
}

/// An unchanged run counts on as if it had not been interrupted, bit for bit.
TEST_F(ReadTotalsTest, AreTheSameWithoutAChange) {
  const TokenDataset data = open(fmt::format("{}:1,{}:2", file(7), file(13)));
  const ReadCounter whole(data);
  ReadCounter restarted(data);
  restarted.continue_at(31, whole.at(31));
  ReadCounter of_older_checkpoint(data);
  of_older_checkpoint.continue_at(31, {.tokens = 310, .sources = {}});
  for (std::int64_t sample = 31; sample < 100; ++sample) {
    for (const ReadCounter* counter : {&restarted, &of_older_checkpoint}) {
      EXPECT_EQ(counter->at(sample).tokens, whole.at(sample).tokens);
      for (std::size_t source = 0; source < 2; ++source)
        EXPECT_EQ(counter->at(sample).sources[source].epochs, whole.at(sample).sources[source].epochs);
    }
  }
}

/// A source that leaves and comes back goes on where it was.
TEST_F(ReadTotalsTest, KeepsWhatASourceHadRead) {
  const TokenDataset first = open(file(7));
  const TokenDataset second = open(file(13));
  const ReadTotals before = ReadCounter(first).at(14);
  ReadCounter away(second);
  away.continue_at(14, before);
  ASSERT_EQ(away.at(27).sources.size(), 2U);
  ReadCounter back(first);
  back.continue_at(27, away.at(27));
  EXPECT_EQ(back.at(27).sources[0].epochs, before.sources[0].epochs);
  EXPECT_DOUBLE_EQ(back.at(34).sources[0].epochs, before.sources[0].epochs + 1.0);
}

}  // namespace
}  // namespace mylos
