// SPDX-License-Identifier: BSD-3-Clause
// What the commands say about a run, and whether its metrics add up.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/tokens/token_dataset.hpp"
#include "tests/faults/run_fixture.hpp"
#include "tests/io/stored_targets.hpp"

namespace mylos::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class Commands : public RunTest {
 protected:
  std::string valid() const { return "--data.valid=" + tokens().string(); }

  Outcome run_alone(const Words& words) const { return run_mylos(words, {.ranks = 1}); }
  /// The first line that `generate` writes.
  std::string generated(const std::string& run, const Words& more, int ranks = 1) const {
    Words words = {"generate", run_path(run).string(), "--prompt=the quick "};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_mylos(words, {.ranks = ranks});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output.substr(0, outcome.output.find('\n'));
  }
};

constexpr double tokens_per_step = 12 * 16;  // of the tiny deck

TEST_F(Commands, MetricsOfARunAddUp) {
  const Outcome outcome = train("run", {valid(), "--eval.every=3", "--eval.batches=2", "--checkpoint.every=5",
                                        "--optim.min_lr=1e-3", "--optim.schedule=linear"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  MetricsTable steps = steps_table("run");
  const std::size_t rows = steps["step"].size();
  ASSERT_EQ(rows, 8U);
  // The deck's model has 34208 parameters, and 2 layers of 32 channels see 16 positions.
  constexpr double flops_per_token = 6.0 * 34208 + 12.0 * 2 * 32 * 16;
  for (std::size_t i = 0; i < rows; ++i) {
    SCOPED_TRACE(i);
    const auto at = [&](const std::string& column) { return steps.at(column).at(i); };
    EXPECT_EQ(at("tokens"), tokens_per_step * static_cast<double>(i + 1));
    EXPECT_NEAR(at("tokens_per_second") * at("rank_time_max") / tokens_per_step, 1.0, 1e-9);
    // mfu is a fraction of the peak of 2 ranks.
    EXPECT_NEAR(at("mfu") / (at("tokens_per_second") * flops_per_token * 1e-12 / 2), 1.0, 1e-9);
    EXPECT_GT(at("hfu"), 0.0);
    EXPECT_NEAR(
        at("hfu") * at("rank_time_max") / (steps.at("hfu").front() * steps.at("rank_time_max").front()), 1.0,
        1e-9);
    for (const std::string of : {"rank_time", "memory_peak"}) {
      EXPECT_GT(at(of + "_min"), 0.0);
      EXPECT_LE(at(of + "_min"), at(of + "_median"));
      EXPECT_LE(at(of + "_median"), at(of + "_max"));
    }
    EXPECT_NEAR(at("time_step") - at("rank_time_max"), at("time_checkpoint") + at("time_evaluation"), 1e-9);
    const bool evaluates = i + 1 == 3 || i + 1 == 6 || i + 1 == 8;
    EXPECT_EQ(at("time_evaluation") > 0.0, evaluates);
    // A checkpoint is written after the row of its step: its time is in the next row.
    EXPECT_EQ(at("time_checkpoint") > 0.0, i == 5);
    double phases = 0.0;
    for (const char* phase : {"data", "forward", "backward", "communication", "optimizer"})
      phases = std::max(phases, at(std::string("time_") + phase));
    EXPECT_GT(phases, 0.0);
    EXPECT_LE(phases, at("rank_time_max"));
    EXPECT_GE(at("wait_data"), 0.0);
    EXPECT_LE(at("wait_data"), at("rank_time_max"));
    EXPECT_EQ(at("idle_time_max"), 0.0) << "there are no stages";
    double payload = 0.0;
    for (const auto& [column, values] : steps) {
      if (column.starts_with("payload_") && !std::isnan(values[i])) payload += values[i];
    }
    EXPECT_EQ(at("communication_bytes"), payload);
  }
  // Steps 2 and 4 reduce the same amount: the gradients and the guard's two numbers.
  EXPECT_EQ(steps["payload_data_all_reduce"][1], steps["payload_data_all_reduce"][3]);
  EXPECT_GT(steps["payload_data_all_reduce"][1], 4.0 * 34208);
  EXPECT_LT(steps["payload_data_all_reduce"][1], 8.0 * 34208);
  EXPECT_FLOAT_EQ(steps["learning_rate"].front(), 5e-3);
  EXPECT_FLOAT_EQ(steps["learning_rate"][1], 1e-2);
  EXPECT_FLOAT_EQ(steps["learning_rate"].back(), 1e-3);

  MetricsTable checkpoints = read_table("run", "checkpoints");
  EXPECT_THAT(checkpoints["step"], ElementsAre(5, 8));
  EXPECT_THAT(checkpoints["bytes"], Each(3 * 4 * 34208.0));

  MetricsTable evaluations = read_table("run", "eval");
  EXPECT_THAT(evaluations["step"], ElementsAre(3, 6, 8));
  EXPECT_THAT(evaluations["tokens"], Each(2 * tokens_per_step));
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(evaluations["perplexity"][i], std::exp(evaluations["loss"][i]), 1e-9);
  EXPECT_LT(evaluations["loss"][2], evaluations["loss"][0]);
}

TEST_F(Commands, EvalFindsWhatTrainingFound) {
  const Words words = {valid(), "--train.dtype=bf16", "--parallel.exchange=zero1", "--checkpoint.every=4"};
  ASSERT_EQ(train("run", words).exit_code, 0);
  MetricsTable found = read_table("run", "eval");
  ASSERT_EQ(found["step"].size(), 1U);
  const double loss = found["loss"][0];
  for (const int ranks : {1, 2}) {
    const Outcome outcome = run_mylos({"eval", run_path("run").string()}, {.ranks = ranks});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("step 8: loss "));
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("({:.0f} tokens of", found["tokens"][0])));
    const std::size_t at = outcome.output.find("loss ") + 5;
    EXPECT_NEAR(std::atof(outcome.output.c_str() + at), loss, 2e-3) << outcome.output;
  }
  const auto code_with = [&](double most) {
    return run_alone({"eval", run_path("run").string(), fmt::format("--max-loss={}", most)}).exit_code;
  };
  EXPECT_EQ(code_with(loss + 0.1), 0);
  EXPECT_EQ(code_with(loss - 0.1), static_cast<int>(ExitCode::numerical));
  EXPECT_THAT(run_alone({"eval", run_path("run").string(), "--step=4"}).output, HasSubstr("step 4: loss "));
}

