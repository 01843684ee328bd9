// SPDX-License-Identifier: BSD-3-Clause
// Pipelines against the same layout with one stage.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/kinds.hpp"
#include "core/communication/forwarding_communicator.hpp"
#include "parallel/engine/list_check.hpp"
#include "parallel/engine/replica_check.hpp"
#include "parallel/plan/run_plan.hpp"
#include "parallel/schedule/problems.hpp"
#include "parallel/schedule/schedule_file.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

/// How the ranks divide the work.
struct StagedLayout {
  const char* schedule;
  int pipeline, data, tensor;
  int chunks = 1;
  const char* exchange = "ddp";

  int ranks() const { return pipeline * data * tensor; }
};

/// Those of the matrix; the schedule "any" stands for every one that has one chunk per stage.
constexpr StagedLayout layouts[] = {
    {"any", 2, 1, 1},
    {"any", 3, 1, 1},
    {"any", 4, 1, 1},
    {"any", 2, 2, 1},
    {"any", 2, 1, 2},
    {"any", 2, 2, 1, 1, "zero1"},
    {"interleaved", 2, 1, 1, 2},
    {"interleaved", 4, 1, 1, 2},
    {"zero_bubble_v", 2, 1, 1},
    {"zero_bubble_v", 2, 2, 1, 1, "zero1"},
    {"zero_bubble_v", 4, 1, 1},
    {"zero_bubble", 2, 1, 1},
    {"file", 2, 1, 1, 2},
};
constexpr const char* one_chunk_each[] = {"accumulate", "gpipe", "1f1b", "zero_bubble"};

/// A run with stages, and how it differs from the others.
struct StagedCase {
  StagedLayout layout;
  std::string schedule;
  int micro_batches = 1;
  Recompute recompute = Recompute::none;
  DType dtype = DType::fp32;
  bool tied = false;
  bool is_uneven = false;
  bool has_experts = false;
  bool has_depths = false;

  std::string text() const {
    return fmt::format(
        "{} on {} x {} x {}, {} chunks each, {}, {} micro-batches, recompute {}, {}, {}, {}{}{}", schedule,
        layout.pipeline, layout.data, layout.tensor, layout.chunks, layout.exchange, micro_batches,
        static_cast<int>(recompute), name_of(dtype), tied ? "tied" : "untied", is_uneven ? "uneven" : "even",
        has_experts ? ", experts" : "", has_depths ? ", depths" : "");
  }
};

std::vector<StagedCase> all_cases(int ranks) {
  std::vector<StagedCase> cases;
  for (const StagedLayout& layout : layouts) {
    if (layout.ranks() != ranks) continue;
    std::vector<std::string> schedules = {layout.schedule};
    if (schedules.front() == "any") schedules.assign(std::begin(one_chunk_each), std::end(one_chunk_each));
    for (const std::string& schedule : schedules) {
      for (int m = 1; m <= 8; ++m) {
        if (schedule == "interleaved" && m % layout.pipeline != 0) continue;
        for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::block}) {
          for (const DType dtype : {DType::fp32, DType::bf16}) {
            for (const bool tied : {false, true}) {
              for (const bool is_uneven : {false, true}) {
                for (const bool has_experts : {false, true}) {
                  for (const bool has_depths : {false, true})
                    cases.push_back(
                        {layout, schedule, m, recompute, dtype, tied, is_uneven, has_experts, has_depths});
                }
              }
            }
          }
        }
      }
    }
  }
  return cases;
}

/// Some cases, drawn by the seed of the tests: 24, or as many as MYLOS_MATRIX says.
std::vector<StagedCase> some_cases(int ranks) {
  std::vector<StagedCase> cases = all_cases(ranks);
  const char* wanted = std::getenv("MYLOS_MATRIX");
  const std::size_t most = wanted != nullptr ? std::strtoul(wanted, nullptr, 10) : 24;
  std::mt19937 random(test::seed_of_tests());
  std::shuffle(cases.begin(), cases.end(), random);
  cases.resize(std::min(cases.size(), most));
  return cases;
}

/// The list of zero_bubble_v, whose chunks a file places as well.
std::string file_text(int pipeline, int micro_batches) {
  return schedule_text(find_kind(schedules(), "zero_bubble_v")
                           .make({.micro_batches = micro_batches, .stages = pipeline, .chunks = 2}));
}

