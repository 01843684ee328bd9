// SPDX-License-Identifier: BSD-3-Clause
// What launchers and Slurm say of a process by their variables: wrong launches are refused before any file is
// touched. MPI itself is told nothing here, as by a launcher that it does not know.
#include <ctime>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"

namespace mylos::test {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class Launch : public RunTest {
 protected:
  static constexpr int usage = static_cast<int>(ExitCode::usage);

  /// A command that hides MPI's launcher from mylos and gives its rank to it as `rank` and the number of
  /// ranks as `size`.
  static Words foreign(const std::string& size, const std::string& rank) {
    const std::string script =
        "export " + rank + "=$PMI_RANK " + size + "=$PMI_SIZE; " + hide + R"(; exec "$@")";
    return {"sh", "-c", script, "sh"};
  }
  static constexpr const char* hide = "unset PMI_RANK PMI_SIZE PMI_FD PMI_PORT";

  Outcome as_several(const Words& arguments, const std::string& size, const std::string& rank) const {
    return run_mylos(arguments, {.ranks = 2, .wrapper = foreign(size, rank)});
  }
  Outcome as_several(const Words& arguments) const {
    return as_several(arguments, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID");
  }
  /// One process without a launcher and with these variables of Slurm.
  Outcome in_slurm(const Words& arguments, const Words& variables) const {
    Words wrapper = {"sh", "-c", std::string(hide) + R"(; exec env "$@")", "sh"};
    wrapper.insert(wrapper.end(), variables.begin(), variables.end());
    return run_mylos(arguments, {.ranks = 1, .wrapper = wrapper});
  }
};

TEST_F(Launch, ByAnotherLauncherIsRefusedOnce) {
  for (const auto& [size, rank] : {std::pair("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
                                   {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"},
                                   {"FLUX_JOB_SIZE", "FLUX_TASK_RANK"},
                                   {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}}) {
    const Outcome outcome = as_several(train_arguments("run"), size, rank);
    EXPECT_EQ(outcome.exit_code, usage) << outcome.output;
    EXPECT_THAT(
        outcome.output,
        AllOf(HasSubstr(fmt::format("mylos: the launcher started 2 processes ({}=2), but MPI (", size)),
              HasSubstr(") has 1 rank: start mylos with "), HasSubstr("--alone")));
    EXPECT_EQ(occurrences(outcome.output, "mylos:"), 1) << outcome.output;
    EXPECT_FALSE(fs::exists(run_path("run")));
  }
}

TEST_F(Launch, OfEachByItselfCanBeMeant) {
  ASSERT_EQ(train("one", {}, {.ranks = 1}).exit_code, 0);
  Words wrapper = foreign("SLURM_STEP_NUM_TASKS", "SLURM_PROCID");
  wrapper[2] = wrapper[2].substr(0, wrapper[2].find("exec")) + R"(exec "$@" --alone --run.dir=)" +
               run_path("run").string() + "$SLURM_PROCID";
  const Outcome outcome =
      run_mylos({"train", deck().string(), "--progress=plain"}, {.ranks = 2, .wrapper = wrapper});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* run : {"run0", "run1"}) expect_same_run(run, "one", 8);
}

/// With --alone, MPI's own launcher is ignored as well, also by the messages of later processes.
TEST_F(Launch, AloneIgnoresMpisLauncherToo) {
  const Words wrapper = {"sh", "-c",
                         R"(exec "$@" --alone --run.dir=)" + run_path("run").string() + "$PMI_RANK", "sh"};
  const Outcome outcome =
      run_mylos({"train", deck().string(), "--progress=plain"}, {.ranks = 2, .wrapper = wrapper});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(occurrences(outcome.output, "1 rank on 1 node"), 2) << outcome.output;
  const Outcome again =
      run_mylos({"train", deck().string(), "--progress=plain"}, {.ranks = 2, .wrapper = wrapper});
  EXPECT_EQ(again.exit_code, usage);
  EXPECT_EQ(occurrences(again.output, "already holds a run"), 2) << again.output;
}

TEST_F(Launch, OfOneProcessInABatchScriptForSeveralIsAWarning) {
  const Words batch = {"SLURM_JOB_ID=17", "SLURM_NTASKS=4", "SLURM_PROCID=0"};
  const Outcome outcome = in_slurm(train_arguments("run"), batch);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  constexpr const char* warning = "warning: this is one process, but Slurm job 17 has 4 tasks";
  EXPECT_THAT(outcome.output, HasSubstr(warning));
  const Outcome meant = in_slurm(train_arguments("meant", {"--alone"}), batch);
  EXPECT_EQ(meant.exit_code, 0) << meant.output;
  EXPECT_THAT(meant.output, Not(HasSubstr("warning: this is one")));
  const Outcome nodes = in_slurm(train_arguments("nodes"), {"SLURM_JOB_ID=17", "SLURM_JOB_NUM_NODES=2"});
  EXPECT_THAT(nodes.output, HasSubstr("warning: this is one process, but Slurm job 17 has 2 nodes"));
  const Outcome one = in_slurm(train_arguments("one"), {"SLURM_JOB_ID=17", "SLURM_NTASKS=1"});
  EXPECT_THAT(one.output, Not(HasSubstr("warning: this is one")));
}

TEST_F(Launch, OfSeveralIsRefusedByCommandsOfOneProcess) {
  const std::string text = (scratch() / "text.txt").string();
  const std::string output = (scratch() / "text.bin").string();
  spill(text, "some text\n");
  ASSERT_EQ(train("run", {}, {.ranks = 1}).exit_code, 0);
  fs::remove(run_path("run") / "report.html");
  for (const Words& arguments :
       {Words{"tokenize", text, "--output", output}, {"report", run_path("run").string()}}) {
    for (const Outcome& outcome : {as_several(arguments), run_mylos(arguments, {.ranks = 2})}) {
      EXPECT_EQ(outcome.exit_code, usage) << outcome.output;
      EXPECT_THAT(outcome.output, ContainsRegex("mylos: " + arguments[0] +
                                                " is for one process, but the launcher started 2"));
      EXPECT_EQ(occurrences(outcome.output, "mylos:"), 1) << outcome.output;
    }
  }
  EXPECT_FALSE(fs::exists(output));
  EXPECT_FALSE(fs::exists(run_path("run") / "report.html"));
  const Outcome meant = run_mylos({"tokenize", text, "--output", output, "--alone"}, {.ranks = 1});
  EXPECT_EQ(meant.exit_code, 0) << meant.output;
}

TEST_F(Launch, OfSeveralPrintsOnce) {
  ASSERT_EQ(train("run", {}, {.ranks = 1}).exit_code, 0);
  Words dry = train_arguments("dry");
  dry.emplace_back("--dry-run");
  const std::pair<Words, const char*> cases[] = {{{"help"}, "mylos train "},
                                                 {{"train", "--help"}, "mylos train DECK"},
                                                 {{"--version"}, "compiler"},
                                                 {{"inspect", run_path("run").string()}, "parameters"},
                                                 {dry, "\nparameters "}};
  for (const auto& [arguments, word] : cases) {
    for (const Outcome& outcome : {as_several(arguments), run_mylos(arguments, {.ranks = 2})}) {
      EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
      EXPECT_EQ(occurrences(outcome.output, word), 1) << outcome.output;
    }
  }
}

/// A job that was submitted from a step of another job has that step's variables.
TEST_F(Launch, IsNotThatOfAnOuterStep) {
  const Words outer = {"SLURM_JOB_ID=17", "SLURM_NTASKS=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=0"};
  const Outcome outcome = in_slurm(train_arguments("run"), outer);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, Not(HasSubstr("warning: this is one")));
  for (const Words& stale :
       {Words{"SLURM_PROCID=3"}, {"PMIX_RANK=1"}, {"SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=-1"}}) {
    EXPECT_EQ(occurrences(in_slurm({"version"}, stale).output, "compiler"), 1);
    EXPECT_EQ(occurrences(in_slurm({"nonsense"}, stale).output, "unknown command"), 1);
  }
}

TEST_F(Launch, InSlurmIsNamed) {
  const Words variables = {"SLURM_JOB_ID=17", "SLURM_RESTART_COUNT=1", "SLURM_NTASKS=1",
                           fmt::format("SLURM_JOB_END_TIME={}", std::time(nullptr) + 100'000)};
  const Outcome outcome = in_slurm(train_arguments("run"), variables);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, ContainsRegex("1 rank on 1 node \\([^)]+\\), Slurm job 17, restart 1, ends in "
                                            "27:4[0-9]:[0-9][0-9]\n"));
  EXPECT_THAT(slurp(run_path("run") / "status.json"), HasSubstr("\"slurm_job\": \"17\""));
  EXPECT_THAT(slurp(run_path("run") / "lock"), ContainsRegex("^process [0-9]+ on [^,]+, Slurm job 17\n"));
  // A task of an array, or a job that one has submitted: its own number counts.
  const Outcome inner = in_slurm(train_arguments("inner"),
                                 {"SLURM_JOB_ID=19", "SLURM_ARRAY_JOB_ID=17", "SLURM_ARRAY_TASK_ID=2"});
  EXPECT_THAT(inner.output, AllOf(HasSubstr(", Slurm job 19\n"), Not(HasSubstr("ends in"))));
}

TEST_F(Launch, UsesTheThreadsThatSlurmAllots) {
  const auto threads = [&](const Words& variables) {
    fs::remove_all(run_path("run"));
    Words words = {"-u", "OMP_NUM_THREADS"};
    words.insert(words.end(), variables.begin(), variables.end());
    return in_slurm(train_arguments("run", {"--backend.threads=0"}), words).output;
  };
  EXPECT_THAT(threads({"SLURM_CPUS_PER_TASK=1"}), HasSubstr("1 thread per rank (SLURM_CPUS_PER_TASK=1, "));
  EXPECT_THAT(threads({"SLURM_CPUS_ON_NODE=1"}), HasSubstr("1 thread per rank (SLURM_CPUS_ON_NODE=1, "));
  EXPECT_THAT(threads({"SLURM_CPUS_ON_NODE=3", "SLURM_STEP_TASKS_PER_NODE=2(x2),1", "SLURM_NODEID=1"}),
              HasSubstr("1 thread per rank (SLURM_CPUS_ON_NODE=3 for 2 ranks, "));
  EXPECT_THAT(threads({"SLURM_CPUS_PER_TASK=4096"}), Not(HasSubstr("SLURM")));
  // mpiexec has started more processes than Slurm knows of.
  EXPECT_THAT(threads({"SLURM_CPUS_PER_TASK=4", "SLURM_CPUS_ON_NODE=2", "SLURM_STEP_TASKS_PER_NODE=2"}),
              HasSubstr("1 thread per rank (SLURM_CPUS_ON_NODE=2 for 2 ranks, "));
  ASSERT_EQ(train("restarted", {"--backend.threads=2", "--train.stop_step=2"}, {.ranks = 1}).exit_code, 0);
  const Words restart = {"--restart", "--backend.threads=0", "--train.stop_step=3"};
  const Outcome smaller =
      in_slurm(train_arguments("restarted", restart), {"-u", "OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK=1"});
  EXPECT_THAT(smaller.output, HasSubstr("1 thread per rank (SLURM_CPUS_PER_TASK=1, "));
}

TEST_F(Launch, WithAnEndInThePast) {
  const Outcome named = train("named", {"--train.end_time=1000"});
  EXPECT_EQ(named.exit_code, usage) << named.output;
  EXPECT_THAT(named.output, ContainsRegex("mylos: \\[train\\] end_time = 1000, which was [0-9]+ s ago"));
  EXPECT_FALSE(fs::exists(run_path("named")));
  EXPECT_EQ(train("named", {"--train.end_time=1000", "--dry-run"}, {.ranks = 1}).exit_code, usage);
  for (const char* value : {"soon", "-1", "1.5", ""}) {
    const Outcome wrong = train("wrong", {fmt::format("--train.end_time={}", value)});
    EXPECT_EQ(wrong.exit_code, usage) << wrong.output;
    EXPECT_THAT(wrong.output, HasSubstr("must be auto, none or a time in Unix seconds"));
  }
  const Outcome extended = in_slurm(train_arguments("run"), {"SLURM_JOB_END_TIME=1000"});
  EXPECT_EQ(extended.exit_code, 0) << extended.output;
  EXPECT_THAT(extended.output, HasSubstr("mylos: SLURM_JOB_END_TIME=1000, which was "));
}

}  // namespace
}  // namespace mylos::test