/// The values of a line of `mylos eval`.
struct Evaluated {
  double loss = 0.0, accuracy = 0.0, bits = 0.0;
  std::int64_t tokens = 0;
};

Evaluated evaluated(const Outcome& outcome) {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  Evaluated seen;
  const std::size_t at = outcome.output.find("loss ");
  const std::string line = at == std::string::npos ? "" : outcome.output.substr(at);
  EXPECT_EQ(std::sscanf(line.c_str(),
                        "loss %lf nats per token, accuracy %lf %%, perplexity %*f, bits per byte %lf (%ld",
                        &seen.loss, &seen.accuracy, &seen.bits, &seen.tokens),
            4)
      << outcome.output;
  return seen;
}

TEST_F(Commands, EvalWithAStrideGivesEveryTokenALoss) {
  ASSERT_EQ(train("run", {valid()}).exit_code, 0);
  // Files that no window of 16 tokens fits into, and one whose end is a short window.
  Words names;
  std::vector<std::int32_t> expected;
  for (const std::string text : {"the quick brown fox jumps over the lazy dog", "again", "a", "and again."}) {
    names.push_back((scratch() / fmt::format("part{}.bin", names.size())).string());
    TokenFileWriter writer(names.back());
    writer.append(std::vector<std::uint16_t>(text.begin(), text.end()));
    writer.finish();
    expected.insert(expected.end(), text.begin() + 1, text.end());
  }
  const std::string data = "--data=" + (scratch() / "part*.bin").string();
  const auto run_eval = [&](const std::string& file, int ranks, const Words& more) {
    Words words = {"eval", run_path("run").string(), data, "--per-token=" + (scratch() / file).string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_mylos(words, {.ranks = ranks});
  };
  IoThread io;
  const Outcome outcome = run_eval("one.h5", 1, {"--stride=4"});
  EXPECT_THAT(outcome.output, HasSubstr("part2.bin with 1 tokens is shorter than a window of 2 tokens"));
  EXPECT_EQ(occurrences(outcome.output, "never read"), 1) << outcome.output;
  const Evaluated one = evaluated(outcome);
  const StoredTargets stored = read_targets(io, scratch() / "one.h5");
  EXPECT_EQ(stored.token, expected);
  EXPECT_THAT(stored.targets, ElementsAre(42, 4, 0, 9));
  EXPECT_EQ(stored.model, run_path("run").string());
  EXPECT_EQ(stored.step, 8);
  EXPECT_EQ(stored.context, 16);
  EXPECT_EQ(stored.stride, 4);
  EXPECT_EQ(one.tokens, std::ssize(expected));
  const auto count = static_cast<double>(expected.size());
  double loss = 0.0;
  double correct = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    loss += stored.loss[i];
    correct += stored.correct[i];
  }
  EXPECT_NEAR(one.loss, loss / count, 1e-4);
  EXPECT_NEAR(one.accuracy, 100.0 * correct / count, 0.01);
  EXPECT_NEAR(one.bits, loss / count / std::log(2.0), 1e-3);  // a byte per token

  const Evaluated two = evaluated(run_eval("two.h5", 2, {"--stride=4"}));
  EXPECT_EQ(two.loss, one.loss);
  EXPECT_EQ(slurp(scratch() / "two.h5"), slurp(scratch() / "one.h5"));
  EXPECT_EQ(evaluated(run_eval("stages.h5", 4, {"--stride=4", "--parallel.pipeline=2"})).loss, one.loss);
  EXPECT_EQ(slurp(scratch() / "stages.h5"), slurp(scratch() / "one.h5"));
  evaluated(run_eval("tensor.h5", 2, {"--stride=4", "--parallel.tensor=2"}));
  StoredTargets tensor = read_targets(io, scratch() / "tensor.h5");
  ASSERT_EQ(tensor.loss.size(), stored.loss.size());
  for (std::size_t i = 0; i < tensor.loss.size(); ++i) EXPECT_NEAR(tensor.loss[i], stored.loss[i], 1e-4) << i;
  tensor.loss = stored.loss;
  EXPECT_EQ(tensor, stored);

  // Without a stride, whole windows: two of the first file.
  EXPECT_EQ(evaluated(run_eval("whole.h5", 2, {})).tokens, 32);
  const StoredTargets whole = read_targets(io, scratch() / "whole.h5");
  EXPECT_THAT(whole.targets, ElementsAre(32, 0, 0, 0));
  EXPECT_EQ(whole.stride, 16);
  EXPECT_EQ(whole.token, std::vector<std::int32_t>(expected.begin(), expected.begin() + 32));
}

