// SPDX-License-Identifier: BSD-3-Clause
// What a run's directory refuses, and what it removes.
#include "app/launch/run_directory.hpp"

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

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  return names;
}

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
  EXPECT_TRUE(RunDirectory(paths, {}, true).begin(true).empty());
  EXPECT_THAT(RunDirectory(paths, {}, false).begin(false),
              ElementsAre("trace-3.json", "trace-12.json", "metrics.h5", "status.json", "report.html"));
  for (const char* name : {"notes.txt", "trace-x.json", "trace-03.json"})
    EXPECT_TRUE(fs::exists(paths.root / name)) << name;
}

TEST_F(RunDirectories, ARunThatDoesNotBeginLeavesWhatItFound) {
  const RunPaths deep = {run("new").root / "deeper" / "run"};
  const fs::path elsewhere = run("elsewhere").root / "checkpoints";
  RunDirectory(deep, {}, false).withdraw();
  EXPECT_FALSE(fs::exists(run("new").root));
  RunDirectory(deep, elsewhere, false).withdraw();
  EXPECT_FALSE(fs::exists(run("new").root));
  EXPECT_FALSE(fs::exists(run("elsewhere").root));

  const RunPaths present = run("present");
  fs::create_directories(present.root);
  fs::create_directories(elsewhere);
  spill(present.root / "status.json", "old");
  spill(elsewhere / "notes.txt", "own");
  RunDirectory(present, elsewhere, false).withdraw();
  EXPECT_THAT(names_in(present.root), ElementsAre("status.json"));
  EXPECT_THAT(names_in(elsewhere), ElementsAre("notes.txt"));
}

/// A process that was killed while ranks looked for its file.
TEST_F(RunDirectories, AnEarlierProbeIsNoCheckpoint) {
  const RunPaths paths = run("a");
  const fs::path elsewhere = run("elsewhere").root;
  fs::create_directories(paths.checkpoints());
  spill(paths.checkpoints() / ".mylos-shared-0123456789abcdef", "x");
  RunDirectory directory(paths, elsewhere, false);
  EXPECT_EQ(directory.checkpoints(), elsewhere);
  directory.begin(false);
  EXPECT_EQ(fs::read_symlink(paths.checkpoints()), elsewhere);
}

}  // namespace
}  // namespace mylos::test
