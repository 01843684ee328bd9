// SPDX-License-Identifier: BSD-3-Clause
// A run's checkpoints are listed by step.
#include <string>

#include <gtest/gtest.h>

#include "io/checkpoint/checkpoint_directory.hpp"
#include "io/inspect/inspect.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

TEST(Inspect, ListsCheckpointsByStepThenOtherEntriesByName) {
  const ScratchDirectory scratch;
  IoThread io;
  const fs::path checkpoints = scratch.path() / "checkpoints";
  for (const char* name :
       {"step_1000000", "step_999999", "step_20000000", "step_000002", "notes", "abandoned-0001"})
    fs::create_directories(checkpoints / name);
  const std::string text = inspect(io, scratch.path());
  std::size_t at = 0;
  for (const char* name :
       {"step_000002 ", "step_999999 ", "step_1000000 ", "step_20000000 ", "abandoned-0001 ", "notes "}) {
    const std::size_t next = text.find(name);
    ASSERT_NE(next, std::string::npos) << name << text;
    EXPECT_GT(next, at) << text;
    at = next;
  }
}

}  // namespace
}  // namespace mylos::test