/// Before anything is computed, on every rank.
TEST_F(Commands, EvalSaysThatItCannotWriteItsFile) {
  ASSERT_EQ(train("run", {valid(), "--train.steps=2"}).exit_code, 0);
  for (const char* file : {"none/tokens.h5", "."}) {
    const std::string name = (scratch() / file).string();
    const Outcome outcome = run_mylos({"eval", run_path("run").string(), "--per-token=" + name});
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::io));
    EXPECT_THAT(outcome.output, HasSubstr("mylos: "));
    EXPECT_THAT(outcome.output, HasSubstr(scratch().string()));
    EXPECT_EQ(occurrences(outcome.output, "loss "), 0) << outcome.output;
    EXPECT_EQ(occurrences(outcome.output, "\n"), 1) << outcome.output;
  }
}

/// With <|endoftext|>, which has no bytes; with a sidecar of another tokenizer; and without any.
TEST_F(Commands, EvalKnowsTheBytesOfItsTokens) {
  ASSERT_EQ(train("run", {valid(), "--train.steps=2"}).exit_code, 0);
  ASSERT_EQ(train("unknown", {valid(), "--train.steps=2", "--data.tokenizer=none"}).exit_code, 0);
  const std::string name = (scratch() / "ends.bin").string();
  std::vector<std::uint16_t> tokens(33, 'a');
  for (std::size_t i = 1; i < tokens.size(); i += 2) tokens[i] = 256;
  TokenFileWriter writer(name);
  writer.append(tokens);
  writer.finish();
  const auto eval = [&](const std::string& run) {
    return run_alone({"eval", run_path(run).string(), "--data=" + name});
  };
  const Evaluated seen = evaluated(eval("run"));
  EXPECT_NEAR(seen.bits, 2 * seen.loss / std::log(2.0), 2e-3);
  EXPECT_THAT(eval("unknown").output, testing::Not(HasSubstr("bits per byte")));
  write_sidecar(name, {.tokenizer = {.name = "bytes", .ranks = ""},
                       .vocab = 257,
                       .tokens = 33,
                       .content = std::string(32, '0'),
                       .documents = 16});
  EXPECT_EQ(evaluated(eval("unknown")).tokens, 32);
}

