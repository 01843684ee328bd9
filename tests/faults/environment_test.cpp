// SPDX-License-Identifier: BSD-3-Clause
// What the environment gives a job - threads, memory, files, variables of libraries - is used as it is, or
// ends the job with a line and a code of mylos. So does whatever a library does.
#include <algorithm>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

constexpr int internal = static_cast<int>(ExitCode::internal);
constexpr int usage = static_cast<int>(ExitCode::usage);

/// AddressSanitizer reserves far more memory than limits allow, and reports failures itself.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool has_address_sanitizer = true;
#else
constexpr bool has_address_sanitizer = false;
#endif

class Environment : public RunTest {
 protected:
  /// One rank, whose command line begins with `wrapper`.
  Outcome train_in(const Words& wrapper, const Words& more = {}, const Words& environment = {}) const {
    fs::remove_all(run_path("run"));
    return train("run", more, {.ranks = 1, .environment = environment, .wrapper = wrapper});
  }
  static Words shell(const std::string& command) { return {"sh", "-c", command + R"(; exec "$@")", "sh"}; }
};

TEST_F(Environment, UsesTheThreadsThatOpenMPHas) {
  const Words unset = {"env", "-u", "OMP_NUM_THREADS", "OMP_THREAD_LIMIT=1"};
  const Outcome by_default = train_in(unset, {"--backend.threads=0"});
  EXPECT_EQ(by_default.exit_code, 0) << by_default.output;
  EXPECT_THAT(by_default.output, HasSubstr("1 thread per rank"));

  const Outcome refused =
      train_in({"env", "OMP_NUM_THREADS=2", "OMP_THREAD_LIMIT=1"}, {"--backend.threads=0"});
  EXPECT_EQ(refused.exit_code, usage) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("mylos: OMP_NUM_THREADS = 2, but the environment variable "
                                        "OMP_THREAD_LIMIT=1 allows fewer threads"));
  const Outcome by_deck = train_in({"env", "OMP_THREAD_LIMIT=1"}, {"--backend.threads=2"});
  EXPECT_EQ(by_deck.exit_code, usage) << by_deck.output;
  EXPECT_THAT(by_deck.output, HasSubstr("[backend] threads = 2, but"));

  ASSERT_EQ(train("reference", {"--backend.threads=2"}, {.ranks = 1}).exit_code, 0);
  for (const char* variable : {"OMP_DYNAMIC=true", "OMP_MAX_ACTIVE_LEVELS=0"}) {
    const Outcome outcome = train_in({"env", variable}, {"--backend.threads=2"});
    EXPECT_EQ(outcome.exit_code, 0) << variable << "\n" << outcome.output;
    expect_same_run("run", "reference", 8);
  }
}

TEST_F(Environment, OfAnEvaluationIsChecked) {
  ASSERT_EQ(train("run", {"--train.stop_step=2"}, {.ranks = 1}).exit_code, 0);
  const Words arguments = {"eval", run_path("run").string(), "--data=" + tokens().string()};
  const Outcome outcome =
      run_mylos(arguments, {.ranks = 1, .wrapper = {"env", "OMP_NUM_THREADS=2", "OMP_THREAD_LIMIT=1"}});
  EXPECT_EQ(outcome.exit_code, usage) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("OMP_THREAD_LIMIT=1 allows fewer threads"));
}

TEST_F(Environment, WithWrongValuesOfVariablesIsRefused) {
  for (const char* variable : {"OMP_NUM_THREADS=abc", "OMP_STACKSIZE=large", "KOKKOS_NUM_THREADS=abc",
                               "KOKKOS_PRINT_CONFIGURATION=perhaps", "DNNL_MAX_CPU_ISA=foo"}) {
    const std::string text = variable;
    const std::string name = text.substr(0, text.find('='));
    const Outcome outcome = train_in({"env", variable});
    EXPECT_EQ(outcome.exit_code, usage) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("mylos: the environment variable " + name + "=\""));
    EXPECT_FALSE(fs::exists(run_path("run")));
  }
}

