// SPDX-License-Identifier: BSD-3-Clause
// Symbolic links that somebody plants under the names of files that mylos creates: their targets stay
// unchanged.
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "io/file_util.hpp"
#include "io/metrics/metrics.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

TEST(PlantedLinks, AreNotFollowed) {
  const ScratchDirectory scratch;
  const fs::path target = scratch.path() / "precious";
  const auto plant = [&](const std::string& name) {
    spill(target, "precious");
    const fs::path link = scratch.path() / name;
    fs::remove(link);
    fs::create_symlink(target, link);
  };
  const auto expect_refused = [&](const std::string& name, const std::function<void()>& work) {
    SCOPED_TRACE(name);
    plant(name);
    try {
      work();
      ADD_FAILURE() << "a link was followed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::io) << error.what();
    }
    EXPECT_EQ(slurp(target), "precious");
  };
  expect_refused("lock", [&] { const RunLock lock(scratch.path(), "run.dir"); });
  for (const char* name : {"status.json", "manifest.json"}) {
    expect_refused(std::string(name) + ".tmp", [&] { write_text_file(scratch.path() / name, "text"); });
    EXPECT_FALSE(fs::exists(scratch.path() / name));
  }

  // The temporary file of metrics replaces a link that has its name.
  IoThread io;
  plant("metrics.h5.tmp");
  MetricsWriter metrics(io, scratch.path() / "metrics.h5", [](const std::string&) {});
  EXPECT_EQ(slurp(target), "precious");
  for (const char* table : {"steps", "eval"}) {
    plant("metrics.h5.tmp");
    metrics.append(table, {{"step", 1.0}});
    metrics.flush();
    EXPECT_EQ(slurp(target), "precious");
    EXPECT_EQ(read_metrics(io, scratch.path() / "metrics.h5", table).at("step"), std::vector<double>{1.0});
  }
}

}  // namespace
}  // namespace mylos::test