/// On two ranks (the extent of its tensor axis), on one, and on three (not a multiple of that extent).
TEST_F(Commands, EvalAndGenerateOfATensorParallelRunTakeAnyNumberOfRanks) {
  const Words words = {valid(),
                       "--parallel.exchange=zero3",
                       "--parallel.tensor=2",
                       "--parallel.vocab=true",
                       "--parallel.sequence=true",
                       "--checkpoint.every=0"};
  ASSERT_EQ(train("run", words).exit_code, 0);
  const double loss = read_table("run", "eval")["loss"].at(0);
  std::set<std::string> texts;
  for (const int ranks : {1, 2, 3}) {
    const auto code_with = [&](double most) {
      return run_mylos({"eval", run_path("run").string(), fmt::format("--max-loss={}", most)},
                       {.ranks = ranks})
          .exit_code;
    };
    EXPECT_EQ(code_with(loss + 1e-5), 0) << ranks;
    EXPECT_NE(code_with(loss - 1e-5), 0) << ranks;
    texts.insert(generated("run", {"--temperature=0", "--tokens=20"}, ranks));
  }
  EXPECT_EQ(texts.size(), 1U);
}

TEST_F(Commands, GenerateContinuesTheTextThatTheModelHasLearnt) {
  const Outcome outcome = train("run", {"--train.steps=250", "--checkpoint.every=0"}, {.ranks = 1});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::string likely = generated("run", {"--temperature=0", "--tokens=40"});
  EXPECT_EQ(likely.size(), 10U + 40U);
  EXPECT_THAT(likely, HasSubstr("the quick brown fox"));
  EXPECT_EQ(generated("run", {"--temperature=0", "--tokens=40"}, 2), likely);
  EXPECT_EQ(generated("run", {"--temperature=2", "--top-k=1", "--tokens=40"}), likely);
  EXPECT_EQ(generated("run", {"--temperature=0.001", "--tokens=40"}), likely) << "next to nothing is random";
  EXPECT_EQ(generated("run", {"--tokens=0"}), "the quick ");
  // Each token is drawn independently from two equally likely tokens.
  const std::string one = generated("run", {"--temperature=1e9", "--top-k=2", "--tokens=40", "--seed=5"});
  const std::string other = generated("run", {"--temperature=1e9", "--top-k=2", "--tokens=40", "--seed=6"});
  EXPECT_NE(one, likely);
  EXPECT_NE(other, likely);
  EXPECT_NE(one, other);
}

