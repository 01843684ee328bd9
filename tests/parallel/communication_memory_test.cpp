// SPDX-License-Identifier: BSD-3-Clause
// What needs a session: memory and traffic against the plan that a dry run prints, and what the ranks observe
// of a step.
#include <algorithm>
#include <cstdlib>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/launch/session.hpp"
#include "app/launch/setup.hpp"
#include "app/train/opened_model.hpp"
#include "app/train/step_record.hpp"
#include "core/base/kinds.hpp"
#include "parallel/collectives/algorithm_communicator.hpp"
#include "parallel/plan/run_plan.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/gather_over.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

constexpr const char* deck = R"(
[model]
layers = 2
heads = 2
width = 32
context = 16
vocab = 61
[train]
steps = 2
global_batch = 12
seq_len = 16
dtype = fp32
[data]
train = none
[parallel]
bucket_mb = 0.02
[backend]
compute = kokkos
comm = shm
threads = 1
[comm]
algorithm = ring
ranks_per_node = 2
[run]
dir = none
)";

RunPlan expect_planned(const MemoryLedger& ledger, int rank, const RunConfig& config,
                       const CommunicatorPlan& comm) {
  using enum MemoryCategory;
  constexpr auto category = communication;
  const RunPlan plan = make_plans(
      config,
      {.algorithm = config.comm.algorithm,
       .threads = 0,
       .communicator = comm,
       .plan_compute =
           nullptr})[static_cast<std::size_t>(config.parallel.coordinates(rank).index(Axis::pipeline))];
  const auto planned = static_cast<double>(plan.memory[static_cast<std::size_t>(category)]);
  const auto taken = static_cast<double>(ledger.peak(category));
  // Under sequence parallelism, ranks that own other parts of the units sum other gradients of norms.
  const bool is_planned = rank == plan.rank;
  EXPECT_LE(taken, (is_planned ? 1.01 : 1.02) * planned);
  if (is_planned) {
    EXPECT_GE(taken, 0.99 * planned);
  }
  for (const MemoryCategory exact :
       {parameters, gradients, optimizer, gathered_weights, full_gradients, activations}) {
    SCOPED_TRACE(name_of(exact));
    const std::int64_t bytes = plan.memory[static_cast<std::size_t>(exact)];
    if (is_planned) {
      EXPECT_EQ(static_cast<std::int64_t>(ledger.peak(exact)), bytes);
    } else {
      EXPECT_LE(static_cast<std::int64_t>(ledger.peak(exact)), bytes);
    }
  }
  return plan;
}

/// Supplies zeros as tokens.
class NoTokens final : public StepDriver {
 public:
  void read_samples(std::int64_t /*step*/, std::int64_t /*first*/, std::span<std::int32_t> tokens) override {
    std::ranges::fill(tokens, 0);
  }
};

/// Rank r takes 1, 4, 9 ... seconds and as many million bytes more than rank 0 ever took; the ranks take
/// turns at being the slowest in a phase, and all but the first ask to stop.
void expect_columns_of_different_ranks(Session& session) {
  const int ranks = session.size();
  const auto of = [](int rank) { return (rank + 1.0) * (rank + 1.0); };
  const double median = ranks % 2 == 1 ? of(ranks / 2) : 0.5 * (of(ranks / 2 - 1) + of(ranks / 2));
  StepResults own;
  own.seconds = of(session.rank());
  own.wait_seconds = {of(session.rank()), of(ranks - 1 - session.rank()) / 2.0};
  for (int phase = 0; phase < num_step_phases; ++phase)
    own.phase_seconds[static_cast<std::size_t>(phase)] = phase % ranks == session.rank() ? 2.0 : 1.0;
  std::int64_t most = static_cast<std::int64_t>(session.ledger().peak());
  session.host_world().all_reduce({&most, DType::int64, {1}}, ReduceOp::max).host_wait();
  const auto more = static_cast<std::size_t>(1e6 * of(session.rank())) + static_cast<std::size_t>(most) -
                    session.ledger().current();
  session.ledger().charge(MemoryCategory::workspace, more);
  const StepObservation seen = StepGather(session, own, session.rank() == 0 ? 0 : 10 + session.rank()).take();
  session.ledger().release(MemoryCategory::workspace, more);
  EXPECT_THAT(seen.phase_seconds, testing::Each(testing::DoubleEq(2.0)));
  EXPECT_THAT(seen.wait_seconds,
              testing::ElementsAre(testing::DoubleEq(of(ranks - 1)), testing::DoubleEq(of(ranks - 1) / 2.0)));
  EXPECT_DOUBLE_EQ(seen.seconds_min, 1.0);
  EXPECT_DOUBLE_EQ(seen.seconds_median, median);
  EXPECT_DOUBLE_EQ(seen.seconds_max, of(ranks - 1));
  const auto bytes = [&](double of_rank) { return 1e6 * of_rank + static_cast<double>(most); };
  EXPECT_DOUBLE_EQ(seen.memory_min, bytes(1.0));
  EXPECT_DOUBLE_EQ(seen.memory_median, bytes(median));
  EXPECT_DOUBLE_EQ(seen.memory_max, bytes(of(ranks - 1)));
  EXPECT_EQ(seen.stop_request, ranks == 1 ? 0 : 9 + ranks);
}