class Stages : public testing::Test {
 protected:
  static RunConfig config(const StagedCase& own) {
    ModelConfig model;
    model.layers = 7;
    model.heads = 2;
    model.width = 32;
    model.context = 16;
    model.vocab = 131;
    model.dropout = 0.1F;
    model.tied = own.tied;
    if (own.has_experts) {
      model.experts = {.count = 4, .width = 48, .every = 2, .has_shared = true, .capacity = 1.25};
      model.experts.noise = RouterNoise::Kind::learned;
    }
    if (own.has_depths) model.depths = {.capacity = 0.4, .every = 3};
    const StagedLayout& layout = own.layout;
    RunConfig config = mini_config(model, std::int64_t{2} * layout.data * own.micro_batches, 16, layout.data,
                                   own.micro_batches);
    config.train.dtype = own.dtype;
    config.train.recompute = own.recompute;
    config.guard.clip_norm = 0.0F;
    config.parallel.tensor = layout.tensor;
    if (own.has_experts && layout.data % 2 == 0) config.parallel.expert = 2;
    if (layout.tensor > 1) config.parallel.splits = {.vocab = true, .sequence = !own.has_depths};
    const bool shards = std::string_view(layout.exchange) == "zero1";
    set_exchange(config, layout.exchange, shards ? layout.data : 1);
    return config;
  }
  /// The same with stages.
  static RunConfig staged(const StagedCase& own) {
    RunConfig run = config(own);
    run.parallel.pipeline = own.layout.pipeline;
    run.parallel.chunks = own.layout.chunks;
    run.parallel.schedule = &find_kind(schedules(), own.schedule);
    if (own.schedule == "file")
      run.parallel.schedule_file = file_text(own.layout.pipeline, own.micro_batches);
    const int chunks = run.parallel.scope(1).num_chunks();
    // The first chunk has the embedding only, the last the head only.
    if (own.is_uneven) {
      for (int chunk = 1; chunk < chunks; ++chunk)
        run.parallel.cuts.push_back(chunk + 1 == chunks ? 8 : chunk);
      if (chunks == 2) run.parallel.cuts = {own.micro_batches % 2 == 0 ? 1 : 8};
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const double time = 1.0 + chunk;
        run.parallel.times.push_back({.forward = time, .input = 2.0 * time, .weight = time});
      }
    }
    return run;
  }

  /// Losses and norms of some steps, and the weights of the rank's stage.
  struct Outcome {
    std::vector<float> losses, norms, scales;
    std::vector<int> skips;
    std::vector<float> statistics;  // of the last step, over all ranks
    std::map<std::string, std::vector<float>> weights;
  };
  Outcome train(const RunConfig& run, Communicator& ranks, int steps) {
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, ranks, run);
    check_lists(backend_, trainer.grid(), trainer.program());
    expect_planned(run, trainer, ledger);
    Outcome outcome;
    for (std::int64_t number = 1; number <= steps; ++number) {
      trainer.run(walk_tokens(run, number));
      const StepResults& results = trainer.read();
      const StepScalars& scalars = results.scalars;
      outcome.statistics = results.statistics;
      outcome.losses.push_back(scalars.loss);
      outcome.norms.push_back(scalars.gradient_norm);
      outcome.scales.push_back(scalars.loss_scale);
      outcome.skips.push_back(scalars.skip);
    }
    std::vector<float>& sums = outcome.statistics;
    ranks.all_reduce({sums.data(), DType::fp32, {std::ssize(sums)}}, ReduceOp::sum).host_wait();
    for (const Parameter& parameter : trainer.table().parameters())
      outcome.weights[parameter.name] = trainer.weight(parameter.name);
    const std::vector<StateHash> hashes = hash_states(backend_, trainer.state(), trainer.grid());
    EXPECT_EQ(compare_replicas(backend_, trainer.state(), trainer.grid(), hashes), "");
    return outcome;
  }

  /// The plan of this rank's program is what the ledger has.
  static void expect_planned(const RunConfig& run, const MiniTrainer& trainer, const MemoryLedger& ledger) {
    const RankProgram program(run, trainer.grid().coordinates());
    std::map<MemoryCategory, std::size_t> planned;
    for (const Storage& storage : program.storages().all()) {
      if (storage.persists && storage.within < 0) planned[storage.category] += storage.bytes;
    }
    for (const auto& [arena, bytes] : program.places().arenas()) planned[arena.category] += bytes;
    for (const MemoryCategory category : {MemoryCategory::parameters, MemoryCategory::gradients,
                                          MemoryCategory::optimizer, MemoryCategory::activations})
      EXPECT_EQ(ledger.current(category), planned[category]) << name_of(category);
  }

  /// `set` sets what the case does not say. Returns the outcome with stages.
  Outcome compare(const StagedCase& own, int steps, const std::function<void(RunConfig&)>& set = {}) {
    SCOPED_TRACE(own.text());
    RunConfig run = staged(own);
    RunConfig alone = config(own);
    if (set) {
      set(run);
      set(alone);
    }
    EXPECT_EQ(find_problems(run.parallel.schedules(own.micro_batches)), std::vector<std::string>());
    const Outcome divided = train(run, *world_, steps);
    const int of_stage = own.layout.data * own.layout.tensor;
    const auto stage = world_->split(world_->rank() / of_stage, world_->rank() % of_stage);
    const Outcome whole = train(alone, of_stage == 1 ? *self_ : *stage, steps);
    EXPECT_EQ(divided.scales, whole.scales);
    EXPECT_EQ(divided.skips, whole.skips);
    for (std::size_t i = 0; i < whole.losses.size(); ++i) {
      const double tolerance = own.dtype == DType::fp32 ? 2e-5 : 2e-2;
      if (whole.skips[i] != 0) continue;
      EXPECT_NEAR(divided.losses[i] / whole.losses[i], 1.0, own.tied ? tolerance : 0.0);
      EXPECT_NEAR(divided.norms[i] / whole.norms[i], 1.0, own.tied ? tolerance : 1e-6);
    }
    EXPECT_FALSE(divided.weights.empty());
    EXPECT_EQ(divided.statistics.empty(), !own.has_experts && !own.has_depths);
    EXPECT_EQ(divided.statistics.size(), whole.statistics.size());
    for (std::size_t i = 0; i < divided.statistics.size() && !own.tied; ++i)
      EXPECT_NEAR(divided.statistics[i], whole.statistics[i], 1e-6F * whole.statistics[i]) << i;
    if (own.tied) return divided;
    for (const auto& [name, weights] : divided.weights) EXPECT_EQ(weights, whole.weights.at(name)) << name;
    return divided;
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
};