TEST_F(Commands, TokenizeHoldsBackTheEndOfTheText) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i % 26);
  spill(scratch() / "text", text);
  const std::string train_file = scratch() / "train_part.bin";
  const std::string valid_file = scratch() / "valid_part.bin";
  const Outcome outcome =
      run_alone({"tokenize", (scratch() / "text").string(), "--tokenizer=bytes", "--output=" + train_file,
                 "--valid-output=" + valid_file, "--valid-fraction=0.25"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto tokens_of = [](const std::string& file) {
    const TokenFile opened(file);
    std::vector<std::uint16_t> tokens(static_cast<std::size_t>(opened.size()));
    opened.read(0, tokens);
    return tokens;
  };
  const std::vector<std::uint16_t> train_tokens = tokens_of(train_file);
  const std::vector<std::uint16_t> valid_tokens = tokens_of(valid_file);
  ASSERT_EQ(train_tokens.size(), 751U);
  ASSERT_EQ(valid_tokens.size(), 251U);
  EXPECT_EQ(train_tokens.back(), 256);  // end of text
  EXPECT_EQ(valid_tokens.back(), 256);
  for (std::size_t i = 0; i < 750; ++i) ASSERT_EQ(train_tokens[i], 'a' + i % 26);
  for (std::size_t i = 0; i < 250; ++i) ASSERT_EQ(valid_tokens[i], 'a' + (750 + i) % 26);
}

TEST_F(Commands, InspectShowsTheMessagesOfAStage) {
  const Outcome outcome = run_alone({"inspect", deck().string(), "--program", "--rank=1",
                                     "--parallel.pipeline=3", "--train.micro_batch=6"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* text :
       {"step: receive activations of micro-batch 0 from stage 0, forward 0 of chunk 1, ",
        "\nreceive activations of micro-batches 0, 1 from stage 0: 1 operations, 0.000 GFLOP, 0.000 GB\n"
        "    0 recv (12288 bytes over pipeline): ",
        "\nsend activations of micro-batches 0, 1 to stage 2: 1 operations",
        "\nreceive gradients of micro-batch", "\nsend gradients of micro-batch",
        "\nevaluate, send activations of micro-batch 0 to stage 2: 1 operations"})
    EXPECT_THAT(outcome.output, HasSubstr(text));
}

/// A list that is written can be followed; nothing is written over what is read.
TEST_F(Commands, DryRunWritesTheSchedule) {
  const std::string list = (scratch() / "list.csv").string();
  const Words dry = {"train",
                     deck().string(),
                     "--dry-run",
                     "--parallel.pipeline=2",
                     "--train.micro_batch=6",
                     "--write-schedule=" + list};
  const auto run_with = [&](const Words& more) {
    Words words = dry;
    words.insert(words.end(), more.begin(), more.end());
    return run_alone(words);
  };
  EXPECT_EQ(run_with({}).exit_code, 0);
  EXPECT_EQ(slurp(list), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  const Outcome again = run_with({"--parallel.schedule=file", "--parallel.schedule_file=" + list});
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.output, HasSubstr("list.csv is one of the inputs; name another file"));
  const Outcome followed =
      run_alone({"train", deck().string(), "--dry-run", "--parallel.pipeline=2", "--train.micro_batch=6",
                 "--parallel.schedule=file", "--parallel.schedule_file=" + list, "--schedule"});
  EXPECT_EQ(followed.exit_code, 0) << followed.output;
  EXPECT_THAT(followed.output, HasSubstr("schedule     file: 2 stages, 2 micro-batches per step"));
  const Outcome trained = run_alone({"train", deck().string(), "--schedule"});
  EXPECT_EQ(trained.exit_code, 2);
  EXPECT_THAT(trained.output, HasSubstr("--schedule, --pass-times and --write-schedule are for --dry-run"));
}

TEST_F(Commands, InspectShowsTheProgramOfARank) {
  const Outcome outcome =
      run_alone({"inspect", deck().string(), "--program", "--ranks=2", "--parallel.tensor=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("rank 0 of 2: 12 x 16 tokens per micro-batch"));
  const Outcome other =
      run_alone({"inspect", deck().string(), "--program", "--ranks=2", "--parallel.tensor=2", "--rank=1"});
  EXPECT_THAT(other.output, HasSubstr("rank 1 of 2: 12 x 16 tokens per micro-batch"));
  EXPECT_THAT(outcome.output, HasSubstr("\nstep: forward 0, backward 0, reduce, step\n"));
  EXPECT_THAT(outcome.output, HasSubstr("all_reduce (24576 bytes over tensor): "));
  // The layer for queries, keys and values of one of two heads: 192 rows of 32 channels times a (32, 48)
  // matrix.
  EXPECT_THAT(outcome.output,
              testing::ContainsRegex("\n +[0-9]+ linear_forward \\([a-z]+\\): 0.000590 GFLOP, [0-9.]+ GB, "
                                     "core/model/transformer_block.cpp:[0-9]+\n"
                                     " +reads +x +fp32 \\(192, 32\\), h.0.ln1\n"
                                     " +reads +w +fp32 \\(32, 48\\), weights of block 0"));
  // The sum printed for a program is the sum over its operations.
  std::map<std::string, std::pair<double, double>> sums;  // as printed and as added up
  std::string program;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find(" GFLOP, ");
    if (at == std::string::npos) continue;
    const double flops = std::atof(line.c_str() + line.rfind(' ', at - 1));
    if (line.find(" operations, ") != std::string::npos) {
      program = line.substr(0, line.find(':'));
      sums[program].first = flops;
    } else {
      sums[program].second += flops;
    }
  }
  EXPECT_EQ(sums.size(), 6U);
  for (const auto& [name, sum] : sums) {
    EXPECT_TRUE(sum.first > 0.0 || name == "reduce" || name == "step" || name == "publish") << name;
    EXPECT_NEAR(sum.first, sum.second, 1e-3) << name;
  }
}

TEST_F(Commands, InspectShowsARun) {
  ASSERT_EQ(train("run").exit_code, 0);
  const Outcome outcome = run_alone({"inspect", run_path("run").string()});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  std::uintmax_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(checkpoint_path("run", 8))) bytes += entry.file_size();
  EXPECT_THAT(outcome.output, HasSubstr(fmt::format("  {:<30} {:>10.1f} MB\n", "step_000008",
                                                    static_cast<double>(bytes) * 1e-6)));
  EXPECT_THAT(outcome.output, HasSubstr("/steps: 8 rows"));
  EXPECT_THAT(outcome.output, HasSubstr("/checkpoints: 4 rows"));
}

TEST_F(Commands, InspectPrintsATableOfMetrics) {
  ASSERT_EQ(train("run").exit_code, 0);
  for (const fs::path& path : {run_path("run"), run_path("run") / "metrics.h5"}) {
    const Outcome outcome = run_alone({"inspect", path.string(), "--csv=steps"});
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.output, csv_of(steps_table("run")));
    EXPECT_THAT(outcome.output, testing::StartsWith("step,"));
  }
  const auto expect_refused = [&](const Words& words, ExitCode code, const char* message) {
    const Outcome outcome = run_alone(words);
    EXPECT_EQ(outcome.exit_code, static_cast<int>(code));
    EXPECT_THAT(outcome.output, HasSubstr(message));
  };
  const std::string run = run_path("run").string();
  expect_refused({"inspect", run, "--csv=step"}, ExitCode::usage,
                 "no such table; it has checkpoints, launches, steps");
  expect_refused({"inspect", run, "--csv=steps", "--verify"}, ExitCode::usage, "choose one");
  expect_refused({"inspect", scratch().string(), "--csv=steps"}, ExitCode::bad_data, "no metrics file");
}

/// Each replacement of metrics.h5 fails once. A new table replaces the file too; the last replacement comes
/// at the very end of the run.
TEST_F(Commands, NoErrorOfMetricsIsLost) {
  int n = 1;
  for (;; ++n) {
    SCOPED_TRACE(n);
    fs::remove_all(run_path("run"));
    const std::string plan =
        fmt::format("{}:0:rename:{}:{}", (run_path("run") / "metrics.h5").string(), n, EIO);
    const Outcome outcome =
        train("run", {"--train.steps=2", "--checkpoint.every=0"},
              {.ranks = 1, .environment = {"LD_PRELOAD=" MYLOS_PRELOADED, "MYLOS_FAIL=" + plan}});
    if (outcome.output.find("failing call: ") == std::string::npos) {
      EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
      break;
    }
    EXPECT_NE(outcome.exit_code, 0) << outcome.output;
    expect_status("run", "failed", ExitCode::io);
  }
  EXPECT_GT(n, 4) << "the file itself, launches, steps, checkpoints";
}

/// The limit holds for the plan too, which asks oneDNN for the memory of products. Kernels that were compiled
/// for more than the limit are refused.
TEST_F(Commands, TheLimitOfInstructionsHolds) {
  const Outcome outcome = train("run", {"--train.steps=2"}, {.ranks = 1, .environment = {"MYLOS_CPU=avx2"}});
  if (outcome.exit_code != 0) {
    const fs::path plugins = fs::path(std::getenv("MYLOS_BUILD")) / "lib" / "mylos";
    EXPECT_FALSE(fs::exists(plugins / "avx2" / "libmylos_compute_kokkos.so")) << "a build without variants";
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("its kernels were compiled for avx512"));
    EXPECT_THAT(outcome.output, HasSubstr("but only avx2 may be used here"));
    return;
  }
  EXPECT_THAT(outcome.output, HasSubstr("vectors of 8 floats"));
  if (outcome.output.find("oneDNN") == std::string::npos) GTEST_SKIP() << "a build without oneDNN";
  EXPECT_THAT(outcome.output, HasSubstr(" with AVX2, own GEMM"));
}