// One test, because a process has one session.
TEST(CommunicationMemory, EqualsThePlan) {
  const std::unique_ptr<Communicator> world = open_communicator("mpi");
  const std::string plugins = std::string(std::getenv("MYLOS_BUILD")) + "/lib/mylos";
  mylos::Setup setup = make_setup(deck, "test.deck", {}, plugins, {world->size()}, shape_at);
  setup.choose(world->size(), own_thread_limits({.processors = world->size()}));
  FlightRecorder recorder(world->rank(), test::gather_over(*world));
  Session session(setup.plugins, setup.config, setup.values, recorder);
  const CommunicatorPlan comm = plan_communicator(setup.plugins, setup.config, setup.values);
  EXPECT_EQ(comm.ranks, std::min(2, world->size()));
  EXPECT_GT(session.ledger().current(MemoryCategory::communication), 0U);
  {
    const RankProgram program(setup.config, session.grid().coordinates());
    TrainingStep training(session.compute(), session.ledger(), session.grid(), program, session.trace());
    training.initialise();
    NoTokens driver;
    for (std::int64_t step = 1; step <= 2; ++step) {
      training.run(step, step, driver);
      training.read_results();
    }
  }
  expect_planned(session.ledger(), world->rank(), setup.config, comm);

  for (const std::string algorithm : {"naive", "tree", "ring", "halving_doubling", "tree<20000,ring"}) {
    for (const std::string strategy :
         {"per_parameter", "flat", "overlapped", "bucketed", "zero1", "zero2", "zero3", "hybrid", "tensor",
          "sequence", "accumulating", "1f1b", "interleaved", "zero_bubble_v"}) {
      SCOPED_TRACE(fmt::format("{}, {}", algorithm, strategy));
      RunConfig config = setup.config;
      config.comm.algorithm = algorithm;
      if (strategy == "hybrid") {
        if (world->size() < 4) continue;
        set_exchange(config, "zero2", world->size() / 2);
      } else if (strategy == "tensor" || strategy == "sequence") {
        if (world->size() % 2 != 0) continue;
        config.parallel.tensor = 2;
        const bool divides = strategy == "sequence";
        config.parallel.splits = {.vocab = divides, .sequence = divides};
        config.parallel.data = world->size() / 2;
        if (divides) {
          config.train.micro_batch = config.train.global_batch / config.parallel.data;
        } else {
          config.train.micro_batch = 1;
          config.train.accumulation = config.train.global_batch / config.parallel.data;
        }
        set_exchange(config, "zero3", config.parallel.data);
      } else if (strategy == "1f1b" || strategy == "interleaved" || strategy == "zero_bubble_v") {
        if (world->size() == 1) continue;
        // The first stages have blocks, and the rest has the head.
        config.model.layers = 2L * world->size();
        config.parallel.data = 1;
        config.parallel.pipeline = world->size();
        config.parallel.chunks = strategy == "interleaved" ? 2 : 1;
        config.parallel.placement.clear();  // of the deck's one stage
        config.parallel.times.clear();
        config.parallel.cuts.clear();
        config.parallel.schedule = &find_kind(schedules(), strategy);
        config.train.micro_batch = config.train.global_batch / (2L * world->size());
        config.train.accumulation = 2L * world->size();
        set_ddp(config, "bucketed", 0.02);
      } else if (strategy == "accumulating") {
        set_exchange(config, "zero3", world->size());
        config.train.micro_batch = 1;
        config.train.accumulation = config.train.global_batch / world->size();
      } else if (strategy.starts_with("zero")) {
        set_exchange(config, strategy, world->size());
      } else {
        set_ddp(config, strategy, 0.02);
      }
      MemoryLedger ledger;
      TrafficCounter counter;
      AlgorithmCommunicator layer(*world, AlgorithmChoice::parse(algorithm), "wire", counter,
                                  &session.compute(), std::make_shared<OperationEngine>(&ledger));
      MiniTrainer trainer(session.compute(), ledger, layer, config);
      trainer.step(walk_tokens(config, 1));
      const std::vector<TrafficRow> before = trainer.traffic().table();
      trainer.step(walk_tokens(config, 2));
      const RunPlan plan = expect_planned(ledger, world->rank(), config, {.ranks = world->size()});
      // The plan describes one rank. Ranks that own another part of the units reduce different norm
      // gradients, and other stages send other messages.
      const bool has_other_norms = strategy == "sequence" && world->rank() >= config.parallel.tensor;
      const bool is_of_stage = config.parallel.pipeline == 1 || world->rank() == plan.rank;
      if (world->size() > 1 && !has_other_norms && is_of_stage) {
        EXPECT_THAT(subtract(trainer.traffic().table(), before),
                    testing::UnorderedElementsAreArray(plan.traffic));
      }
    }
  }
  expect_columns_of_different_ranks(session);
}

}  // namespace
}  // namespace mylos