/// A library's own messages may precede the line, but the line is there and the code is mylos'.
TEST_F(Environment, WithLittleMemoryEndsWithALine) {
  if (has_address_sanitizer) GTEST_SKIP() << "AddressSanitizer has its own ways to fail";
  int ended = 0;
  for (const int megabytes : {1000, 280, 240, 200, 180, 160}) {
    const Outcome outcome =
        train_in({"prlimit", fmt::format("--as={}", static_cast<std::int64_t>(megabytes) << 20U)},
                 {"--machine.peak_tflops=0"});
    SCOPED_TRACE(fmt::format("{} MB: {}", megabytes, outcome.output));
    constexpr int no_libraries = 127;  // of the loader
    if (outcome.exit_code == 0 || outcome.exit_code == no_libraries) continue;
    ++ended;
    EXPECT_THAT(outcome.exit_code, AnyOf(internal, static_cast<int>(ExitCode::io)));
    EXPECT_THAT(outcome.output, ContainsRegex("mylos: .*out of memory"));
  }
  EXPECT_GT(ended, 0);
}

TEST_F(Environment, WithLittleMemoryNamesItInCommandsThatReadARun) {
  if (has_address_sanitizer) GTEST_SKIP() << "AddressSanitizer has its own ways to fail";
  ASSERT_EQ(train("run", {"--train.stop_step=2"}, {.ranks = 1}).exit_code, 0);
  int ended = 0;
  for (const char* command : {"inspect", "report"}) {
    for (int megabytes = 60; megabytes <= 200; megabytes += 20) {
      // Hydra may end by SIGPIPE if the loader ends the process at once.
      const Outcome outcome = run_mylos(
          {command, run_path("run").string()},
          {.ranks = 0,
           .wrapper = {"prlimit", fmt::format("--as={}", static_cast<std::int64_t>(megabytes) << 20U)}});
      SCOPED_TRACE(fmt::format("{} in {} MB: {}", command, megabytes, outcome.output));
      EXPECT_THAT(outcome.exit_code, AnyOf(0, 127, internal));
      if (outcome.exit_code != internal) continue;
      ++ended;
      EXPECT_THAT(outcome.output, ContainsRegex("mylos: .*out of memory"));
    }
  }
  EXPECT_GT(ended, 0);
}

TEST_F(Environment, WithASmallStackSaysSo) {
  if (has_address_sanitizer) GTEST_SKIP() << "AddressSanitizer has its own ways to fail";
  int ended = 0;
  for (int kilobytes = 8; kilobytes <= 48; kilobytes += 8) {
    const Outcome outcome = train_in({"prlimit", fmt::format("--stack={}", kilobytes << 10)});
    // The system or its loader (127) may be unable to start the program.
    const bool has_started = outcome.exit_code != 127 && outcome.output.find("mylos: ") != std::string::npos;
    if (outcome.exit_code == 0 || !has_started) continue;
    ++ended;
    EXPECT_EQ(outcome.exit_code, internal) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(": stack overflow (ulimit -s) in "));
  }
  EXPECT_GT(ended, 0);
}

TEST_F(Environment, WithFewThreadsEndsWithALine) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become a user without processes";
  fs::permissions(scratch(), fs::perms::all);
  fs::permissions(deck(), fs::perms::all);
  fs::permissions(tokens(), fs::perms::all);
  int ended = 0;
  for (int threads = 1; threads < 12; ++threads) {
    const Outcome outcome = train_in({"setpriv", "--reuid=65531", "--regid=65531", "--clear-groups",
                                      "prlimit", fmt::format("--nproc={}", threads)},
                                     {"--backend.threads=2"});
    SCOPED_TRACE(fmt::format("{} threads: {}", threads, outcome.output));
    if (outcome.exit_code == 0) continue;
    ++ended;
    EXPECT_EQ(outcome.exit_code, internal);
    EXPECT_THAT(outcome.output, HasSubstr("cannot start a thread (ulimit -u, pids limit)"));
    if (fs::exists(run_path("run") / "status.json")) expect_status("run", "failed", ExitCode::internal);
  }
  EXPECT_GT(ended, 4);
}

TEST_F(Environment, WithFewOrSmallFilesEndsWithALine) {
  if (has_address_sanitizer) GTEST_SKIP() << "sanitizers open files themselves";
  const Outcome files = train_in({"prlimit", "--nofile=31"});
  EXPECT_EQ(files.exit_code, static_cast<int>(ExitCode::io)) << files.output;
  EXPECT_THAT(files.output, HasSubstr("open files, but ulimit -n is 31"));
  const Outcome sizes = train_in({"prlimit", "--fsize=1000000"}, {}, {"UCX_TLS="});
  EXPECT_THAT(sizes.exit_code, AnyOf(0, static_cast<int>(ExitCode::io))) << sizes.output;
  if (sizes.exit_code != 0) {
    EXPECT_THAT(sizes.output, HasSubstr("File too large"));
  }
}