TEST_F(Commands, ADryRunNeedsNodesOfEqualSize) {
  const auto plan = [&](const char* ranks_per_node) {
    return run_alone({"train", deck().string(), "--dry-run", "--ranks=4",
                      fmt::format("--ranks-per-node={}", ranks_per_node)});
  };
  const Outcome two = plan("2");
  EXPECT_EQ(two.exit_code, 0) << two.output;
  EXPECT_THAT(two.output, HasSubstr("layout       ranks 4: data 4, exchange ddp"));
  for (const char* bad : {"3", "0", "-2", "8"}) {
    const Outcome outcome = plan(bad);
    EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::usage)) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("--ranks-per-node={} must divide --ranks=4", bad)));
  }
}

/// A stop request does not wait for an evaluation. Each restart from the checkpoint runs the evaluation.
TEST_F(Commands, AnEvaluationPutOffByAStopFollowsAfterTheRestart) {
  const Outcome outcome = train("run", {valid(), "--eval.every=1", "--train.wall_clock=0.001"});
  EXPECT_EQ(outcome.exit_code, static_cast<int>(ExitCode::preempted)) << outcome.output;
  EXPECT_THAT(checkpoint_steps("run"), ElementsAre(1));
  for (const char* last : {"--train.stop_step=1", "--train.stop_step=3"}) {
    const Outcome rest = train("run", {valid(), "--eval.every=1", "--restart", last});
    EXPECT_EQ(rest.exit_code, 0) << rest.output;
    EXPECT_EQ(occurrences(rest.output, "step 1: validation loss "), 1) << rest.output;
  }
  EXPECT_THAT(read_table("run", "eval")["step"], ElementsAre(1, 2, 3));
}

