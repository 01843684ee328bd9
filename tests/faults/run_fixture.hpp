// SPDX-License-Identifier: BSD-3-Clause
// A tiny deck with its data in a scratch directory, and checks of a run's directory for the fault tests.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/metrics/metrics.hpp"
#include "tests/faults/run_mylos.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {

/// The content of a checkpoint: its tensors by "file:name", and the parts of state.json that training
/// continues from.
struct Snapshot {
  std::map<std::string, std::vector<float>> tensors;
  std::string position;  ///< step, running sample index, seed, guard
};

class RunTest : public testing::Test {
 public:
  using Words = std::vector<std::string>;

  RunTest();

 protected:
  const fs::path& scratch() const { return scratch_.path(); }
  fs::path run_path(const std::string& run) const { return scratch() / run; }
  fs::path checkpoint_path(const std::string& run, std::int64_t step) const;

  /// The arguments of `mylos train` in run directory `run`.
  Words train_arguments(const std::string& run, const Words& more = {}) const;
  Outcome train(const std::string& run, const Words& more = {}, const JobOptions& options = {}) const;
  /// Runs mylos on a clock that stands until `is_due`, and from then on passes (8 s in about 3): until then
  /// nothing can be late, however busy the machine is.
  Outcome run_on_clock(const Words& arguments, JobOptions options,
                       const std::function<bool(const Job&)>& is_due) const;
  /// The same until `rank` has stopped itself, by MYLOS_FAULT=`fault`, with a limit of 8 s for its silence.
  Outcome run_until_silent(Words arguments, int rank, const std::string& fault,
                           JobOptions options = {}) const;
  /// Trains with MYLOS_FAULT=`fault`; expects that no rank is left behind.
  Outcome train_with_fault(const std::string& run, const std::string& fault, const Words& more = {}) const;

  /// Checks the fields of status.json; returns the message.
  std::string expect_status(const std::string& run, const std::string& state,
                            std::optional<ExitCode> code) const;
  /// The step of status.json.
  std::int64_t status_step(const std::string& run) const;
  /// Expects that a checkpoint verifies and that all of it can be read.
  void expect_loads(const std::string& run, std::int64_t step);

  std::vector<std::int64_t> checkpoint_steps(const std::string& run);
  Snapshot snapshot(const std::string& run, std::int64_t step);
  /// A table of metrics.h5; empty if the file has no such table.
  MetricsTable read_table(const std::string& run, const std::string& table);
  MetricsTable steps_table(const std::string& run) { return read_table(run, "steps"); }
  /// The number of steps in metrics.h5, also while the run goes on; 0 if there is no such file yet.
  std::size_t num_rows(const std::string& run);
  /// Expects the checkpoints of `step` and all metrics of steps and evaluations except times and rates to be
  /// bitwise equal.
  void expect_same_run(const std::string& run, const std::string& reference, std::int64_t step);
  void expect_same_checkpoint(const Snapshot& seen, const Snapshot& expected);
  /// Expects each of the steps 1, 2, ... `last` once in metrics.h5.
  void expect_every_step_once(const std::string& run, std::int64_t last);

  fs::path deck() const { return scratch() / "tiny.deck"; }
  fs::path tokens() const { return scratch() / "train.bin"; }

 private:
  ScratchDirectory scratch_;
  IoThread io_;
};

int occurrences(const std::string& text, const std::string& word);

}  // namespace mylos::test