TEST_F(Environment, WithASmallSharedMemoryEndsBeforeMpiStarts) {
  const std::string mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm";
  if (std::system(("unshare -m sh -c '" + mount + "' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "no right to mount";
  Words wrapper = {"unshare", "-m"};
  std::ranges::copy(shell(mount), std::back_inserter(wrapper));
  const Outcome outcome = train_in(wrapper);
  if (outcome.exit_code == 0) GTEST_SKIP() << "this MPI needs no memory in /dev/shm";
  EXPECT_EQ(outcome.exit_code, internal) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("mylos: /dev/shm has 1.0 MB, .* but MPI needs 4.3 for 1 rank"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("UCX  ERROR")));
  const Outcome without_cma = train_in(wrapper, {}, {"UCX_TLS=^cma"});
  EXPECT_EQ(without_cma.exit_code, internal) << without_cma.output;
  EXPECT_THAT(without_cma.output, HasSubstr("/dev/shm has 1.0 MB"));
  const Outcome without = train_in(wrapper, {}, {"UCX_TLS=^posix"});
  EXPECT_EQ(without.exit_code, 0) << without.output;
}

/// What is printed must not get into a file that took the place of a closed stream.
TEST_F(Environment, WithoutStandardStreamsTrains) {
  const Outcome outcome = train_in({"sh", "-c", R"(exec "$@" <&- >&- 2>&-)", "sh"});
  EXPECT_EQ(outcome.exit_code, 0);
  expect_loads("run", 8);
  expect_status("run", "done", ExitCode::done);
}

/// A plugin stands for a library that fails, or for a kernel that hangs.
class StalledComputation : public RunTest {
 protected:
  void SetUp() override {
    if (!fs::exists(MYLOS_TEST_PLUGINS)) GTEST_SKIP() << "a static build loads no plugins";
  }
  Words failing(const Words& more = {}) const {
    Words words = {"--backend.compute=hanging", "--plugin-path=" MYLOS_TEST_PLUGINS};
    words.insert(words.end(), more.begin(), more.end());
    return train_arguments("run", words);
  }
  Outcome train_hanging(int ranks) const {
    return run_on_clock(failing({"--comm.timeout=8"}), {.ranks = ranks},
                        [&](const Job& /*job*/) { return fs::exists(run_path("run") / "status.json"); });
  }
};

TEST_F(StalledComputation, IsFoundOnOneRank) {
  const Outcome outcome = train_hanging(1);
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::watchdog)) << outcome.output;
  EXPECT_THAT(expect_status("run", "failed", ExitCode::watchdog),
              HasSubstr("stalled computation: rank 0 has been in compute ["));
}

TEST_F(StalledComputation, IsShownAmongCollectives) {
  const Outcome outcome = train_hanging(2);
  EXPECT_NE(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(expect_status("run", "failed", ExitCode::watchdog), HasSubstr("in compute ["));
}

class LibraryFailure : public StalledComputation {};

TEST_F(LibraryFailure, EndsWithALineACodeAndAStatus) {
  if (has_address_sanitizer) GTEST_SKIP() << "AddressSanitizer has its own ways to fail";
  const std::pair<const char*, const char*> failures[] = {
      {"abort", "internal error: an abort (SIGABRT)"},
      {"exit", "internal error: a library has ended the process with exit code 1"},
      {"segv", "an invalid memory access (SIGSEGV)"}};
  for (const auto& [failure, line] : failures) {
    for (const int ranks : {1, 2}) {
      fs::remove_all(run_path("run"));
      const Outcome outcome = run_mylos(
          failing(), {.ranks = ranks, .environment = {fmt::format("MYLOS_LIBRARY_FAILURE={}", failure)}});
      if (ranks == 1) {
        EXPECT_EQ(outcome.exit_code, internal) << outcome.output;
      }
      EXPECT_THAT(outcome.output, HasSubstr("mylos: "));
      EXPECT_THAT(outcome.output, HasSubstr(line));
      EXPECT_THAT(expect_status("run", "failed", ExitCode::internal), HasSubstr(line));
    }
  }
}

}  // namespace
}  // namespace mylos::test