using RestartRules = Commands;

TEST_F(RestartRules, AFinishedRunIsNotSavedAgain) {
  ASSERT_EQ(train("run").exit_code, 0);
  const Outcome again = train("run", {"--restart"});
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_EQ(occurrences(again.output, ": wrote "), 0) << again.output;
  EXPECT_THAT(read_table("run", "checkpoints")["step"], ElementsAre(2, 4, 6, 8));
}

TEST_F(RestartRules, FromAnEarlierStepTruncatesTheTables) {
  const Words words = {"--checkpoint.keep=9", valid(), "--eval.every=2"};
  Words restart = words;
  restart.emplace_back("--restart=step_4");
  ASSERT_EQ(train("run", words).exit_code, 0);
  const Outcome outcome = train("run", restart);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("checkpoints of later steps, 6 8 ("));
  EXPECT_THAT(read_table("run", "checkpoints")["step"], ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(read_table("run", "eval")["step"], ElementsAre(2, 4, 6, 8));
  EXPECT_THAT(read_table("run", "launches")["step"], ElementsAre(0, 4));
  expect_every_step_once("run", 8);
}

/// Automatic choices may differ from one launch to the next.
TEST_F(RestartRules, KeepsTheBackendsAndThreadsOfTheRun) {
  const Outcome first = train("run", {"--train.stop_step=4", "--backend.compute=kokkos", "--backend.comm=mpi",
                                      "--backend.threads=3", "--comm.algorithm=ring"});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  const Outcome rest = train("run", {"--restart", "--backend.threads=0", "--comm.algorithm=auto"});
  EXPECT_EQ(rest.exit_code, 0) << rest.output;
  EXPECT_THAT(rest.output, HasSubstr("comm mpi by ring, compute kokkos: "));
  EXPECT_THAT(rest.output, HasSubstr("3 threads per rank"));
  EXPECT_THAT(rest.output, HasSubstr(", bitwise"));
}

