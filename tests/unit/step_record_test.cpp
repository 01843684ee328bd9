// SPDX-License-Identifier: BSD-3-Clause
// A step's row of metrics: every number is in the column of its name.
#include "app/train/step_record.hpp"

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
  record.seen.wait_seconds = {28, 29};
  record.wait_axes = {"data", "tensor+data"};
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
                                            {"wait_data", 28},
                                            {"wait_tensor+data", 29},
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

/// Sums of a block with experts, a routed one and one with both, over 4 sequences of 10 tokens.
TEST(StepRecord, MakesColumnsOfTheSumsAboutRouters) {
  ModelConfig model{.layers = 6};
  model.experts = {.count = 2, .per_token = 1, .width = 8, .every = 3};
  model.depths = {.capacity = 0.5, .every = 2};
  const TrainConfig train{.global_batch = 4, .seq_len = 10};
  const std::vector<float> sums = {40, 10, 38,          // block 1: predictor
                                   5,  80, 10, 10, 30,  // block 2: experts
                                   20, 30, 30,          // block 3
                                   4,  40, 2,  10, 10,  // block 5: experts, of half the tokens
                                   20, 20, 22};
  const MetricsRow row = routing_columns(model, train, sums);
  const std::map<std::string, double> expected = {{"balance_loss", 5.0 / 4 + 4.0 / 4},
                                                  {"router_z_loss", 80.0 / 40 + 40.0 / 20},
                                                  {"dropped_share", 12.0 / 60},
                                                  {"largest_load", 1.5},
                                                  {"predictor_loss", 80.0 / 40},
                                                  {"predicted_share", 60.0 / 120},
                                                  {"predictor_hits", 90.0 / 120},
                                                  {"load_2_0", 0.5},
                                                  {"load_2_1", 1.5},
                                                  {"load_5_0", 1.0},
                                                  {"load_5_1", 1.0}};
  EXPECT_EQ((std::map<std::string, double>(row.begin(), row.end())), expected);
  EXPECT_EQ(row.size(), expected.size());
  EXPECT_TRUE(routing_columns({.layers = 6}, train, {}).empty());
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
