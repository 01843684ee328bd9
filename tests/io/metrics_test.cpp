// SPDX-License-Identifier: BSD-3-Clause
// Metrics: appended, read while written, truncated, and whole after any kill.
#include "io/metrics/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <random>
#include <regex>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "io/inspect/inspect.hpp"
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

void no_warning(const std::string& text) {
  ADD_FAILURE() << text;
}

void append_steps(MetricsWriter& writer, int first, int last) {
  for (int step = first; step < last; ++step) writer.append("steps", {{"step", step}, {"loss", step * 0.5}});
}

TEST(Metrics, GrowAcrossBlocksAndReopen) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  IoThread io;
  {
    MetricsWriter writer(io, file, no_warning);
    append_steps(writer, 0, 5000);
    writer.append("eval", {{"step", 5000.0}, {"accuracy", 0.5}});
  }
  {
    MetricsWriter writer(io, file, no_warning);
    append_steps(writer, 5000, 5010);
    writer.flush();
    expect_steps(read_metrics(io, file, "steps"), 5010);
  }
  EXPECT_EQ(read_metrics(io, file, "eval").at("accuracy"), std::vector<double>{0.5});
  EXPECT_TRUE(read_metrics(io, file, "launches").empty());
  EXPECT_EQ(metrics_tables(io, file), (std::map<std::string, std::int64_t>{{"eval", 1}, {"steps", 5010}}));
  EXPECT_FALSE(fs::exists(file.string() + ".tmp"));
}

TEST(Metrics, AreATableInCsv) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(csv_of({{"accuracy", {0.1, nan}},
                    {"loss", {std::numeric_limits<double>::infinity(), 1.0 / 3.0}},
                    {"step", {1.0, 1e15}},
                    {"zero", {-0.0, 5e-324}}}),
            "step,accuracy,loss,zero\n1,0.1,inf,-0\n1000000000000000,,0.3333333333333333,5e-324\n");
  EXPECT_EQ(csv_of({{"step", {}}}), "step\n");
}

TEST(Metrics, ARestartCutsBack) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  IoThread io;
  MetricsWriter writer(io, file, no_warning);
  append_steps(writer, 0, 100);
  writer.append("eval", {{"step", 20.0}, {"loss", 3.0}});
  writer.append("eval", {{"step", 60.0}, {"loss", 2.0}});
  for (const double step : {20.0, 45.0, 60.0}) writer.append("choices", {{"step", step}, {"accuracy", 0.5}});
  writer.append("checkpoints", {{"step", 40.0}});
  writer.append("checkpoints", {{"step", 50.0}});
  writer.append("launches", {{"step", 60.0}});
  writer.truncate_after(49, 40);
  append_steps(writer, 50, 60);
  writer.flush();
  expect_steps(read_metrics(io, file, "steps"), 60);
  EXPECT_EQ(read_metrics(io, file, "eval").at("step"), std::vector<double>{20.0});
  EXPECT_EQ(read_metrics(io, file, "choices").at("step"), std::vector<double>{20.0});
  EXPECT_EQ(read_metrics(io, file, "checkpoints").at("step"), std::vector<double>{40.0});
  EXPECT_EQ(read_metrics(io, file, "launches").at("step").size(), 1U);
}

TEST(Metrics, AppendingChangesNoStructure) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  IoThread io;
  MetricsWriter writer(io, file, no_warning);
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

// NaN differs from itself, so columns are compared as text.
std::string text_of(const std::vector<double>& column) {
  return fmt::format("{}", fmt::join(column, " "));
}

TEST(Metrics, ColumnsComeAndGo) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  IoThread io;
  {
    MetricsWriter writer(io, file, no_warning);
    writer.append("steps", {{"step", 1.0}, {"old", 10.0}});
    writer.append("steps", {{"step", 2.0}, {"old", 20.0}});
    writer.append("steps", {{"step", 3.0}, {"old", 30.0}});
  }
  MetricsWriter writer(io, file, no_warning);
  writer.truncate_after(2, 2);  // the third row's value must not reappear: the next row has no `old`
  writer.append("steps", {{"new", 0.5}, {"step", 3.0}, {"newer", 0.25}});
  writer.append("steps", {{"step", 4.0}, {"old", 40.0}});
  writer.flush();
  const MetricsTable table = read_metrics(io, file, "steps");
  EXPECT_EQ(table.size(), 4U);
  EXPECT_EQ(text_of(table.at("step")), "1 2 3 4");
  EXPECT_EQ(text_of(table.at("old")), "10 20 nan 40");
  EXPECT_EQ(text_of(table.at("new")), "nan nan 0.5 nan");
  EXPECT_EQ(text_of(table.at("newer")), "nan nan 0.25 nan");
  const std::string shown = inspect(io, file);
  EXPECT_TRUE(std::regex_search(shown, std::regex("/steps: 4 rows.*\n  new +nan\n"))) << shown;
}