TEST_F(Stages, ComputeWhatOneStageDoes) {
  const int steps = std::getenv("MYLOS_MATRIX") != nullptr ? 20 : 3;
  for (const StagedCase& own : some_cases(world_->size())) {
    if (world_->rank() == 0) fmt::print("  {}\n", own.text());
    compare(own, steps);
    if (HasFatalFailure()) return;
  }
}

/// Weights without a master are rounded at random, and a step whose gradients overflow on one stage is
/// skipped on all.
TEST_F(Stages, KeepEveryStateOfTheOptimizer) {
  if (world_->size() < 2 || world_->size() > 4) GTEST_SKIP() << "needs 2 to 4 ranks";
  for (const char* schedule : {"1f1b", "zero_bubble"}) {
    const StagedCase own{
        .layout = {schedule, world_->size(), 1, 1}, .schedule = schedule, .micro_batches = 4};
    for (const DType dtype : {DType::fp16, DType::bf16}) {
      compare(own, 3, [&](RunConfig& run) {
        run.train.dtype = dtype;
        run.train.grad_dtype = dtype;
        run.train.loss_scale = dtype == DType::fp16 ? 1024.0F : 1.0F;
        run.optimizer.keeps_master = false;
        run.optimizer.seed = 2;
      });
    }
    const Outcome scaled = compare(own, 6, [](RunConfig& run) {
      run.train.dtype = DType::fp16;
      run.train.loss_scale = 0x1p24F;
      run.guard.scale_window = 2;
    });
    EXPECT_TRUE(std::ranges::count(scaled.skips, 0) > 0 && scaled.skips.front() != 0);
    compare(own, 3, [](RunConfig& run) { run.optimizer = optimizer_config("sgd"); });
  }
}

