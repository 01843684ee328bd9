// SPDX-License-Identifier: BSD-3-Clause
// Files are synced to disk before they get their final names, and no error of fsync(2) is lost. Calls that
// read or write less than requested are continued. This file replaces system calls for the whole program,
// records some of them and makes them fail as a test requests.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "io/checkpoint/tensor_file.hpp"
#include "io/file_util.hpp"
#include "io/metrics/metrics.hpp"
#include "io/tokens/sample_stream.hpp"
#include "io/tokens/token_dataset.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {
namespace {

/// How the calls below behave, and the record of some. Files are written by one thread at a time.
struct Calls {
  int failing_sync = 0;  ///< counted from 1; 0: no sync fails
  int error = EIO;       ///< of the failing sync
  bool are_short = false;
  bool reads_fail = false;                 ///< of step 2's weights.h5, with EIO
  bool directories_refuse = false;         ///< to be synced, with EINVAL
  std::vector<std::string> synced = {};    ///< paths
  std::vector<std::string> uncached = {};  ///< paths of files that were dropped from the page cache
  std::vector<const void*> written = {};   ///< memory from which files were written
};
Calls calls;
std::atomic<std::size_t> num_reads = 0;  // by all threads

std::string path_of(int fd) {
  return fs::read_symlink(fmt::format("/proc/self/fd/{}", fd)).string();
}

int sync_or_fail(int fd) {
  calls.synced.push_back(path_of(fd));
  const bool fails = std::ssize(calls.synced) == calls.failing_sync;
  const bool refuses = calls.directories_refuse && fs::is_directory(calls.synced.back());
  if (!fails && !refuses) return 0;  // no real sync: a test's files need not survive a crash of the machine
  errno = fails ? calls.error : EINVAL;
  return -1;
}

/// If calls are short, half of the requested bytes or, for several whole pages, half of the pages, rounded
/// down; at least one byte.
std::size_t shortened(std::size_t bytes) {
  if (!calls.are_short || bytes < 2) return bytes;
  constexpr std::size_t page = 4096;
  return bytes % page == 0 && bytes > page ? bytes / page / 2 * page : bytes / 2;
}

ssize_t write_some(int fd, const void* data, std::size_t bytes, off_t offset) {
  calls.written.push_back(data);
  return ::syscall(SYS_pwrite64, fd, data, shortened(bytes), offset);
}
ssize_t read_some(int fd, void* data, std::size_t bytes, off_t offset) {
  ++num_reads;
  if (calls.reads_fail && path_of(fd).ends_with("step_000002/weights.h5")) {
    errno = EIO;
    return -1;
  }
  return ::syscall(SYS_pread64, fd, data, shortened(bytes), offset);
}

int note_advice(int fd, int advice) {
  if (advice == POSIX_FADV_DONTNEED) calls.uncached.push_back(path_of(fd));
  return 0;
}

}  // namespace
}  // namespace mylos::test

extern "C" {
int fsync(int fd) {
  return mylos::test::sync_or_fail(fd);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  return mylos::test::write_some(fd, data, bytes, offset);
}
ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  return mylos::test::read_some(fd, data, bytes, offset);
}
int posix_fadvise(int fd, off_t /*offset*/, off_t /*bytes*/, int advice) noexcept {
  return mylos::test::note_advice(fd, advice);
}
}

namespace mylos::test {
namespace {

class SystemCalls : public testing::Test {
 protected:
  SystemCalls() { calls = {}; }
  ~SystemCalls() override { calls = {}; }

  /// Writes a checkpoint without its large tensor.
  void write_small(const fs::path& run, std::int64_t step) {
    std::vector<std::vector<float>> memory;
    CheckpointContent content = whole_content(step, memory);
    content.tensors.erase(content.tensors.begin());
    CheckpointStore(io_, io_, run / "checkpoints", {}).write(content);
  }

  /// Runs `work` repeatedly, each time on a new directory, and makes its first, second, ... fsync fail until
  /// `work` makes no further call. Expects of each failing call an io error that names its file or directory.
  /// Returns the number of calls.
  int sweep(const std::function<void(const fs::path& run)>& work) {
    for (int n = 1;; ++n) {
      SCOPED_TRACE(n);
      const ScratchDirectory scratch;
      calls = {.failing_sync = n};
      std::string message = "no error";
      try {
        work(scratch.path());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::io);
        message = error.what();
      }
      if (std::ssize(calls.synced) < n) {
        EXPECT_EQ(message, "no error");
        return n - 1;
      }
      EXPECT_NE(message.find("cannot sync " + calls.synced[static_cast<std::size_t>(n) - 1]),
                std::string::npos)
          << message;
    }
  }

