// SPDX-License-Identifier: BSD-3-Clause
#include "tests/faults/run_fixture.hpp"

#include <bit>

#include <nlohmann/json.hpp>

#include "io/tokens/token_dataset.hpp"
#include "tests/faults/driven_clock.hpp"
#include "tests/support/parts_of_range.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {

namespace {

// The heartbeat limit is long, because a busy machine may hold a rank up for seconds; tests of silent ranks
// shorten it.
constexpr const char* tiny_deck = R"([model]
layers = 2
heads = 2
width = 32
context = 16
vocab = 257
[train]
steps = 8
global_batch = 12
[optim]
lr = 1e-2
warmup = 2
[data]
train = {}
tokenizer = bytes
[checkpoint]
every = 2
[comm]
heartbeat = 60
[backend]
threads = 1
[machine]
peak_tflops = 1
[run]
dir = {}
)";

bool is_time(const std::string& column) {
  return column.find("time") != std::string::npos || column.starts_with("wait_") ||
         column == "tokens_per_second" || column == "mfu" || column == "hfu";
}

nlohmann::json read_json(const fs::path& file) {
  return nlohmann::json::parse(slurp(file), nullptr, false);
}

}  // namespace

RunTest::RunTest() {
  spill(deck(), fmt::format(tiny_deck, tokens().string(), run_path("run").string()));
  // A text that a small model learns within a few hundred steps.
  const std::string sentence = "the quick brown fox jumps over the lazy dog, again and again and again. ";
  TokenFileWriter writer(tokens());
  for (int i = 0; i < 100; ++i) {
    std::vector<std::uint16_t> bytes(sentence.begin(), sentence.end());
    bytes.push_back(static_cast<std::uint16_t>('0' + i % 10));
    writer.append(bytes);
  }
  writer.finish();
}

fs::path RunTest::checkpoint_path(const std::string& run, std::int64_t step) const {
  return run_path(run) / "checkpoints" / fmt::format("step_{:06}", step);
}

