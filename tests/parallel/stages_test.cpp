// SPDX-License-Identifier: BSD-3-Clause
// Two stages on two ranks, with schedules that decks cannot request yet, against one rank that runs both
// stages.
#include <vector>

#include <gtest/gtest.h>

#include "core/model/parameters.hpp"
#include "parallel/engine/initial_weights.hpp"
#include "parallel/engine/unit_events.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/schedule_problems.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

using enum ActionKind;

constexpr int micro_batches = 3;

/// The passes and messages of a stage in 1F1B order: one forward pass alternates with one backward pass.
/// Stage 0 begins with one micro-batch of warm-up.
Schedule stage_of_two(int stage) {
  Schedule schedule{.actions = {}, .micro_batches = micro_batches, .chunks = 2};
  const int peer = 1 - stage;
  const auto add = [&](ActionKind kind, int m) {
    schedule.actions.push_back(
        {.kind = kind, .micro_batch = m, .chunk = stage, .peer = is_message(kind) ? peer : -1});
  };
  const auto pass_forward = [&](int m) {
    if (stage == 1) add(receive_forward, m);
    add(forward, m);
    if (stage == 0) add(send_forward, m);
  };
  const auto pass_back = [&](int m) {
    if (stage == 0) add(receive_backward, m);
    add(backward, m);
    if (stage == 1) add(send_backward, m);
  };
  const int warm_up = 1 - stage;
  for (int m = 0; m < warm_up; ++m) pass_forward(m);
  for (int m = warm_up; m < micro_batches; ++m) {
    pass_forward(m);
    pass_back(m - warm_up);
  }
  for (int m = micro_batches - warm_up; m < micro_batches; ++m) pass_back(m);
  schedule.actions.push_back({reduce});
  schedule.actions.push_back({step});
  return schedule;
}

class Stages : public testing::Test {
 protected:
  RunConfig config_ = [] {
    ModelConfig model;
    model.layers = 3;
    model.heads = 2;
    model.width = 32;
    model.context = 16;
    model.vocab = 131;
    model.dropout = 0.1F;
    model.tied = false;
    return mini_config(model, 4 * micro_batches, 16, 1, micro_batches);
  }();
  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);

  /// The gradients, in the order of the table, and the sum of losses after the passes and messages of two
  /// steps.
  struct Outcome {
    std::vector<std::vector<float>> gradients;
    float losses = 0.0F;
  };

  Outcome run(const Schedule& schedule, Communicator& ranks, int stages) {
    const ParameterTable table = parameters_of(config_.model);
    MemoryLedger ledger;
    TrafficCounter traffic;
    GridExtents extents;
    extents.pipeline = stages;
    const std::vector<AxisSet> groups = {loss_axes, all_axes, {Axis::pipeline}};
    const ProcessGrid grid(ranks, extents, groups, traffic, nullptr);
    const ProgramConfig recorded = config_.programs(schedule, grid.coordinates());
    // The exchange has room for all gradients, whichever stage completes them.
    const Schedule whole = schedules().front()->make(micro_batches);
    const ExchangeScope scope{
        .table = table,
        .events = unit_events_of(
            whole, record_programs(config_.model, table, config_.programs(whole, grid.coordinates())))};
    const auto exchange =
        config_.parallel.exchange->make(config_.parallel.values, scope, backend_, ledger, grid);
    const auto optimizer = config_.optimizer.kind->make(
        config_.optimizer, {backend_, ledger, table, DType::fp32, exchange->owned()});
    initialise_weights(backend_, table, 1, *exchange, *optimizer);
    ModelExecutor executor(backend_, ledger, grid, *exchange, schedule,
                           record_programs(config_.model, table, recorded), config_.model,
                           config_.train.shape());
    StepScalars scalars;
    Outcome outcome;
    const std::vector<std::int32_t> tokens = walk_tokens(config_, 1);
    const std::size_t row = tokens.size() / micro_batches;
    for (std::int64_t number = 1; number <= 2; ++number) {
      schedule.for_each_action(number, number > 1, 2, [&](const Occurrence& occurrence) {
        const Action& action = schedule.actions[occurrence.index];
        if (!is_of_micro_batch(action.kind)) return executor.finish_messages();
        const auto m = static_cast<std::size_t>(action.micro_batch);
        if (executor.begin(occurrence)) executor.load(std::span(tokens).subspan(m * row, row));
        executor.run(occurrence, {.first_sample = 4 * action.micro_batch,
                                  .scalars = &scalars,
                                  .loss_sum = {&outcome.losses, DType::fp32, {1}}});
      });
    }
    backend_.synchronize();
    for (const Parameter& parameter : table.parameters()) {
      const TensorRef gradient = exchange->gradient({parameter.unit, parameter.offset, parameter.size()});
      const auto* values = gradient.as<float>();
      outcome.gradients.emplace_back(values, values + gradient.size());
    }
    return outcome;
  }
};

TEST_F(Stages, ComputeWhatOneRankDoes) {
  if (world_->size() != 2) GTEST_SKIP() << "needs 2 ranks";
  const Schedule stages[] = {stage_of_two(0), stage_of_two(1)};
  EXPECT_EQ(find_problems(stages), std::vector<std::string>());
  const Outcome whole = run(schedules().front()->make(micro_batches), *self_, 1);
  const Outcome own = run(stages[world_->rank()], *world_, 2);
  const ParameterTable table = parameters_of(config_.model);
  int num_own = 0;
  for (std::size_t i = 0; i < whole.gradients.size(); ++i) {
    const int unit = table.parameters()[i].unit;
    const bool is_first = unit < table.num_units() / 2;  // the embedding and the first of three blocks
    if (is_first != (world_->rank() == 0)) continue;
    EXPECT_EQ(own.gradients[i], whole.gradients[i]) << table.parameters()[i].name;
    ++num_own;
  }
  EXPECT_GT(num_own, 3);
  EXPECT_TRUE(world_->rank() == 0 || own.losses == whole.losses);
}

}  // namespace
}  // namespace mylos