  IoThread io_;
};

TEST_F(SystemCalls, ACheckpointIsOnDiskBeforeItGetsItsName) {
  const ScratchDirectory scratch;
  write_small(scratch.path(), 1);
  const std::string place = scratch.path().string() + "/checkpoints";
  const std::string temporary = place + "/step_000001.tmp";
  EXPECT_EQ(calls.synced,
            (std::vector<std::string>{scratch.path().string(), temporary + "/optimizer.h5",
                                      temporary + "/weights.h5", temporary + "/state.json.tmp", temporary,
                                      temporary + "/manifest.json.tmp", temporary, place}));
}

TEST_F(SystemCalls, ACheckpointIsReadBackFromTheDisk) {
  const ScratchDirectory scratch;
  write_small(scratch.path(), 1);
  const std::string checkpoint = scratch.path().string() + "/checkpoints/step_000001";
  for (const char* file : {"/weights.h5", "/optimizer.h5"})
    EXPECT_THAT(calls.uncached, testing::Contains(checkpoint + file));
}

TEST_F(SystemCalls, MemoryThatLiesAsInTheFileIsWrittenWithoutACopy) {
  const ScratchDirectory scratch;
  const fs::path path = scratch.path() / "tensors.h5";
  constexpr std::int64_t page_elements = 4096 / sizeof(float);
  const TensorInfo info{.name = "values", .shape = {1000 * page_elements}};
  const PlacedTensor tensor = lay_out_tensors(path, {info}, 4096).front();
  std::vector<float> memory(static_cast<std::size_t>(info.size() + page_elements), 1.5F);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  float* const data = memory.data() + (4096 - address % 4096) / sizeof(float);
  TensorFile file(path, O_RDWR);
  file.bypass_cache();
  for (const std::int64_t begin : {0, 5, 3000}) {
    calls = {};
    const std::int64_t count = info.size() - begin;
    const TensorPart part = parts_of_range(info, begin, count, data + begin).front();
    const Digest written = file.write(tensor, part);
    EXPECT_EQ(file.digest_of(tensor, part.box), written);
    EXPECT_THAT(calls.written,
                testing::Each(testing::AllOf(testing::Ge(data), testing::Lt(data + info.size()))));
  }
}

TEST_F(SystemCalls, NoErrorOfFsyncIsLost) {
  EXPECT_EQ(sweep([&](const fs::path& run) { write_small(run, 1); }), 8);
  // A checkpoint of the same step is moved away first: three more syncs. The directory is already there.
  EXPECT_EQ(sweep([&](const fs::path& run) {
              write_small(run, 1);
              write_small(run, 1);
            }),
            8 + 7 + 3);
  EXPECT_EQ(sweep([&](const fs::path& run) { make_directory(run / "a" / "b"); }), 2);
  EXPECT_EQ(sweep([&](const fs::path& run) { write_text_file(run / "status.json", "{}"); }), 2);
  EXPECT_GE(sweep([&](const fs::path& run) {
              const std::vector<std::uint16_t> tokens = {1, 2, 3};
              TokenFileWriter writer(run / "tokens.bin");
              writer.append(tokens);
              writer.finish();
            }),
            1);
  EXPECT_GT(sweep([&](const fs::path& run) {
              MetricsWriter writer(io_, run / "metrics.h5", {});
              writer.append("steps", {{"step", 1.0}});
              writer.flush();
            }),
            1);
}

TEST_F(SystemCalls, ACheckpointThatIsNotOnDiskHasNoName) {
  for (const int n : {2, 3, 5, 7}) {
    const ScratchDirectory scratch;
    calls = {.failing_sync = n};
    EXPECT_THROW(write_small(scratch.path(), 1), Error);
    EXPECT_TRUE(fs::is_empty(scratch.path() / "checkpoints")) << n;
  }
}

TEST_F(SystemCalls, WhereDirectoriesCannotBeSyncedTheyNeedNotBe) {
  const ScratchDirectory scratch;
  calls.directories_refuse = true;
  write_small(scratch.path(), 1);
  EXPECT_TRUE(verify_checkpoint(scratch.path() / "checkpoints" / "step_000001").empty());
}

/// Another attempt to read the checkpoint may succeed, so a run must not silently fall back to an older one.
TEST_F(SystemCalls, ACheckpointThatCannotBeReadIsNotPassedOver) {
  const ScratchDirectory scratch;
  const fs::path checkpoints = scratch.path() / "checkpoints";
  for (const std::int64_t step : {1, 2}) write_small(scratch.path(), step);
  calls.reads_fail = true;
  std::string warnings;
  try {
    open_newest(io_, checkpoints, std::nullopt, [&](const std::string& text) { warnings += text; });
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
    EXPECT_NE(std::string(error.what()).find("weights.h5"), std::string::npos) << error.what();
  }
  EXPECT_EQ(warnings, "");
  calls.reads_fail = false;
  EXPECT_EQ(open_newest(io_, checkpoints, std::nullopt, {})->state().step, 2);
}

TEST_F(SystemCalls, MicroBatchesAreReadAhead) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "tokens.bin";
  TokenFileWriter writer(file);
  writer.append(std::vector<std::uint16_t>(100, 1));
  writer.finish();
  SampleStream stream(open_dataset(parse_sources(file.string()), TokenFile::most_ids, 8, 1), 1, 1);
  std::vector<std::int32_t> tokens(9);
  num_reads = 0;
  stream.read(0, tokens);
  EXPECT_TRUE(wait_until([] { return num_reads == 1 + SampleStream::depth; }));
}

TEST_F(SystemCalls, WhatIsTakenAndGivenInPartsIsWhole) {
  const ScratchDirectory scratch;
  calls.are_short = true;
  write_text_file(scratch.path() / "text", "a text of some length");
  EXPECT_EQ(read_text_file(scratch.path() / "text"), "a text of some length");
  write_whole(io_, scratch.path(), 1);
  EXPECT_TRUE(verify_checkpoint(scratch.path() / "step_000001").empty());
  calls.are_short = false;
  EXPECT_EQ(slurp(scratch.path() / "text"), "a text of some length");
  EXPECT_TRUE(verify_checkpoint(scratch.path() / "step_000001").empty());
}

}  // namespace
}  // namespace mylos::test