TEST(Metrics, AColumnThatComesInALaterBlockHasAllItsRows) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  IoThread io;
  MetricsWriter writer(io, file, no_warning);
  append_steps(writer, 0, 4097);
  for (int step = 4097; step < 8200; ++step)
    writer.append("steps", {{"step", step}, {"loss", step * 0.5}, {"new", step}});
  writer.flush();
  const MetricsTable table = read_metrics(io, file, "steps");
  expect_steps(table, 8200);
  const std::vector<double>& column = table.at("new");
  ASSERT_EQ(column.size(), 8200U);
  EXPECT_TRUE(std::all_of(column.begin(), column.begin() + 4097, [](double x) { return std::isnan(x); }));
  for (int step = 4097; step < 8200; ++step) ASSERT_EQ(column[static_cast<std::size_t>(step)], step);
}

TEST(Metrics, ADamagedFileIsSetAside) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  IoThread io;
  int damaged = 0;
  for (const std::string content : {"", "no HDF5", "\x89HDF\r\n\x1a\n"}) {
    spill(file, content);
    EXPECT_THROW(read_metrics(io, file, "steps"), Error);
    std::string warning;
    {
      MetricsWriter writer(io, file, [&](const std::string& text) { warning = text; });
      append_steps(writer, 0, 3);
    }
    expect_steps(read_metrics(io, file, "steps"), 3);
    const fs::path aside =
        file.string() + (damaged == 0 ? ".damaged" : fmt::format(".damaged-{}", damaged + 1));
    EXPECT_NE(warning.find(aside.string()), std::string::npos) << warning;
    EXPECT_EQ(slurp(aside), content);
    ++damaged;
  }
}

/// Rows queued after a row that failed do not touch the file that the failure left.
TEST(Metrics, AFailedExtensionIsAnErrorOfEveryRowAfterIt) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  IoThread io;
  MetricsWriter writer(io, file, no_warning);
  append_steps(writer, 0, 3);
  writer.flush();
  fs::create_directories(file.string() + ".tmp/full");  // where the copy for the new column would go
  const auto append_all = [&] {
    for (int step = 3; step < 50; ++step) writer.append("steps", {{"step", step}, {"new", 1.0}});
    writer.flush();
  };
  EXPECT_ANY_THROW(append_all());
  EXPECT_ANY_THROW(writer.append("steps", {{"step", 4.0}}));
  expect_steps(read_metrics(io, file, "steps"), 3);
}

// Expects the rows that io_child appends: each block of 200 rows has its own column, which is NaN in all
// other rows.
void expect_grown(const MetricsTable& table, std::size_t num_rows) {
  expect_steps(table, num_rows);
  for (const auto& [name, column] : table) {
    if (!name.starts_with("from_")) continue;
    const std::size_t first = std::stoul(name.substr(5));
    ASSERT_EQ(column.size(), num_rows);
    for (std::size_t i = 0; i < num_rows; ++i) {
      ASSERT_EQ(std::isnan(column[i]), i < first || i >= first + 200) << name << " in row " << i;
    }
  }
}

// Twenty children, one after another, append rows and columns until they are killed; the file is read
// meanwhile, and after each kill.
TEST(Metrics, ReadableWhileWrittenAndAfterEveryKill) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "metrics.h5";
  const fs::path output = scratch.path() / "output";
  IoThread io;
  std::mt19937 random(1);
  std::size_t seen = 0;
  for (int kill = 0; kill < 20; ++kill) {
    const pid_t child = start_child({"append", file.string()}, output);
    // Reads the file until 1 to 700 more rows are there.
    const std::size_t target = seen + 1 + random() % 700;
    ASSERT_TRUE(wait_until([&] {
      if (!fs::exists(file)) return false;
      const MetricsTable table = read_metrics(io, file, "steps");
      if (table.empty()) return false;
      EXPECT_GE(table.at("step").size(), seen);
      seen = table.at("step").size();
      expect_grown(table, seen);
      return seen >= target || HasFatalFailure();
    })) << slurp(output);
    ::kill(child, SIGKILL);
    ASSERT_EQ(wait_for_child(child), 1000 + SIGKILL) << slurp(output);
    const MetricsTable table = read_metrics(io, file, "steps");
    ASSERT_GE(table.at("step").size(), seen);
    seen = table.at("step").size();
    expect_grown(table, seen);
  }
  RecordProperty("rows", static_cast<int>(seen));
}

}  // namespace
}  // namespace mylos::test
