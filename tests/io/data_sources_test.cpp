// SPDX-License-Identifier: BSD-3-Clause
// The data sources that a deck may name, and the files that they stand for.
#include "io/tokens/data_sources.hpp"

#include <gmock/gmock.h>

#include "core/base/error.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> globs_of(const DataSource& source) {
  std::vector<std::string> globs;
  for (const DataPattern& pattern : source.patterns)
    globs.push_back((pattern.format == TokenFormat::nanogpt ? "nanogpt " : "llmc ") + pattern.glob);
  return globs;
}

std::vector<std::int64_t> weights_of(const std::string& text) {
  std::vector<std::int64_t> weights;
  for (const DataSource& source : parse_sources(text)) weights.push_back(source.weight);
  return weights;
}

std::string error_of(const auto& action) {
  try {
    action();
    return "good";
  } catch (const Error& error) {
    return fmt::format("{} {}", static_cast<int>(error.code()), error.what());
  }
}

std::string parse_error(const std::string& text) {
  return error_of([&] { parse_sources(text); });
}

TEST(DataSources, WithoutWeightsAreOne) {
  EXPECT_EQ(parse_sources("a.bin").size(), 1U);
  const std::vector<DataSource> sources = parse_sources(" b*.bin , nanogpt=a.bin ");
  ASSERT_EQ(sources.size(), 1U);
  EXPECT_THAT(globs_of(sources[0]), ElementsAre("llmc b*.bin", "nanogpt a.bin"));
  EXPECT_EQ(sources[0].text, "b*.bin , nanogpt=a.bin");
  EXPECT_EQ(sources[0].weight, 1);
}

TEST(DataSources, HaveWeightsAsWholeNumbers) {
  const std::vector<DataSource> sources = parse_sources("a*.bin:0.7, nanogpt=b.bin : 0.3");
  ASSERT_EQ(sources.size(), 2U);
  EXPECT_THAT(globs_of(sources[0]), ElementsAre("llmc a*.bin"));
  EXPECT_THAT(globs_of(sources[1]), ElementsAre("nanogpt b.bin"));
  EXPECT_EQ(sources[1].text, "nanogpt=b.bin : 0.3");
  EXPECT_THAT(weights_of("a:0.7,b:0.3"), ElementsAre(7, 3));
  EXPECT_THAT(weights_of("a:2,b:.5,c:7.50"), ElementsAre(4, 1, 15));
  EXPECT_THAT(weights_of("a:70,b:30"), ElementsAre(7, 3));
  EXPECT_THAT(weights_of("a:0.000000001,b:0.000000002"), ElementsAre(1, 2));
  EXPECT_THAT(weights_of("a:1"), ElementsAre(1));
  EXPECT_THAT(weights_of("a:99999,b:1"), ElementsAre(99999, 1));
}

TEST(DataSources, TakeAnyNameBehindBackslashes) {
  const ScratchDirectory scratch;
  for (const char* name : {"a,b", "a:0.5", "nanogpt=a", "a*", "a[b]", "a\\", " a ", "a?b", "\\,"}) {
    spill(scratch.path() / name, "x");
    std::string escaped = scratch.path().string() + "/";
    for (const char c : std::string(name)) escaped += fmt::format("\\{}", c);
    for (const char* weight : {"", ":3"}) {
      const std::vector<DataSource> sources = parse_sources(escaped + weight);
      ASSERT_EQ(sources.size(), 1U) << name;
      const std::vector<DataFile> files = files_of(sources[0]);
      ASSERT_EQ(files.size(), 1U) << name;
      EXPECT_EQ(files[0].path, scratch.path() / name);
    }
  }
  EXPECT_EQ(globs_of(parse_sources("nanogpt\\=a.bin")[0])[0], "llmc nanogpt\\=a.bin");
  EXPECT_EQ(globs_of(parse_sources("date=2024/a.bin")[0])[0], "llmc date=2024/a.bin");
}

TEST(DataSources, ThatMeanNothingAreRefused) {
  EXPECT_THAT(parse_error(""), HasSubstr("2 \"\" names no file"));
  EXPECT_THAT(parse_error("a.bin,"), HasSubstr("2 \"\" names no file; a comma within a name is written \\,"));
  EXPECT_THAT(parse_error(":0.5"), HasSubstr("2 \":0.5\" names no file"));
  EXPECT_THAT(parse_error("nanogpt=:1"), HasSubstr("names no file"));
  for (const char* weight :
       {"", "x", "0", "0.0", "-1", "1e", "1e-20", "+-1", "nan", "1.2.3", "1234567890", "1.0000000001"})
    EXPECT_THAT(parse_error("a.bin:" + std::string(weight)),
                HasSubstr(fmt::format("2 a.bin:{0}: \"{0}\" is not a weight", weight)));
  EXPECT_THAT(parse_error("c:a.bin:1"), HasSubstr("has two colons"));
  EXPECT_THAT(parse_error("a.bin:1, b.bin"), HasSubstr("\"b.bin\" has no weight, but others have"));
  EXPECT_THAT(parse_error("a.bin\\"), HasSubstr("ends with a backslash"));
  EXPECT_THAT(parse_error("a:0.99999,b:0.00002"), HasSubstr("add up to more than 100000; use fewer digits"));
  EXPECT_THAT(parse_error("a:999999999,b:999999998"), HasSubstr("add up to more than"));
  std::string many = "a:1";
  for (std::size_t i = 0; i < most_sources; ++i) many += ",a:1";
  EXPECT_THAT(parse_error(many), HasSubstr("65 weighted sources; at most 64 are allowed"));
  EXPECT_THAT(error_of([] { parse_validation_sources("a:1,b:1"); }), HasSubstr("an evaluation reads each"));
  EXPECT_EQ(parse_validation_sources("a*,b")[0].patterns.size(), 2U);
}

TEST(DataSources, HaveTheirFilesInTheOrderOfNames) {
  const ScratchDirectory scratch;
  for (const char* name : {"t_2", "t_10", "t_1", "T_1", "other", "v"}) spill(scratch.path() / name, "x");
  const std::string folder = scratch.path().string();
  std::vector<std::string> names;
  for (const DataFile& file : files_of(parse_sources(folder + "/v," + folder + "/[tT]_*")[0]))
    names.push_back(file.path.filename());
  EXPECT_THAT(names, ElementsAre("v", "T_1", "t_1", "t_10", "t_2"));
  const auto files_error = [&](const std::string& name) {
    return error_of([&] { files_of(parse_sources(name)[0]); });
  };
  EXPECT_EQ(files_error(folder + "/none"), "2 " + folder + "/none does not exist");
  EXPECT_EQ(files_error(folder + "/none*"), "2 " + folder + "/none* matches no file");
  EXPECT_EQ(files_error(folder + "/none/*"), "2 " + folder + "/none/* matches no file");
  EXPECT_EQ(files_error(folder + "/v\\*"), "2 " + folder + "/v* does not exist");
}

}  // namespace
}  // namespace mylos::test
