// SPDX-License-Identifier: BSD-3-Clause
// Ranks that stop at any moment, from the start of their process to its end: the job ends by itself.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/faults/run_fixture.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/waiting.hpp"

namespace mylos::test {
namespace {

using Clock = std::chrono::steady_clock;

class StoppedAnywhere : public RunTest {
 protected:
  /// The arguments of a command that takes about a second; `train` trains run `name`.
  Words arguments(const std::string& command, const std::string& name) const {
    const Words limits = {"--comm.heartbeat=1", "--comm.start_timeout=5"};
    Words words = command == "train" ? train_arguments(name, {"--train.steps=60", "--checkpoint.every=20"})
                                     : Words{command, run_path("trained").string()};
    if (command == "eval") words.push_back("--data=" + tokens().string());
    if (command == "generate") words.emplace_back("--tokens=100");
    words.insert(words.end(), limits.begin(), limits.end());
    return words;
  }

  /// Stops rank `rank` after `moment`, or when its process begins if that is later. Returns whether the rank
  /// was still running and the job failed.
  bool stop_one(const std::string& command, int ranks, int rank, std::chrono::duration<double> moment) {
    std::filesystem::remove_all(run_path("run"));
    Job job(arguments(command, "run"), {.ranks = ranks});
    std::this_thread::sleep_for(moment);
    std::optional<pid_t> process;
    wait_until([&] {
      process = job.find_rank(rank);
      return process.has_value() || !job.running();
    });
    const bool is_stopped = process && ::kill(*process, SIGSTOP) == 0;
    const auto begin = Clock::now();
    const Outcome outcome = job.wait();
    EXPECT_TRUE(wait_until([&] { return job.processes().empty(); })) << outcome.output;
    const bool is_hit = is_stopped && outcome.exit_code != 0;
    if (is_hit) {
      seconds_.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      ++exit_codes_[outcome.exit_code];
    }
    return is_hit;
  }

  std::vector<double> seconds_;  // from each stop that met a running rank to the end of its job
  std::map<int, int> exit_codes_;
};

TEST_F(StoppedAnywhere, DISABLED_EndsTheJob) {
  const char* wanted = std::getenv("MYLOS_STOPS");
  const int stops = wanted != nullptr ? std::atoi(wanted) : 24;
  std::mt19937 random(seed_of_tests());
  ASSERT_EQ(train("trained", {"--train.steps=20"}).exit_code, 0);
  // The durations of jobs that are not stopped.
  std::map<std::pair<std::string, int>, std::chrono::duration<double>> lengths;
  int hits = 0;
  for (int i = 0; hits < stops && i < 2 * stops; ++i) {
    const std::string command = std::array{"train", "eval", "generate"}[static_cast<std::size_t>(i % 3)];
    const int ranks = i / 3 % 2 == 0 ? 2 : 4;
    auto& length = lengths[{command, ranks}];
    if (length.count() == 0) {
      const auto begin = Clock::now();
      const Outcome whole = run_mylos(arguments(command, fmt::format("whole{}", ranks)), {.ranks = ranks});
      ASSERT_EQ(whole.exit_code, 0) << whole.output;
      length = Clock::now() - begin;
    }
    const int rank = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const auto moment = std::uniform_real_distribution<double>(0.0, 1.0)(random) * length;
    const std::string stop = fmt::format("{} on {} ranks, rank {} at {:.3f} of {:.3f} s", command, ranks,
                                         rank, moment.count(), length.count());
    SCOPED_TRACE(stop);
    try {
      hits += stop_one(command, ranks, rank, moment) ? 1 : 0;
    } catch (const std::exception& error) {  // the job hangs
      FAIL() << error.what();
    }
  }
  EXPECT_EQ(hits, stops);  // the other stops came after the rank had ended
  std::ranges::sort(seconds_);
  fmt::print("from the stop to the end of the job: median {:.2f} s, at most {:.2f} s\n",
             seconds_.at(seconds_.size() / 2), seconds_.back());
  for (const auto& [code, number] : exit_codes_) fmt::print("exit code {}: {}\n", code, number);
}

}  // namespace
}  // namespace mylos::test