RunTest::Words RunTest::train_arguments(const std::string& run, const Words& more) const {
  Words words = {"train", deck().string(), "--progress=plain", "--run.dir=" + run_path(run).string()};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Outcome RunTest::train(const std::string& run, const Words& more, const JobOptions& options) const {
  return run_mylos(train_arguments(run, more), options);
}

Outcome RunTest::run_on_clock(const Words& arguments, JobOptions options,
                              const std::function<bool(const Job&)>& is_due) const {
  DrivenClock clock(scratch() / "clock");
  options.environment.push_back(clock.variable());
  Job job(arguments, options);
  job.wait_until([&] { return is_due(job); });
  seconds_until_end(job, clock);
  Outcome outcome = job.wait();
  EXPECT_TRUE(wait_until([&] { return job.processes().empty(); })) << "ranks were left behind";
  return outcome;
}

Outcome RunTest::run_until_silent(Words arguments, int rank, const std::string& fault,
                                  JobOptions options) const {
  for (const char* limit : {"--comm.heartbeat=8", "--comm.timeout=1e6", "--io.timeout=1e6"})
    arguments.emplace_back(limit);
  options.environment.push_back("MYLOS_FAULT=" + fault);
  return run_on_clock(arguments, std::move(options),
                      [&](const Job& job) { return is_stopped(job.rank(rank)); });
}

Outcome RunTest::train_with_fault(const std::string& run, const std::string& fault, const Words& more) const {
  Job job(train_arguments(run, more), {.environment = {"MYLOS_FAULT=" + fault}});
  Outcome outcome = job.wait();
  EXPECT_TRUE(wait_until([&] { return job.processes().empty(); })) << fault << " left ranks behind";
  EXPECT_EQ(occurrences(outcome.output, "MYLOS_FAULT=" + fault + " is set"), 1) << outcome.output;
  return outcome;
}

std::string RunTest::expect_status(const std::string& run, const std::string& state,
                                   std::optional<ExitCode> code) const {
  const nlohmann::json status = read_json(run_path(run) / "status.json");
  if (!status.is_object()) {
    ADD_FAILURE() << run << " has no status.json";
    return "";
  }
  EXPECT_EQ(status.at("state"), state) << status.dump();
  const nlohmann::json expected = code ? nlohmann::json(static_cast<int>(*code)) : nlohmann::json();
  EXPECT_EQ(status.at("exit_code"), expected) << status.dump();
  return status.at("message");
}

std::int64_t RunTest::status_step(const std::string& run) const {
  return read_json(run_path(run) / "status.json").at("step");
}

void RunTest::expect_loads(const std::string& run, std::int64_t step) {
  const std::vector<std::string> problems = verify_checkpoint(checkpoint_path(run, step));
  EXPECT_TRUE(problems.empty()) << testing::PrintToString(problems);
  if (!problems.empty()) return;
  EXPECT_FALSE(snapshot(run, step).tensors.empty());
}

std::vector<std::int64_t> RunTest::checkpoint_steps(const std::string& run) {
  return steps_in(run_path(run) / "checkpoints");
}

Snapshot RunTest::snapshot(const std::string& run, std::int64_t step) {
  Snapshot snapshot;
  CheckpointReader reader(io_, checkpoint_path(run, step));
  for (const char* file : {"weights.h5", "optimizer.h5"}) {
    for (const TensorInfo& info : reader.tensors(file)) {
      std::vector<float>& values = snapshot.tensors[fmt::format("{}:{}", file, info.name)];
      values.resize(static_cast<std::size_t>(info.size()));
      reader.read({file, info, parts_of_range(info, 0, info.size(), values.data())});
    }
  }
  const nlohmann::json state = nlohmann::json::parse(reader.state().json);
  for (const char* key : {"step", "sample", "seed", "guard"}) {
    snapshot.position += fmt::format("{} {}\n", key, state.at(key).dump());
  }
  return snapshot;
}

MetricsTable RunTest::read_table(const std::string& run, const std::string& table) {
  return read_metrics(io_, run_path(run) / "metrics.h5", table);
}

std::size_t RunTest::num_rows(const std::string& run) {
  return fs::exists(run_path(run) / "metrics.h5") ? steps_table(run)["step"].size() : 0;
}

void RunTest::expect_same_checkpoint(const Snapshot& seen, const Snapshot& expected) {
  EXPECT_EQ(seen.position, expected.position);
  EXPECT_EQ(seen.tensors.size(), expected.tensors.size());
  for (const auto& [name, values] : expected.tensors) {
    const auto same = seen.tensors.find(name);
    ASSERT_NE(same, seen.tensors.end()) << name;
    EXPECT_TRUE(std::ranges::equal(same->second, values, {}, std::bit_cast<std::uint32_t, float>,
                                   std::bit_cast<std::uint32_t, float>))
        << name << " differs";
  }
}

void RunTest::expect_same_run(const std::string& run, const std::string& reference, std::int64_t step) {
  expect_same_checkpoint(snapshot(run, step), snapshot(reference, step));
  for (const char* table : {"steps", "eval"}) {
    const MetricsTable seen = read_table(run, table);
    const MetricsTable expected = read_table(reference, table);
    EXPECT_EQ(seen.size(), expected.size()) << table;
    for (const auto& [column, values] : expected) {
      if (is_time(column)) continue;
      ASSERT_TRUE(seen.contains(column)) << column;
      EXPECT_TRUE(std::ranges::equal(seen.at(column), values, {}, std::bit_cast<std::uint64_t, double>,
                                     std::bit_cast<std::uint64_t, double>))
          << table << "/" << column << ": " << testing::PrintToString(seen.at(column)) << " instead of "
          << testing::PrintToString(values);
    }
  }
}

void RunTest::expect_every_step_once(const std::string& run, std::int64_t last) {
  std::vector<double> expected;
  for (std::int64_t step = 1; step <= last; ++step) expected.push_back(static_cast<double>(step));
  EXPECT_EQ(steps_table(run)["step"], expected);
}

int occurrences(const std::string& text, const std::string& word) {
  int count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

}  // namespace mylos::test
