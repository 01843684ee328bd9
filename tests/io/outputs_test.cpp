// SPDX-License-Identifier: BSD-3-Clause
// Files that several processes may write, outputs that users name, what messages say of a path, and waits.
#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <functional>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>

#include "core/base/error.hpp"
#include "core/base/what_is_at.hpp"
#include "io/agree.hpp"
#include "io/file_util.hpp"
#include "io/tokens/sidecar.hpp"
#include "io/tokens/token_file.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

class Outputs : public testing::Test {
 protected:
  fs::path file(const std::string& name) const { return scratch_.path() / name; }
  std::ptrdiff_t num_files() const { return std::distance(fs::directory_iterator(scratch_.path()), {}); }

  static void expect_error(ExitCode code, const std::string& message, const std::function<void()>& work) {
    try {
      work();
      ADD_FAILURE() << "no error; expected: " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }

 private:
  ScratchDirectory scratch_;
};

void put(const TemporaryFile& temporary, const std::string& text) {
  write_fully(temporary.fd(), temporary.path(), text.data(), text.size(), 0);
}

TEST_F(Outputs, WritersOfOneFileHaveTemporaryFilesOfTheirOwn) {
  {
    TemporaryFile first(file("x"));
    TemporaryFile second(file("x"));
    TemporaryFile given_up(file("x"));
    put(first, "the first");
    put(second, "another");
    put(given_up, "nothing");
    second.commit();
    EXPECT_EQ(slurp(file("x")), "another");
    first.commit();
    EXPECT_EQ(slurp(file("x")), "the first");
  }
  EXPECT_EQ(num_files(), 1);
}

TEST_F(Outputs, WhatAKilledWriterLeftIsReplaced) {
  spill(file("x.tmp"), "what a killed writer left, longer than the text");
  write_text_file(file("x"), "text");
  EXPECT_EQ(slurp(file("x")), "text");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(Outputs, KeepPermissions) {
  const auto mode_of = [&] {
    struct stat info {};
    ::stat(file("x").c_str(), &info);
    return info.st_mode & 0777U;
  };
  const mode_t before = ::umask(027);
  write_text_file(file("x"), "new");
  EXPECT_EQ(mode_of(), 0640U);
  ::chmod(file("x").c_str(), 0604);
  write_text_file(file("x"), "replaced");
  EXPECT_EQ(mode_of(), 0604U);
  ::umask(before);
}

TEST_F(Outputs, ASecondWriterIsToldOfTheFirst) {
  {
    const OutputLock lock(file("x"));
    expect_error(ExitCode::usage, fmt::format("x is being written by process {} on ", ::getpid()),
                 [&] { const OutputLock second(file("x")); });
    EXPECT_NO_THROW(const OutputLock other(file("y")));
  }
  EXPECT_EQ(num_files(), 0);
  spill(file("x.lock"), "process 1 on a node that is gone\n");
  EXPECT_NO_THROW(const OutputLock after(file("x")));
  EXPECT_EQ(num_files(), 0);
}

// A lock file that was removed between its opening and its locking is no lock.
TEST_F(Outputs, OneWriterAtATimeAlthoughLockFilesAreRemoved) {
  constexpr int threads = 4;
  constexpr int turns = 1000;  // of each thread
  std::atomic<int> inside = 0;
  std::atomic<int> most = 0;
  {
    std::vector<std::jthread> all;
    for (int t = 0; t < threads; ++t) {
      all.emplace_back([&] {
        for (int taken = 0; taken < turns;) {
          try {
            const OutputLock lock(file("x"));
            most = std::max(most.load(), ++inside);
            std::this_thread::yield();
            --inside;
            ++taken;
          } catch (const Error&) {
            std::this_thread::yield();
          }
        }
      });
    }
  }
  EXPECT_EQ(most, 1);
}

TEST_F(Outputs, LinksAreFollowedToFilesOnly) {
  fs::create_directory(file("big"));
  fs::create_symlink("big/target", file("link"));
  EXPECT_EQ(follow_links(file("link")), file("big/target")) << "it need not exist";
  fs::create_symlink(file("link"), file("second"));
  EXPECT_EQ(follow_links(file("second")), file("big/target"));
  EXPECT_EQ(follow_links(file("plain")), file("plain"));
  fs::create_symlink("/dev/null", file("device"));
  EXPECT_EQ(follow_links(file("device")), file("device"));
  EXPECT_TRUE(is_same_file(file("big/../plain"), file("plain")));
  EXPECT_TRUE(is_same_file(file("big/../big/target"), follow_links(file("link"))));
  EXPECT_FALSE(is_same_file(file("plain"), file("other")));
}

TEST_F(Outputs, AreTried) {
  EXPECT_NO_THROW(try_output(file("new")));
  EXPECT_EQ(num_files(), 0);
  fs::create_directory(file("folder"));
  expect_error(ExitCode::io, "there is a folder", [&] { try_output(file("folder")); });
  fs::create_symlink("/dev/null", file("null"));
  expect_error(ExitCode::io, "a device", [&] { try_output(file("null")); });
  expect_error(ExitCode::io, "does not exist", [&] { try_output(file("none/x")); });
  expect_error(ExitCode::io, "cannot open", [&] { try_output(file(std::string(255, 'n'))); });
  spill(file("x"), "unchanged");
  EXPECT_NO_THROW(try_output(file("x")));
  EXPECT_EQ(slurp(file("x")), "unchanged");
  if (::geteuid() == 0) return;  // root may write everything
  fs::permissions(file("x"), fs::perms::owner_read);
  expect_error(ExitCode::io, "without the right to write", [&] { try_output(file("x")); });
}

TEST_F(Outputs, AreWrittenIntoPipes) {
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  const FileDescriptor reader = open_file(file("pipe"), O_RDWR);
  write_output(file("pipe"), "text");
  std::array<char, 8> text{};
  EXPECT_EQ(::read(reader.get(), text.data(), text.size()), 4);
  EXPECT_EQ(std::string(text.data()), "text");
}

TEST_F(Outputs, TheTextOfAPipeIsReadToItsEnd) {
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  const std::string text(200000, 'x');
  std::jthread writer([&] { spill(file("pipe"), text); });
  EXPECT_EQ(read_text_file(file("pipe")), text);
  writer = std::jthread([&] {
    ::signal(SIGPIPE, SIG_IGN);
    spill(file("pipe"), text);
  });
  expect_error(ExitCode::bad_data, "more than the 10 bytes", [&] { read_text_file(file("pipe"), 10); });
}

TEST_F(Outputs, AStopEndsWaits) {
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);
  const FileDescriptor writer = open_file(file("pipe"), O_RDWR);  // which stays silent
  const FileDescriptor stop(::eventfd(1, EFD_CLOEXEC));
  end_waits_with(stop.get());
  expect_error(ExitCode::preempted, "stopped by a signal", [&] { read_text_file(file("pipe")); });
  expect_error(ExitCode::preempted, "stopped by a signal",
               [&] { wait_until_ready(writer.get(), POLLIN, file("pipe")); });
  end_waits_with(-1);
  EXPECT_NO_THROW(wait_until_ready(writer.get(), POLLOUT, file("pipe")));
}

TEST_F(Outputs, MessagesSayWhatIsThere) {
  fs::create_directory(file("folder"));
  spill(file("text"), "text");
  ::mkfifo(file("pipe").c_str(), 0600);
  fs::create_symlink("gone", file("dead"));
  fs::create_symlink("folder", file("alive"));
  fs::create_symlink("circle", file("circle"));
  EXPECT_EQ(what_is_at(file("none")), "nothing");
  EXPECT_THAT(what_is_at(file("none/x")), EndsWith("none does not exist"));
  EXPECT_THAT(what_is_at(file("text/x")), EndsWith("text is a file"));
  EXPECT_EQ(what_is_at(file("text")), "a file");
  EXPECT_EQ(what_is_at(file("folder")), "a folder");
  EXPECT_EQ(what_is_at(file("pipe")), "a pipe");
  EXPECT_EQ(what_is_at("/dev/null"), "a device");
  EXPECT_EQ(what_is_at(file("dead")), "a link to gone, which does not exist");
  EXPECT_EQ(what_is_at(file("alive")), "a link to folder, a folder");
  EXPECT_EQ(what_is_at(file("circle")), "a link to circle, which leads in a circle");
  expect_error(ExitCode::io, "there is a link to gone, which does not exist",
               [&] { open_file(file("dead"), O_RDONLY); });
  expect_error(ExitCode::io, "there is a folder", [&] { read_text_file(file("folder")); });
  if (::geteuid() == 0) return;  // root may read everything
  fs::permissions(file("text"), fs::perms::none);
  EXPECT_EQ(what_is_at(file("text")), "a file without the right to read");
}

TEST_F(Outputs, ErrorsOfTheStandardLibraryAreSaidInTheWordsOfMylos) {
  expect_error(
      ExitCode::io,
      fmt::format("cannot use {}: No such file or directory; there is nothing", file("none").string()),
      [&] { run_collectively(MPI_COMM_NULL, [&] { static_cast<void>(fs::file_size(file("none"))); }); });
}

TEST_F(Outputs, ASidecarIsFoundThroughALinkToItsTokenFile) {
  const Sidecar sidecar{
      .tokenizer = {.name = "bytes", .ranks = ""}, .vocab = 257, .tokens = 1, .content = "0", .documents = 1};
  write_sidecar(file("x.bin"), sidecar);
  fs::create_symlink("x.bin", file("link.bin"));
  ASSERT_TRUE(read_sidecar(file("link.bin")));
  EXPECT_EQ(read_sidecar(file("link.bin"))->tokens, 1);
}

}  // namespace
}  // namespace mylos::test
