// SPDX-License-Identifier: BSD-3-Clause
// What a run's directory refuses, and what it removes.
#include "app/run_directory.hpp"

#include <gmock/gmock.h>

#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RunDirectories : public testing::Test {
 protected:
  RunPaths run(const std::string& name) const { return {scratch_.path() / name}; }

 private:
  ScratchDirectory scratch_;
};

void expect_in_use(const RunPaths& paths, const fs::path& checkpoints) {
  try {
    const RunDirectory directory(paths, checkpoints, false);
    ADD_FAILURE() << "two runs write to " << checkpoints;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    EXPECT_THAT(error.what(), HasSubstr("is in use by process"));
  }
}

TEST_F(RunDirectories, CheckpointsOfTwoRunsAreNeverInOneDirectory) {
  {
    const RunDirectory first(run("a"), {}, false);
    expect_in_use(run("b"), run("a").checkpoints());
  }
  {
    const RunDirectory first(run("c"), run("d").checkpoints(), false);
    expect_in_use(run("d"), {});
    expect_in_use(run("e"), run("d").checkpoints());
  }
}

TEST_F(RunDirectories, ANewRunRemovesWhatAnEarlierOneLeft) {
  const RunPaths paths = run("a");
  fs::create_directories(paths.root);
  for (const char* name : {"metrics.h5", "status.json", "report.html", "trace-3.json", "trace-12.json"})
    spill(paths.root / name, "old");
  for (const char* name : {"notes.txt", "trace-x.json", "trace-03.json"}) spill(paths.root / name, "own");
  {
    const RunDirectory restarted(paths, {}, true);
    EXPECT_TRUE(restarted.removed().empty());
  }
  const RunDirectory fresh(paths, {}, false);
  EXPECT_THAT(fresh.removed(),
              ElementsAre("trace-3.json", "trace-12.json", "metrics.h5", "status.json", "report.html"));
  for (const char* name : {"notes.txt", "trace-x.json", "trace-03.json"})
    EXPECT_TRUE(fs::exists(paths.root / name)) << name;
}

}  // namespace
}  // namespace mylos::test