/// A second run is refused even if it finds the checkpoints through a link that it did not make.
TEST_F(RestartRules, LinkedCheckpointsBelongToOneRunOnly) {
  const fs::path place = scratch() / "elsewhere";
  ASSERT_EQ(train("first", {"--checkpoint.dir=" + place.string(), "--train.stop_step=2"}).exit_code, 0);
  fs::create_directory(run_path("second"));
  fs::create_directory_symlink(place, run_path("second") / "checkpoints");
  Job first(train_arguments("first", {"--restart", "--train.steps=1000000", "--checkpoint.every=0"}));
  first.wait_until([&] { return num_rows("first") > 2; });
  const Outcome second = train("second", {"--restart"});
  EXPECT_EQ(second.exit_code, static_cast<int>(ExitCode::usage)) << second.output;
  EXPECT_EQ(occurrences(second.output, fmt::format("is in use by process {} on ", first.rank(0))), 1)
      << second.output;
}

TEST_F(RestartRules, WithOtherRanksAndAnotherSeedSaySo) {
  ASSERT_EQ(train("run", {"--train.stop_step=4"}).exit_code, 0);
  const Outcome outcome =
      train("run", {"--restart", "--train.seed=9", "--machine.peak_tflops=3"}, {.ranks = 1});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("the samples of this run will not continue those of the checkpoint"));
  EXPECT_THAT(outcome.output, HasSubstr("train.seed 1 -> 9"));
  MetricsTable launches = read_table("run", "launches");
  EXPECT_THAT(launches["step"], ElementsAre(0, 4));
  EXPECT_THAT(launches["ranks"], ElementsAre(2, 1));
  EXPECT_THAT(launches["threads"], ElementsAre(1, 1));
  EXPECT_THAT(launches["peak_tflops"], ElementsAre(1, 3));
  EXPECT_EQ(launches["time_restore"][0], 0.0);
  EXPECT_GT(launches["time_restore"][1], 0.0);
  const std::string report = slurp(run_path("run") / "report.html");
  for (const char* fact : {">ranks</th><td>1<", "3 TFLOP/s per rank", ">done<"})
    EXPECT_NE(report.find(fact), std::string::npos) << fact;
}

TEST_F(RestartRules, InAnotherTypeUsesTheLossScaleOfThatType) {
  ASSERT_EQ(train("run", {"--train.dtype=bf16", "--train.stop_step=4"}).exit_code, 0);
  const Outcome outcome = train("run", {"--restart", "--train.dtype=fp16", "--train.loss_scale=1024"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(steps_table("run")["loss_scale"], ElementsAre(1, 1, 1, 1, 1024, 1024, 1024, 1024));
}

}  // namespace
}  // namespace mylos::test
