// SPDX-License-Identifier: BSD-3-Clause
// Stages on two and four ranks, with schedules that decks cannot request yet, against one rank that holds the
// whole model.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/communication/forwarding_communicator.hpp"
#include "parallel/engine/list_check.hpp"
#include "parallel/plan/run_plan.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/schedule_problems.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

using enum ActionKind;

/// The schedule of one stage in 1F1B order (Narayanan et al., "PipeDream", SOSP 2019): after a warm-up, one
/// forward pass alternates with one backward pass. With `receives_early`, each message is received one pass
/// before its use.
Schedule stage_1f1b(int stage, int stages, int micro_batches, bool receives_early) {
  Schedule schedule{.actions = {}, .micro_batches = micro_batches, .chunks = stages};
  std::vector<Action> passes;
  const int warm_up = std::min(stages - 1 - stage, micro_batches);
  for (int m = 0; m < warm_up; ++m) passes.push_back({forward, m, stage});
  for (int m = warm_up; m < micro_batches; ++m) {
    passes.push_back({forward, m, stage});
    passes.push_back({backward, m - warm_up, stage});
  }
  for (int m = micro_batches - warm_up; m < micro_batches; ++m) passes.push_back({backward, m, stage});
  const auto message = [&](ActionKind kind, int m, int peer) {
    schedule.actions.push_back({.kind = kind, .micro_batch = m, .chunk = stage, .peer = peer});
  };
  const auto receive = [&](const Action& pass) {
    if (pass.kind == forward && stage > 0) message(receive_forward, pass.micro_batch, stage - 1);
    if (pass.kind == backward && stage + 1 < stages) message(receive_backward, pass.micro_batch, stage + 1);
  };
  const std::size_t distance = receives_early ? 1 : 0;
  for (std::size_t i = 0; i < std::min(distance, passes.size()); ++i) receive(passes[i]);
  for (std::size_t i = 0; i < passes.size(); ++i) {
    if (i + distance < passes.size()) receive(passes[i + distance]);
    schedule.actions.push_back(passes[i]);
    if (passes[i].kind == forward && stage + 1 < stages)
      message(send_forward, passes[i].micro_batch, stage + 1);
    if (passes[i].kind == backward && stage > 0) message(send_backward, passes[i].micro_batch, stage - 1);
  }
  schedule.actions.push_back({reduce});
  schedule.actions.push_back({step});
  return schedule;
}

template <bool receives_early>
std::vector<Schedule> make_1f1b(const ScheduleScope& scope) {
  std::vector<Schedule> schedules;
  for (int stage = 0; stage < scope.stages; ++stage)
    schedules.push_back(stage_1f1b(stage, scope.stages, scope.micro_batches, receives_early));
  return schedules;
}

const ScheduleKind one_forward_one_backward{.name = "1f1b", .doc = "", .make = make_1f1b<false>};
const ScheduleKind receives_early{.name = "1f1b, early", .doc = "", .make = make_1f1b<true>};

constexpr int micro_batches = 6;

/// What happened to the messages of a rank, in order: "post 3", "pass", "await 3".
struct MessageEvent {
  enum class Kind : std::uint8_t { post, pass, await } kind;
  int message = -1;
};
std::vector<MessageEvent> events;

/// Notes when messages are posted and awaited, over a link that carries nothing before it is awaited: that is
/// the clock that the test drives.
class NotedMessages final : public ForwardingCommunicator {
 public:
  explicit NotedMessages(NextCommunicator next) : ForwardingCommunicator(std::move(next)) {}
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<NotedMessages>(next().split(color, key));
  }

 private:
  class Noted final : public RequestState {
   public:
    Noted(Request request, int number) : request_(std::move(request)), number_(number) {}
    void wait() override {
      events.push_back({MessageEvent::Kind::await, number_});
      request_.wait();
    }
    void host_wait() override { wait(); }
    bool test() override { return false; }

   private:
    Request request_;
    int number_;
  };

  Request start(const CommCall& call) override {
    if (call.operation != CommOperation::send && call.operation != CommOperation::recv)
      return call.on(next());
    events.push_back({MessageEvent::Kind::post, ++number_});
    return Request(std::make_unique<Noted>(call.on(next()), number_));
  }
  int number_ = 0;
};

class Stages : public testing::Test {
 protected:
  static RunConfig config(const ScheduleKind& schedule, int stages) {
    ModelConfig model;
    model.layers = 5;
    model.heads = 2;
    model.width = 32;
    model.context = 16;
    model.vocab = 131;
    model.dropout = 0.1F;
    model.tied = false;
    RunConfig config = mini_config(model, 4 * micro_batches, 16, 1, micro_batches);
    config.guard.clip_norm = 0.0F;
    config.parallel.schedule = &schedule;
    config.parallel.pipeline = stages;
    return config;
  }

  /// Losses and norms of three steps, and the weights of the rank's stage.
  struct Outcome {
    std::vector<float> scalars;
    std::map<std::string, std::vector<float>> weights;
  };
  Outcome train(const RunConfig& run, Communicator& ranks) {
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, ranks, run);
    check_lists(backend_, trainer.grid(), trainer.program());
    Outcome outcome;
    for (std::int64_t number = 1; number <= 3; ++number) {
      const StepScalars scalars = trainer.step(walk_tokens(run, number));
      outcome.scalars.insert(outcome.scalars.end(), {scalars.loss, scalars.gradient_norm});
    }
    for (const Parameter& parameter : trainer.table().parameters())
      outcome.weights[parameter.name] = trainer.weight(parameter.name);
    return outcome;
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
};

