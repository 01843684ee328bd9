// SPDX-License-Identifier: BSD-3-Clause
// The lock of a run directory, atomic text files, and inspect.
#include "io/file_util.hpp"

#include <csignal>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "io/inspect/inspect.hpp"
#include "io/metrics/metrics.hpp"
#include "io/tokens/token_dataset.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {
namespace {

TEST(RunLock, ASecondJobIsToldOfTheFirst) {
  const ScratchDirectory scratch;
  const pid_t child = start_child({"lock", scratch.path().string()});
  ASSERT_TRUE(wait_until([&] { return fs::exists(scratch.path() / "locked"); }));
  try {
    const RunLock lock(scratch.path(), "run.dir");
    ADD_FAILURE() << "locked twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_NE(std::string(error.what()).find(fmt::format("process {} on ", child)), std::string::npos)
        << error.what();
  }
  ::kill(child, SIGKILL);
  wait_for_child(child);
  EXPECT_NO_THROW(const RunLock after(scratch.path(), "run.dir"));
  EXPECT_NO_THROW(const RunLock again(scratch.path(), "run.dir"));
}

TEST(RunLock, ADirectoryThatCannotBeWrittenIsAnIoError) {
  try {
    const RunLock lock("/proc", "run.dir");
    ADD_FAILURE() << "locked";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
  }
  try {
    make_directory("/proc/mylos");
    ADD_FAILURE() << "created";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
  }
}

TEST(TextFile, IsReplacedWhole) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "status.json";
  write_text_file(file, "a longer text");
  write_text_file(file, "short");
  EXPECT_EQ(read_text_file(file), "short");
  spill(file.string() + ".tmp", "what a killed writer left");
  write_text_file(file, "fresh");
  EXPECT_EQ(read_text_file(file), "fresh");
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 1);
  EXPECT_THROW(read_text_file(file, 4), Error);
  EXPECT_THROW(read_text_file(scratch.path()), Error);
}

TEST(Inspect, ShowsWhatThereIs) {
  const ScratchDirectory scratch;
  IoThread io;
  write_whole(io, scratch.path(), 12);
  const std::string checkpoint = inspect(io, scratch.path() / "step_000012");
  EXPECT_NE(checkpoint.find("checkpoint of step 12"), std::string::npos) << checkpoint;
  EXPECT_NE(checkpoint.find("(1100, 1001)"), std::string::npos) << checkpoint;
  EXPECT_NE(checkpoint.find("  4 tensors, 1101228 elements, fp32\n"), std::string::npos) << checkpoint;
  EXPECT_NE(checkpoint.find("step: 12"), std::string::npos) << checkpoint;

  const std::vector<std::uint16_t> tokens = {3, 1, 2};
  TokenFileWriter writer(scratch.path() / "tokens.bin");
  writer.append(tokens);
  writer.finish();
  const std::string token_file = inspect(io, scratch.path() / "tokens.bin");
  EXPECT_NE(token_file.find("3 tokens, largest id 3"), std::string::npos) << token_file;

  {
    MetricsWriter metrics(io, scratch.path() / "metrics.h5", {});
    metrics.append("steps", {{"step", 1.0}, {"loss", 2.5}});
  }
  const std::string metrics = inspect(io, scratch.path() / "metrics.h5");
  EXPECT_NE(metrics.find("/steps: 1 rows"), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("2.5"), std::string::npos) << metrics;

  spill(scratch.path() / "notes.txt", "hello");
  for (const char* name : {"notes.txt", "missing", ""}) {
    EXPECT_THROW(inspect(io, scratch.path() / name), Error) << name;
  }
}

}  // namespace
}  // namespace mylos::test
