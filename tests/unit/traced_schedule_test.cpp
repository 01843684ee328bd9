// SPDX-License-Identifier: BSD-3-Clause
// The diagram of a traced step: what counts as work, and which ranks it has.
#include "app/train/traced_schedule.hpp"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/kinds.hpp"
#include "tests/parallel/mini_trainer.hpp"

namespace mylos {
namespace {

constexpr std::int64_t us = 1000;

TraceEvent phase_event(std::string_view name, std::int64_t begin, std::int64_t end, int micro_batch = -1,
                       int chunk = -1) {
  TraceEvent event{.name = name, .kind = TraceKind::phase, .shape = {}, .begin = begin, .end = end};
  event.micro_batch = micro_batch;
  event.chunk = chunk;
  return event;
}

TraceEvent communication_event(std::string_view name, std::int64_t begin, std::int64_t end) {
  return {.name = name, .kind = TraceKind::communication, .shape = {}, .begin = begin, .end = end};
}

TEST(TracedSchedule, CountsWaitsWithinAPassAsIdle) {
  const std::vector<TraceEvent> events = {
      phase_event("data", 0, 10 * us),
      phase_event("communication", 10 * us, 11 * us, 0, 1),  // a receive is posted
      communication_event("recv wait", 12 * us, 30 * us),
      communication_event("all_reduce wait", 40 * us, 40 * us + 10),
      communication_event("recv", 50 * us, 52 * us),
      phase_event("forward", 11 * us, 60 * us, 0, 1),
      communication_event("recv wait", 70 * us, 75 * us),
      phase_event("backward_input", 60 * us, 90 * us, 0, 1),
      phase_event("backward_weight", 90 * us, 100 * us, 0, 1),
      phase_event("communication", 100 * us, 110 * us),
      communication_event("all_reduce wait", 111 * us, 120 * us),
      phase_event("optimizer", 110 * us, 130 * us),
      phase_event(whole_step, 0, 131 * us)};
  const DiagramRow row = traced_row(events, 3, 1);
  EXPECT_EQ(row.rank, 3);
  EXPECT_EQ(row.stage, 1);
  EXPECT_EQ(row.passes, 3);
  EXPECT_EQ(row.end, 131 * us);
  EXPECT_EQ(row.busy, 130 * us - (18 + 5 + 9) * us - 10);
  EXPECT_THAT(row.spans, testing::ElementsAre(WorkSpan{WorkKind::other, -1, -1, 0, 10 * us},
                                              WorkSpan{WorkKind::other, -1, -1, 10 * us, 11 * us},
                                              WorkSpan{WorkKind::forward, 0, 1, 11 * us, 12 * us},
                                              WorkSpan{WorkKind::wait, -1, -1, 12 * us, 30 * us},
                                              WorkSpan{WorkKind::forward, 0, 1, 30 * us, 60 * us},
                                              WorkSpan{WorkKind::backward_input, 0, 1, 60 * us, 70 * us},
                                              WorkSpan{WorkKind::wait, -1, -1, 70 * us, 75 * us},
                                              WorkSpan{WorkKind::backward_input, 0, 1, 75 * us, 90 * us},
                                              WorkSpan{WorkKind::backward_weight, 0, 1, 90 * us, 100 * us},
                                              WorkSpan{WorkKind::reduce, -1, -1, 100 * us, 110 * us},
                                              WorkSpan{WorkKind::update, -1, -1, 110 * us, 111 * us},
                                              WorkSpan{WorkKind::wait, -1, -1, 111 * us, 120 * us},
                                              WorkSpan{WorkKind::update, -1, -1, 120 * us, 130 * us}));
}

TEST(TracedSchedule, IsEmptyWithoutEvents) {
  const DiagramRow row = traced_row({}, 0, 0);
  EXPECT_TRUE(row.spans.empty());
  EXPECT_EQ(row.end, 0);
}

class Diagram : public testing::Test {
 protected:
  /// A pipeline with a unit per stage, whose passes take 1, 2 and 3 s: forward, gradients of inputs, of
  /// weights.
  static StepDiagram make(int stages, int data, int micro_batches, const char* schedule = "1f1b") {
    ModelConfig model;
    model.layers = stages - 2;
    RunConfig config = mini_config(model, std::int64_t{data} * micro_batches, 16, data, micro_batches);
    config.parallel.pipeline = stages;
    config.parallel.schedule = &find_kind(schedules(), schedule);
    config.profile_step = 5;
    config.parallel.values.set("parallel.vertical_sync", false);
    for (int chunk = 1; chunk < stages; ++chunk) config.parallel.cuts.push_back(chunk);
    std::vector<std::string> rows;
    for (int rank = 0; rank < stages * data; ++rank) {
      const std::vector<TraceEvent> events = {phase_event("forward", 0, 10 * us, 0, rank / data),
                                              phase_event(whole_step, 0, 20 * us + rank)};
      rows.push_back(json_of(traced_row(events, rank, rank / data)).dump());
    }
    const std::vector<UnitCost> units(static_cast<std::size_t>(stages),
                                      {.forward = 1.0, .input = 2.0, .weight = 3.0});
    return diagram_of(config, units, rows);
  }
};

TEST_F(Diagram, SimulatesTheListsWithTheTimesOfTheUnits) {
  const StepDiagram diagram = make(4, 2, 8);
  EXPECT_EQ(diagram.simulated, 6'000'000'000 * (8 + 4 - 1));
  EXPECT_EQ(diagram.traced, 20 * us + 7);
  EXPECT_EQ(diagram.num_ranks, 8);
  ASSERT_EQ(diagram.simulation.size(), 4U);
  EXPECT_EQ(diagram.simulation[3].passes, 16);
  EXPECT_EQ(diagram.simulation[3].spans.front(),
            (WorkSpan{WorkKind::forward, 0, 3, 3'000'000'000, 4'000'000'000}));
  ASSERT_EQ(diagram.ranks.size(), 8U);
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(diagram.ranks[static_cast<std::size_t>(rank)].rank, rank);
    EXPECT_EQ(diagram.ranks[static_cast<std::size_t>(rank)].stage, rank / 2);
  }
}

/// Step 5 of an asynchronous pipeline: stage s uses the weights of p - 1 - s micro-batches before.
TEST_F(Diagram, NamesTheVersionsOfTheWeights) {
  const StepDiagram diagram = make(3, 1, 2, "pipedream");
  for (const auto* rows : {&diagram.simulation, &diagram.ranks}) {
    ASSERT_EQ(rows->size(), 3U);
    for (const DiagramRow& row : *rows) {
      for (const WorkSpan& span : row.spans) {
        const std::int64_t expected = (4 * 2 + span.micro_batch - (2 - row.stage)) / 2;
        EXPECT_EQ(span.version, is_pass(span.kind) ? expected : -1);
      }
    }
  }
  EXPECT_EQ(parse_diagram(Json::parse(json_of(diagram).dump())), diagram);
  EXPECT_EQ(make(3, 1, 2).ranks.front().spans.front().version, -1);
}

TEST_F(Diagram, HasTheFirstRankOfEachStageIfThereAreMany) {
  StepDiagram diagram = make(4, 16, 2);
  EXPECT_EQ(diagram.num_ranks, 64);
  ASSERT_EQ(diagram.ranks.size(), 4U);
  for (int stage = 0; stage < 4; ++stage) {
    EXPECT_EQ(diagram.ranks[static_cast<std::size_t>(stage)].rank, 16 * stage);
    EXPECT_EQ(diagram.ranks[static_cast<std::size_t>(stage)].stage, stage);
  }
  diagram = make(48, 1, 4);
  EXPECT_EQ(diagram.num_stages, 48);
  EXPECT_EQ(diagram.ranks.size(), 32U);
  EXPECT_EQ(diagram.simulation.size(), 32U);
}

TEST_F(Diagram, IsCutIfTheStepIsLong) {
  const StepDiagram diagram = make(8, 1, 1024);
  std::size_t spans = 0;
  for (const DiagramRow& row : diagram.simulation) spans += row.spans.size();
  EXPECT_LE(spans, 2500U);
  EXPECT_GT(spans, 2400U);
  EXPECT_LT(diagram.shown, diagram.simulated);
  EXPECT_EQ(diagram.simulation.front().passes, 2048);
}

}  // namespace
}  // namespace mylos
