// SPDX-License-Identifier: BSD-3-Clause
// Bad decks, token files and plugins, as a user meets them: what is refused gives one message and the right
// exit code, and begins nothing. Also: ranks in separate user namespaces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/plugin.hpp"
#include "io/tokens/token_dataset.hpp"
#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::HasSubstr;

class Input : public RunTest {
 protected:
  /// Expects the deck's problems to be reported once, before anything is created.
  void expect_usage(const Words& more, const Words& messages) {
    const Outcome outcome = train("run", more);
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
    for (const std::string& message : messages)
      EXPECT_EQ(occurrences(outcome.output, message), 1) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, "parameters, "), 0) << outcome.output;
    EXPECT_FALSE(fs::exists(run_path("run")));
  }

  void expect_bad_tokens(const std::string& content, const std::string& problem) {
    spill(tokens(), content);
    const Outcome outcome = train("run");
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::bad_data)) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, tokens().string()), 1) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(problem));
    EXPECT_FALSE(fs::exists(run_path("run")));
  }
};

TEST_F(Input, DeckProblemsArePrintedOnceAndTogether) {
  std::string text = slurp(deck());
  text.replace(text.find("warmup = 2"), 10, "warmpu = 2\nlr = 1e-3\nbeta1 = nan");
  text.replace(text.find("layers = 2"), 10, "layers = -1");
  text.replace(text.find("steps = 8"), 9, "steps = 12abc");
  spill(deck(), text);
  const std::string name = deck().string();
  expect_usage({}, {name + ":2: ", name + ":8: ", name + ":12: ", "warmup", name + ":13: ", name + ":14: "});
}

TEST_F(Input, RulesBetweenKeysAreCheckedBeforeAnythingIsAllocated) {
  expect_usage({"--model.heads=3"}, {"[model] heads = 3 must divide width = 32; use "});
  expect_usage({"--parallel.data=3"}, {"[parallel] data = 3 needs 3 ranks, but this run has 2"});
  expect_usage({"--train.global_batch=7"}, {"[train] global_batch = 7 must be a multiple of"});
  expect_usage({"--comm.algorithm=tree<10,rnig"}, {"--comm.algorithm: ", "'rnig' is not an algorithm"});
  expect_usage({"--comm.simulate_gbps=10"}, {"[comm] simulate_gbps delays messages, but algorithm = native"});
  expect_usage({"--data.train=" + (scratch() / "none.bin").string()}, {"none.bin does not exist"});
  expect_usage({"--data.train=" + (scratch() / "none*").string()}, {"none* matches no file"});
  expect_usage(
      {"--data.train=a.bin:x", "--data.valid=a.bin:1,b.bin:1"},
      {"--data.train: [data] train = a.bin:x: \"x\" is not a weight", "--data.valid: [data] valid = "});
}

TEST_F(Input, MissingDeckIsNamed) {
  const Outcome outcome = run_mylos({"train", (scratch() / "none.deck").string()});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_EQ(occurrences(outcome.output, "none.deck"), 1) << outcome.output;
}

TEST_F(Input, AFaultHookThatCannotStrikeIsRefused) {
  for (const char* fault : {"never:1:4:kill", "step:one:4:kill", "step:1:-4:kill", "step:1:4:explode",
                            "step:1:4", "checkpoint.write:1:4:nan"}) {
    SCOPED_TRACE(fault);
    const Outcome outcome = train("run", {}, {.environment = {std::string("MYLOS_FAULT=") + fault}});
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, fault), 1) << outcome.output;
  }
}

TEST_F(Input, TokensBeyondTheVocabularyAreFound) {
  constexpr std::size_t header = 1024;
  std::string content = slurp(tokens());
  content[header + 2 * 500 + 1] = '\x40';
  expect_bad_tokens(content, fmt::format("{}", header + 2 * 500));
}

TEST_F(Input, BadTokenFilesAreFound) {
  const std::string content = slurp(tokens());
  std::string bad_magic = content;
  bad_magic[0] ^= 1;
  expect_bad_tokens(bad_magic, "offset 0");
  std::string bad_version = content;
  bad_version[4] = 9;
  expect_bad_tokens(bad_version, "offset 4");
  expect_bad_tokens(content.substr(0, content.size() - 2), "offset 8");
  TokenFileWriter writer(scratch() / "short.bin");
  writer.append(std::vector<std::uint16_t>(16, 65));
  writer.finish();
  expect_bad_tokens(slurp(scratch() / "short.bin"), "16");
}

