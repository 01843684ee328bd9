// SPDX-License-Identifier: BSD-3-Clause
// Metrics: appended, read meanwhile, cut back, and whole after any kill.
#include "io/metrics/metrics.hpp"

#include <csignal>
#include <random>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {
namespace {

void expect_steps(const MetricsTable& table, std::size_t num_rows) {
  ASSERT_EQ(table.at("step").size(), num_rows);
  for (std::size_t i = 0; i < num_rows; ++i) {
    ASSERT_EQ(table.at("step")[i], static_cast<double>(i));
    ASSERT_EQ(table.at("loss")[i], static_cast<double>(i) * 0.5);
  }
}

void append_steps(MetricsWriter& writer, int first, int last) {
  for (int step = first; step < last; ++step) writer.append("steps", {{"step", step}, {"loss", step * 0.5}});
}

TEST(Metrics, GrowAcrossBlocksAndReopen) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  IoThread io;
  {
    MetricsWriter writer(io, file);
    append_steps(writer, 0, 5000);
    writer.append("eval", {{"step", 5000.0}, {"accuracy", 0.5}});
  }
  {
    MetricsWriter writer(io, file);
    append_steps(writer, 5000, 5010);
    writer.flush();
    expect_steps(read_metrics(io, file, "steps"), 5010);
  }
  EXPECT_EQ(read_metrics(io, file, "eval").at("accuracy"), std::vector<double>{0.5});
  EXPECT_TRUE(read_metrics(io, file, "launches").empty());
  EXPECT_EQ(metrics_tables(io, file), (std::map<std::string, std::int64_t>{{"eval", 1}, {"steps", 5010}}));
  EXPECT_FALSE(fs::exists(file.string() + ".tmp"));
}

TEST(Metrics, ARestartCutsBack) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  IoThread io;
  MetricsWriter writer(io, file);
  append_steps(writer, 0, 100);
  writer.append("eval", {{"step", 20.0}, {"loss", 3.0}});
  writer.append("eval", {{"step", 60.0}, {"loss", 2.0}});
  writer.append("launches", {{"step", 60.0}});
  writer.truncate_after(49);
  append_steps(writer, 50, 60);
  writer.flush();
  expect_steps(read_metrics(io, file, "steps"), 60);
  EXPECT_EQ(read_metrics(io, file, "eval").at("step"), std::vector<double>{20.0});
  EXPECT_EQ(read_metrics(io, file, "launches").at("step").size(), 1U);
}

TEST(Metrics, AppendingChangesNoStructure) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  IoThread io;
  MetricsWriter writer(io, file);
  append_steps(writer, 0, 1);
  writer.flush();
  const std::string before = slurp(file);
  append_steps(writer, 1, 2);
  writer.flush();
  const std::string after = slurp(file);
  ASSERT_EQ(before.size(), after.size());
  std::size_t changed = 0;
  for (std::size_t i = 0; i < before.size(); ++i) changed += before[i] != after[i] ? 1 : 0;
  EXPECT_LE(changed, 3 * sizeof(double));  // two values and the row count
}

TEST(Metrics, OtherColumnsAreRefusedAtTheNextCall) {
  const ScratchDirectory scratch;
  IoThread io;
  MetricsWriter writer(io, scratch.path() / "metrics.h5");
  writer.append("steps", {{"step", 0.0}});
  writer.append("steps", {{"step", 1.0}, {"surprise", 1.0}});
  EXPECT_THROW(writer.flush(), Error);
}

TEST(Metrics, WhatIsNoMetricsFileIsBadData) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  IoThread io;
  for (const std::string content : {"", "no HDF5", "\x89HDF\r\n\x1a\n"}) {
    spill(file, content);
    try {
      const MetricsWriter writer(io, file);
      ADD_FAILURE() << "opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_data);
    }
  }
}

// A child appends without end, over many blocks; the file is read meanwhile, and after each kill.
TEST(Metrics, ReadableWhileWrittenAndAfterEveryKill) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  const fs::path output = scratch.path() / "output";
  IoThread io;
  std::mt19937 random(1);
  std::size_t seen = 0;
  for (int kill = 0; kill < 20; ++kill) {
    const pid_t child = start_child({"append", file.string()}, output);
    // Many looks until the next few hundred rows are there.
    const std::size_t target = seen + 1 + random() % 700;
    ASSERT_TRUE(wait_until([&] {
      if (!fs::exists(file)) return false;
      const MetricsTable table = read_metrics(io, file, "steps");
      if (table.empty()) return false;
      EXPECT_GE(table.at("step").size(), seen);
      seen = table.at("step").size();
      expect_steps(table, seen);
      return seen >= target || HasFatalFailure();
    })) << slurp(output);
    ::kill(child, SIGKILL);
    ASSERT_EQ(wait_for_child(child), 1000 + SIGKILL) << slurp(output);
    const MetricsTable table = read_metrics(io, file, "steps");
    ASSERT_GE(table.at("step").size(), seen);
    seen = table.at("step").size();
    expect_steps(table, seen);
  }
  RecordProperty("rows", static_cast<int>(seen));
}

}  // namespace
}  // namespace mylos::test