TEST_F(Stages, ComputeWhatOneRankDoes) {
  const int stages = world_->size();
  if (stages != 2 && stages != 4) GTEST_SKIP() << "needs 2 or 4 ranks";
  EXPECT_EQ(find_problems(one_forward_one_backward.make({.micro_batches = micro_batches, .stages = stages})),
            std::vector<std::string>());
  const Outcome whole = train(config(*schedules().front(), 1), *self_);
  for (const ScheduleKind* schedule : {&one_forward_one_backward, &receives_early}) {
    for (const bool is_even : {true, false}) {
      SCOPED_TRACE(fmt::format("{}, even {}", schedule->name, is_even));
      RunConfig run = config(*schedule, stages);
      if (!is_even) run.parallel.cuts = stages == 2 ? std::vector{1} : std::vector{2, 3, 5};
      const Outcome own = train(run, *world_);
      for (const auto& [name, weights] : own.weights) EXPECT_EQ(weights, whole.weights.at(name)) << name;
      // The first stage has the embedding and no other block, if the cuts say so.
      if (world_->rank() == 0 && !is_even && stages == 2) {
        EXPECT_EQ(own.weights.size(), 2U);
      }
      for (std::size_t i = 0; i < own.scalars.size(); i += 2) {
        EXPECT_EQ(own.scalars[i], whole.scalars[i]);
        EXPECT_NEAR(own.scalars[i + 1] / whole.scalars[i + 1], 1.0, 1e-6);
      }
    }
  }
}

/// The norm is summed in another order, so that clipped steps agree to rounding.
TEST_F(Stages, ClipByTheNormOfTheWholeModel) {
  const int stages = world_->size();
  if (stages != 2 && stages != 4) GTEST_SKIP() << "needs 2 or 4 ranks";
  RunConfig alone = config(*schedules().front(), 1);
  RunConfig divided = config(one_forward_one_backward, stages);
  for (RunConfig* run : {&alone, &divided}) {
    run->guard.clip_norm = 0.1F;
    run->optimizer = optimizer_config("sgd");
  }
  const Outcome whole = train(alone, *self_);
  for (const auto& [name, weights] : train(divided, *world_).weights) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      ASSERT_NEAR(weights[i], whole.weights.at(name)[i], 1e-6) << name << " " << i;
  }
}

/// Between the posting and the awaiting of a message at least one pass begins, unless the list has no pass
/// there.
TEST_F(Stages, MessagesAreUnderWayDuringPasses) {
  const int stages = world_->size();
  if (stages != 2 && stages != 4) GTEST_SKIP() << "needs 2 or 4 ranks";
  const RunConfig run = config(receives_early, stages);
  NotedMessages noted{NextCommunicator(*world_)};
  MemoryLedger ledger;
  TrafficCounter traffic;
  Trace trace(backend_);
  const ProcessGrid grid(noted, run.parallel.extents(), run.parallel.groups(), traffic, nullptr);
  const RankProgram program(run, grid.coordinates());
  TrainingStep training(backend_, ledger, grid, program, trace);
  training.initialise();
  class NotedPasses final : public StepDriver {
   public:
    void read_samples(std::int64_t, std::int64_t, std::span<std::int32_t> tokens) override {
      std::ranges::fill(tokens, 1);
    }
    void before(const Action& action) override {
      if (is_of_micro_batch(action.kind) && !is_message(action.kind))
        events.push_back({MessageEvent::Kind::pass, -1});
    }
  } driver;
  events.clear();
  training.run(1, 1, driver);
  training.read_results();
  int messages = 0;
  int overlapped = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].kind != MessageEvent::Kind::post) continue;
    ++messages;
    int passes = 0;
    bool is_awaited = false;
    for (std::size_t j = i + 1; j < events.size() && !is_awaited; ++j) {
      if (events[j].kind == MessageEvent::Kind::pass) ++passes;
      is_awaited = events[j].kind == MessageEvent::Kind::await && events[j].message == events[i].message;
    }
    EXPECT_TRUE(is_awaited) << "the next step may overwrite the memory of message " << events[i].message;
    const bool is_last =
        std::none_of(events.begin() + static_cast<std::ptrdiff_t>(i), events.end(),
                     [](const MessageEvent& event) { return event.kind == MessageEvent::Kind::pass; });
    EXPECT_TRUE(passes >= 1 || is_last) << "message " << events[i].message;
    // A pass that does not use the message begins before the one that does.
    overlapped += passes >= 2 ? 1 : 0;
  }
  const bool is_outer = world_->rank() == 0 || world_->rank() + 1 == stages;
  EXPECT_EQ(messages, (is_outer ? 2 : 4) * micro_batches);
  EXPECT_GE(overlapped, micro_batches);
}

/// One stage has the embedding alone, so the other needs more.
TEST_F(Stages, ThePlanIsOfTheStageThatNeedsTheMost) {
  if (world_->size() != 2) GTEST_SKIP() << "needs 2 ranks";
  for (const int first_of_second : {1, 5}) {
    RunConfig run = config(one_forward_one_backward, 2);
    run.parallel.cuts = {first_of_second};
    const RunPlan plan = make_plan(run);
    EXPECT_EQ(plan.rank, first_of_second == 1 ? 1 : 0);
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, *world_, run);
    for (const MemoryCategory category : {MemoryCategory::parameters, MemoryCategory::gradients,
                                          MemoryCategory::optimizer, MemoryCategory::activations}) {
      const std::int64_t planned = plan.memory[static_cast<std::size_t>(category)];
      if (world_->rank() == plan.rank) {
        EXPECT_EQ(static_cast<std::int64_t>(ledger.current(category)), planned) << name_of(category);
      }
    }
  }
}

}  // namespace
}  // namespace mylos
