// SPDX-License-Identifier: BSD-3-Clause
// A step's row of metrics: every number is in the column of its name.
#include "app/step_record.hpp"

#include <map>
#include <string>

#include <gtest/gtest.h>

namespace mylos {
namespace {

/// All numbers differ, so that no two columns can be exchanged.
StepRecord record_of_different_numbers() {
  StepRecord record;
  record.step = 1;
  record.steps = 2;
  record.tokens = 3;
  record.tokens_per_second = 4;
  record.mfu = 5;
  record.hfu = 6;
  record.scalars.loss = 7;
  record.scalars.learning_rate = 8;
  record.scalars.gradient_norm = 9;
  record.scalars.loss_scale = 10;
  record.scalars.skip = 1;
  record.seen.seconds_min = 11;
  record.seen.seconds_median = 12;
  record.seen.seconds_max = 13;
  record.seen.memory_min = 14;
  record.seen.memory_median = 15;
  record.seen.memory_max = 16;
  record.seen.idle_min = 25;
  record.seen.idle_median = 26;
  record.seen.idle_max = 27;
  record.seen.phase_seconds[static_cast<std::size_t>(StepPhase::data)] = 17;
  record.seen.phase_seconds[static_cast<std::size_t>(StepPhase::forward)] = 18;
  record.seen.phase_seconds[static_cast<std::size_t>(StepPhase::backward)] = 19;
  record.seen.phase_seconds[static_cast<std::size_t>(StepPhase::communication)] = 20;
  record.seen.phase_seconds[static_cast<std::size_t>(StepPhase::optimizer)] = 21;
  record.checkpoint_seconds = 100;
  record.evaluation_seconds = 1000;
  record.epochs = {0.5, 0.25};
  record.traffic = {{"data", CommOperation::all_reduce, 22, 200},
                    {"tensor", CommOperation::all_reduce, 23, 2000},
                    {"data", CommOperation::all_gather, 24, 20000}};
  return record;
}

TEST(StepRecord, GivesEachNumberItsColumn) {
  MemoryLedger ledger;
  std::map<std::string, double> expected = {{"step", 1},
                                            {"tokens", 3},
                                            {"tokens_per_second", 4},
                                            {"mfu", 5},
                                            {"hfu", 6},
                                            {"loss", 7},
                                            {"learning_rate", 8},
                                            {"gradient_norm", 9},
                                            {"loss_scale", 10},
                                            {"skipped", 1},
                                            {"rank_time_min", 11},
                                            {"rank_time_median", 12},
                                            {"rank_time_max", 13},
                                            {"idle_time_min", 25},
                                            {"idle_time_median", 26},
                                            {"idle_time_max", 27},
                                            {"memory_peak_min", 14},
                                            {"memory_peak_median", 15},
                                            {"memory_peak_max", 16},
                                            {"time_data", 17},
                                            {"time_forward", 18},
                                            {"time_backward", 19},
                                            {"time_communication", 20},
                                            {"time_optimizer", 21},
                                            {"time_checkpoint", 100},
                                            {"time_evaluation", 1000},
                                            {"time_step", 13 + 100 + 1000},
                                            {"epochs_1", 0.5},
                                            {"epochs_2", 0.25},
                                            {"communication_calls", 22 + 23 + 24},
                                            {"communication_bytes", 22200},
                                            {"payload_data_all_reduce", 200},
                                            {"payload_tensor_all_reduce", 2000},
                                            {"payload_data_all_gather", 20000}};
  for (int i = 0; i < num_memory_categories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    ledger.charge(category, 1U << (10U + static_cast<unsigned>(i)));
    expected[fmt::format("memory_{}", name_of(category))] = 1U << (10U + static_cast<unsigned>(i));
  }
  const MetricsRow row = metrics_row(record_of_different_numbers(), ledger);
  EXPECT_EQ((std::map<std::string, double>(row.begin(), row.end())), expected);
  EXPECT_EQ(row.size(), expected.size()) << "each once";
}

TEST(StepRecord, CountsEveryReasonToSkip) {
  StepRecord record = record_of_different_numbers();
  const auto skipped = [&](int skip) {
    record.scalars.skip = skip;
    const MetricsRow row = metrics_row(record, {});
    return std::map<std::string, double>(row.begin(), row.end()).at("skipped");
  };
  EXPECT_EQ(skipped(0), 0.0);
  EXPECT_EQ(skipped(1), 1.0);
  EXPECT_EQ(skipped(2), 1.0);
}

}  // namespace
}  // namespace mylos