class Plugins : public RunTest {
 protected:
  Outcome train_with_plugins(const std::string& compute) {
    return train("run", {"--plugin-path=" + plugins().string(), "--backend.compute=" + compute});
  }
  fs::path plugins() const { return scratch() / "plugins"; }

  void expect_refused(const Outcome& outcome, const std::string& compute) {
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, fmt::format("no compute backend \"{}\"", compute)), 1)
        << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("paths tried: " + plugins().string()));
    EXPECT_THAT(outcome.output, HasSubstr("plugins found:"));
    EXPECT_THAT(outcome.output, HasSubstr(" kokkos"));
    EXPECT_FALSE(fs::exists(run_path("run")));
  }
};

TEST_F(Plugins, AMissingOneIsReportedWithThePluginsFound) {
  fs::create_directory(plugins());
  expect_refused(train_with_plugins("nonesuch"), "nonesuch");
}

TEST_F(Plugins, OfAnotherAbiVersionIsRefusedWithTheReason) {
  const fs::path plugin = MYLOS_WRONG_ABI_PLUGIN;
  if (!fs::exists(plugin)) GTEST_SKIP() << "a static build loads no plugins";
  fs::create_directory(plugins());
  fs::copy(plugin, plugins() / plugin.filename());
  const Outcome outcome = train_with_plugins("wrongabi");
  expect_refused(outcome, "wrongabi");
  EXPECT_THAT(outcome.output, HasSubstr(fmt::format(
                                  "libmylos_compute_wrongabi.so (built for plugin ABI {}, this mylos has {})",
                                  plugin_abi_version + 1, plugin_abi_version)));
}

TEST_F(Plugins, AFileThatIsNotALibraryIsRefusedWithTheReason) {
  fs::create_directory(plugins());
  spill(plugins() / "libmylos_compute_text.so", "no library");
  const Outcome outcome = train_with_plugins("text");
  expect_refused(outcome, "text");
  EXPECT_THAT(outcome.output, HasSubstr("libmylos_compute_text.so ("));
}

TEST_F(Plugins, ThatCannotBeLoadedDoNotDisturbOthers) {
  fs::create_directory(plugins());
  spill(plugins() / "libmylos_compute_text.so", "no library");
  EXPECT_EQ(train_with_plugins("kokkos").exit_code, 0);
}

/// Each rank runs in a separate user namespace, as if in its own container. The ranks then cannot open each
/// other's memory through /proc, which comm_shm needs.
class UserNamespaces : public RunTest {
 protected:
  // By default, UCX opens shared memory in the same way as comm_shm, so it is told to use System V shared
  // memory. It does not use tcp, because Debian's MPICH over tcp sometimes hangs in MPI_Finalize of short
  // jobs.
  const JobOptions namespaces_ = {.environment = {"UCX_TLS=sysv,self"}, .wrapper = {"unshare", "-Ur"}};

  std::string resolved_deck() const { return slurp(run_path("run") / "resolved.deck"); }
};

TEST_F(UserNamespaces, LetMpiCommunicateUnlessTheDeckSaysOtherwise) {
  EXPECT_EQ(train("run", {"--train.stop_step=2"}).exit_code, 0);
  EXPECT_THAT(resolved_deck(), HasSubstr("comm = shm"));
  const Outcome outcome = train("run", {"--restart"}, namespaces_);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "warning: [backend] comm is mpi, not shm: rank 0: cannot open"), 1)
      << outcome.output;
  EXPECT_THAT(resolved_deck(), HasSubstr("comm = mpi"));
}

TEST_F(UserNamespaces, CannotUseSharedMemoryThatTheDeckRequests) {
  const Outcome outcome = train("run", {"--backend.comm=shm"}, namespaces_);
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "--backend.comm: [backend] comm = shm cannot be used"), 1)
      << outcome.output;
  EXPECT_FALSE(fs::exists(run_path("run")));
}

}  // namespace
}  // namespace mylos::test