/// A tied matrix is a copy on both ends, and the norm counts it once.
TEST_F(Stages, KeepOneTiedMatrix) {
  if (world_->size() < 2 || world_->size() > 4) GTEST_SKIP() << "needs 2 to 4 ranks";
  const StagedCase own{
      .layout = {"1f1b", world_->size(), 1, 1}, .schedule = "1f1b", .micro_batches = 4, .tied = true};
  const RunConfig run = staged(own);
  MemoryLedger ledger;
  MiniTrainer trainer(backend_, ledger, *world_, run);
  EXPECT_EQ(trainer.table().num_parameters(), parameters_of(run.model).num_parameters());
  trainer.step(walk_tokens(run, 1));
  const bool is_end = world_->rank() == 0 || world_->rank() + 1 == world_->size();
  const auto& parameters = trainer.table().parameters();
  const bool has_matrix = std::ranges::find(parameters, "wte.weight", &Parameter::name) != parameters.end();
  EXPECT_EQ(has_matrix, is_end);
  // A copy that differs is found, on whichever stage.
  for (const int stage : {0, world_->size() - 1}) {
    std::vector<float> saved;
    const auto flip = [&] {
      if (world_->rank() != stage) return;
      const RankState& state = trainer.state();
      for (std::size_t i = 0; i < state.owned().size(); ++i) {
        if (trainer.table().unit(state.owned()[i].unit).name != "tied matrix") continue;
        const TensorRef value = state.weights(state.owned()[i]).flat(5, 1);
        const float flipped = -floats_on_host(backend_, value).front();
        backend_.copy_to_device(&flipped, value.data, value.bytes());
        backend_.synchronize();
      }
    };
    flip();
    const std::vector<StateHash> hashes = hash_states(backend_, trainer.state(), trainer.grid());
    const std::string problem = compare_replicas(backend_, trainer.state(), trainer.grid(), hashes);
    EXPECT_NE(problem.find("wte.weight differs between replicas"), std::string::npos) << problem;
    flip();
  }
}

/// The norm is summed in another order, so that clipped steps agree to rounding.
TEST_F(Stages, ClipByTheNormOfTheWholeModel) {
  if (world_->size() < 2 || world_->size() > 4) GTEST_SKIP() << "needs 2 to 4 ranks";
  const StagedCase own{.layout = {"1f1b", world_->size(), 1, 1}, .schedule = "1f1b", .micro_batches = 4};
  RunConfig alone = config(own);
  RunConfig divided = staged(own);
  for (RunConfig* run : {&alone, &divided}) {
    run->guard.clip_norm = 0.1F;
    run->optimizer = optimizer_config("sgd");
  }
  const Outcome whole = train(alone, *self_, 3);
  for (const auto& [name, weights] : train(divided, *world_, 3).weights) {
    for (std::size_t i = 0; i < weights.size(); ++i)
      ASSERT_NEAR(weights[i], whole.weights.at(name)[i], 1e-6) << name << " " << i;
  }
}

/// What happened to the messages of a rank, in order: "begin", "post 3", "end", "pass", "await 3".
struct MessageEvent {
  enum class Kind : std::uint8_t { begin, post, end, pass, await } kind;
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
  void begin_messages() override {
    events.push_back({MessageEvent::Kind::begin, -1});
    next().begin_messages();
  }
  void end_messages() override {
    events.push_back({MessageEvent::Kind::end, -1});
    next().end_messages();
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

/// Groups of messages end also where some of their messages belong to no step of the run.
TEST_F(Stages, GroupsOfMessagesEndWhenAPipelineFillsAndDrains) {
  if (world_->size() < 2 || world_->size() > 4) GTEST_SKIP() << "needs 2 to 4 ranks";
  RunConfig run = staged({.layout = {"1f1b", world_->size(), 1, 1}, .schedule = "1f1b", .micro_batches = 2});
  run.parallel.schedule = &find_kind(schedules(), "pipedream");
  run.parallel.values.set("parallel.vertical_sync", false);
  NotedMessages noted{NextCommunicator(*world_)};
  MemoryLedger ledger;
  TrafficCounter traffic;
  Trace trace(backend_);
  const ProcessGrid grid(noted, run.parallel.extents(), run.groups(), traffic, nullptr);
  const RankProgram program(run, grid.coordinates());
  TrainingStep training(backend_, ledger, grid, program, trace);
  training.initialise();
  class OnesDriver final : public StepDriver {
   public:
    void read_samples(std::int64_t, std::int64_t, std::span<std::int32_t> tokens) override {
      std::ranges::fill(tokens, 1);
    }
  } driver;
  events.clear();
  for (const std::int64_t step : {1, 2, 3, 4}) {
    training.run(step, step <= 3 ? 3 : 4, driver);
    training.read_results();
  }
  bool is_in_group = false;
  int posted = 0;
  int awaited = 0;
  for (const MessageEvent& event : events) {
    using enum MessageEvent::Kind;
    EXPECT_EQ(is_in_group, event.kind == post || event.kind == end);
    if (event.kind == begin || event.kind == end) is_in_group = event.kind == begin;
    posted += event.kind == post ? 1 : 0;
    awaited += event.kind == await ? 1 : 0;
  }
  EXPECT_FALSE(is_in_group);
  EXPECT_EQ(awaited, posted) << "nothing is under way after a drain";
  const bool is_end = world_->rank() == 0 || world_->rank() + 1 == world_->size();
  EXPECT_EQ(posted, 4 * 2 * (is_end ? 2 : 4));
}

/// Every message is awaited within the step, outside the group in which it is posted, and most are under way
/// during a pass that does not use them. Middle stages read no samples.
TEST_F(Stages, MessagesAreUnderWayDuringPasses) {
  if (world_->size() < 2 || world_->size() > 4) GTEST_SKIP() << "needs 2 to 4 ranks";
  constexpr int micro_batches = 6;
  const StagedCase own{
      .layout = {"1f1b", world_->size(), 1, 1}, .schedule = "1f1b", .micro_batches = micro_batches};
  const RunConfig run = staged(own);
  NotedMessages noted{NextCommunicator(*world_)};
  MemoryLedger ledger;
  TrafficCounter traffic;
  Trace trace(backend_);
  const ProcessGrid grid(noted, run.parallel.extents(), run.groups(), traffic, nullptr);
  const RankProgram program(run, grid.coordinates());
  TrainingStep training(backend_, ledger, grid, program, trace);
  training.initialise();
  class NotedPasses final : public StepDriver {
   public:
    void read_samples(std::int64_t, std::int64_t, std::span<std::int32_t> tokens) override {
      std::ranges::fill(tokens, 1);
      ++num_reads;
    }
    int num_reads = 0;
    void before(const Action& action, std::int64_t /*step*/) override {
      if (is_of_micro_batch(action.kind) && !is_message(action.kind))
        events.push_back({MessageEvent::Kind::pass, -1});
    }
  } driver;
  events.clear();
  training.run(1, 1, driver);
  training.read_results();
  EXPECT_GT(training.results().idle_seconds, 0.0) << "the wait for the first message";
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
    // A pass that does not use the message begins before the one that does.
    overlapped += passes >= 2 ? 1 : 0;
  }
  int groups = 0;
  bool is_in_group = false;
  for (const MessageEvent& event : events) {
    using enum MessageEvent::Kind;
    EXPECT_EQ(is_in_group, event.kind == post || event.kind == end);
    if (event.kind == begin) ++groups;
    if (event.kind == begin || event.kind == end) is_in_group = event.kind == begin;
  }
  EXPECT_FALSE(is_in_group);
  EXPECT_LT(groups, messages) << "a group may have a message for each neighbour";
  const bool is_outer = world_->rank() == 0 || world_->rank() + 1 == world_->size();
  EXPECT_EQ(driver.num_reads, is_outer ? micro_batches : 0);
  EXPECT_EQ(messages, (is_outer ? 2 : 4) * micro_batches);
  EXPECT_GE(overlapped, micro_batches / 2);
}

/// One stage has the embedding alone, so the other needs more.
TEST_F(Stages, ThePlanIsOfTheStageThatNeedsTheMost) {
  if (world_->size() != 2) GTEST_SKIP() << "needs 2 ranks";
  for (const int first_of_second : {1, 7}) {
    RunConfig run = staged({.layout = {"1f1b", 2, 1, 1}, .schedule = "1f1b", .micro_batches = 4});
    run.parallel.cuts = {first_of_second};
    EXPECT_EQ(make_plan(run).rank, first_of_second == 1 ? 1 : 0);
  }
}

}  // namespace
}  // namespace mylos
