// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous pipelines against a loop in one process that keeps all versions of the weights, and against
// one rank that emulates the stages.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/kinds.hpp"
#include "parallel/engine/list_check.hpp"
#include "parallel/engine/training_step.hpp"
#include "parallel/schedule/problems.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/seed.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

struct AsynchronousCase {
  std::string rule;  ///< "stashing", "vertical" or "2bw"
  int stages = 2;
  int step = 1;  ///< A, micro-batches
  int data = 1;
  std::vector<int> replicas{};  ///< unequal ones
  int tensor = 1;
  int expert = 1;  ///< ranks that divide the experts
  bool is_uneven = false;
  std::string optimizer = "adamw";
  DType dtype = DType::fp32;
  Recompute recompute = Recompute::none;
  bool has_master = true;
  bool is_routed = false;  ///< has experts and routed blocks

  std::string text() const {
    return fmt::format("{}, {} stages x {}, A = {}, {}, {}, {}, recompute {}, {}{}", rule, stages, data, step,
                       is_uneven ? "uneven" : "even", optimizer, name_of(dtype), static_cast<int>(recompute),
                       has_master ? "master" : "no master", is_routed ? ", routed" : "");
  }
  /// The delay of a stage, by the definition.
  std::int64_t delay(int stage) const {
    if (rule == "2bw") return step;
    std::vector<int> own = replicas;
    if (own.empty()) own.assign(static_cast<std::size_t>(stages), data);
    std::vector<int> delays(own.size());
    int in_flight = 1;
    for (std::size_t s = own.size(); s-- > 0;) {
      if (s + 1 < own.size()) in_flight = (own[s + 1] * in_flight + own[s] - 1) / own[s] + 1;
      delays[s] = own[s] == 1 ? in_flight - 1 : in_flight * own[s];
    }
    return rule == "vertical" ? *std::ranges::max_element(delays) : delays[static_cast<std::size_t>(stage)];
  }
};

using Values = std::vector<std::byte>;

class Asynchronous : public testing::Test {
 protected:
  static RunConfig base(const AsynchronousCase& own) {
    ModelConfig model;
    model.layers = 5;
    model.heads = 2;
    model.width = 32;
    model.context = 16;
    model.vocab = 131;
    model.dropout = 0.1F;
    model.tied = false;
    if (own.is_routed) {
      model.experts = {.count = own.expert == 1 ? 3 : 4, .width = 40, .every = 3, .capacity = 1.25};
      model.depths = {.capacity = 0.4, .every = 2};
    }
    RunConfig run = mini_config(model, std::int64_t{2} * own.step, 16, own.data, own.step / own.data);
    run.parallel.expert = own.expert;
    run.lr.peak = 0.02;
    run.train.dtype = own.dtype;
    run.train.recompute = own.recompute;
    run.train.loss_scale = own.dtype == DType::fp16 ? 64.0F : 1.0F;
    run.optimizer = optimizer_config(own.optimizer);
    run.optimizer.keeps_master = own.has_master;
    run.guard.clip_norm = 0.0F;
    run.parallel.values.set("parallel.vertical_sync", own.rule == "vertical");
    return run;
  }
  static std::vector<int> cuts_of(const AsynchronousCase& own) {
    constexpr int blocks = 7;  // with the embedding and the head
    std::vector<int> cuts;
    for (int stage = 1; stage < own.stages; ++stage)
      cuts.push_back(own.is_uneven ? stage : stage * blocks / own.stages);
    if (own.is_uneven) cuts.back() = blocks - 1;
    return cuts;
  }
  static RunConfig staged(const AsynchronousCase& own) {
    RunConfig run = base(own);
    run.parallel.pipeline = own.stages;
    run.parallel.replicas = own.replicas;
    run.parallel.tensor = own.tensor;
    run.parallel.cuts = cuts_of(own);
    run.parallel.schedule = &find_kind(schedules(), own.rule == "2bw" ? "pipedream_2bw" : "pipedream");
    return run;
  }
  static RunConfig emulated(const AsynchronousCase& own) {
    RunConfig run = staged(own);
    run.parallel.pipeline = 1;
    run.parallel.emulated_stages = own.stages;
    return run;
  }

  struct Outcome {
    std::vector<float> losses, norms;
    std::vector<int> skips;
    std::vector<float> statistics;  // of the last step
    std::map<std::string, std::vector<float>> weights;
  };

  /// Reads the samples of a step from those of a walk.
  class Walk : public StepDriver {
   public:
    explicit Walk(const RunConfig& run) : run_(run) {}
    void read_samples(std::int64_t step, std::int64_t first, std::span<std::int32_t> tokens) override {
      const std::vector<std::int32_t> all = walk_tokens(run_, step);
      const auto begin = all.begin() + first * (run_.train.seq_len + 1);
      std::copy_n(begin, tokens.size(), tokens.begin());
    }

   protected:
    const RunConfig& run_;
  };

  /// One rank's run. `pauses` says after which steps nothing is under way.
  struct Rank {
    Rank(ComputeBackend& compute, Communicator& ranks, const RunConfig& config)
        : backend(compute),
          run(config),
          trace(compute),
          grid(ranks, run.parallel.extents(), run.groups(), traffic, nullptr),
          program(run, grid.coordinates()),
          training(compute, ledger, grid, program, trace) {
      training.initialise();
    }
    StepScalars step(std::int64_t number, std::int64_t last, StepDriver& driver) {
      training.run(number, last, driver);
      training.read_results();
      return training.results().scalars;
    }
    Outcome outcome(std::vector<StepScalars> scalars) {
      Outcome out;
      for (const StepScalars& own : scalars) {
        out.losses.push_back(own.loss);
        out.norms.push_back(own.gradient_norm);
        out.skips.push_back(own.skip);
      }
      out.statistics = training.results().statistics;
      for (std::size_t i = 0; i < training.state().owned().size(); ++i) {
        for (const Piece& piece : pieces_of(program.table(), training.state().owned()[i])) {
          out.weights[piece.parameter.name] =
              floats_on_host(backend, training.state().master(i).flat(piece.offset, piece.count));
        }
      }
      return out;
    }

    ComputeBackend& backend;
    RunConfig run;
    MemoryLedger ledger;
    TrafficCounter traffic;
    Trace trace;
    ProcessGrid grid;
    RankProgram program;
    TrainingStep training;
  };

  Outcome train(const RunConfig& config, Communicator& ranks, int steps,
                const std::function<bool(std::int64_t)>& pauses) {
    Rank rank(backend_, ranks, config);
    check_lists(backend_, rank.grid, rank.program);
    Walk walk(rank.run);
    std::vector<StepScalars> scalars;
    for (std::int64_t number = 1; number <= steps; ++number) {
      std::int64_t last = number;
      while (last < steps && !pauses(last)) ++last;
      scalars.push_back(rank.step(number, last, walk));
    }
    return rank.outcome(scalars);
  }

  /// The definition: one micro-batch after another through the whole model, before each of which every stage
  /// takes its weights from a map of all versions. Knows neither versions in memory nor a schedule.
  class Loop final : public Walk {
   public:
    Loop(const AsynchronousCase& own, Rank& rank) : Walk(rank.run), own_(own), rank_(rank) {
      const std::vector<int> cuts = cuts_of(own);
      for (int unit = 0; unit < rank.program.table().num_units(); ++unit) {
        const std::string& name = rank.program.table().unit(unit).name;
        const int block = name.starts_with("experts ") ? 1 + std::stoi(name.substr(8)) : unit;
        stages_.push_back(static_cast<int>(std::ranges::upper_bound(cuts, block) - cuts.begin()));
      }
      save(0);
    }
    std::int64_t now = 1;

    void before(const Action& action, std::int64_t /*step*/) override {
      for (std::size_t unit = 0; unit < stages_.size(); ++unit) {
        const std::int64_t newest = now - 1;
        if (action.kind == ActionKind::step) load(unit, newest);
        if (action.kind != ActionKind::forward) continue;
        const std::int64_t k = newest * own_.step + std::int64_t{action.micro_batch} * own_.data +
                               rank_.grid.coordinates().index(sample_axes);
        load(unit, std::max<std::int64_t>(0, k - own_.delay(stages_[unit])) / own_.step);
      }
      if (action.kind == ActionKind::step || action.kind == ActionKind::forward)
        rank_.training.state().publish();
    }
    void after(const Action& action, std::int64_t /*step*/) override {
      if (action.kind == ActionKind::step) save(now);
    }

   private:
    TensorRef weights(std::size_t unit) const {
      return rank_.training.state().weights(rank_.training.state().owned()[unit]);
    }
    void load(std::size_t unit, std::int64_t version) {
      const Values& values = versions_.at({unit, version});
      rank_.backend.copy_to_device(values.data(), weights(unit).data, values.size());
    }
    void save(std::int64_t version) {
      for (std::size_t unit = 0; unit < stages_.size(); ++unit) {
        const TensorRef from = weights(unit);
        Values& values = versions_[{unit, version}];
        values.resize(from.bytes());
        rank_.backend.copy_to_host(from.data, values.data(), values.size());
        rank_.backend.synchronize();
      }
    }

    const AsynchronousCase& own_;
    Rank& rank_;
    std::vector<int> stages_;  // by unit
    std::map<std::pair<std::size_t, std::int64_t>, Values> versions_;
  };

  Outcome loop(const AsynchronousCase& own, const RunConfig& config, Communicator& ranks, int steps) {
    Rank rank(backend_, ranks, config);
    Loop driver(own, rank);
    std::vector<StepScalars> scalars;
    for (driver.now = 1; driver.now <= steps; ++driver.now)
      scalars.push_back(rank.step(driver.now, driver.now, driver));
    return rank.outcome(scalars);
  }

  std::unique_ptr<Communicator> of_stage(const AsynchronousCase& own) {
    return world_->split(world_->rank() / own.data, world_->rank() % own.data);
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
};

std::vector<AsynchronousCase> asynchronous_cases(int ranks) {
  std::vector<AsynchronousCase> cases;
  for (const char* rule : {"stashing", "vertical", "2bw"}) {
    for (const int step : {1, 2, 3, 4, 8}) {
      if (std::string_view(rule) == "2bw" && step < ranks - 1) continue;
      for (const bool is_uneven : {false, true}) {
        for (const char* optimizer : {"adamw", "sgd"}) {
          for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::block}) {
            for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
              for (const bool has_master : {true, false}) {
                if (dtype == DType::fp32 && !has_master) continue;
                cases.push_back({.rule = rule,
                                 .stages = ranks,
                                 .step = step,
                                 .is_uneven = is_uneven,
                                 .optimizer = optimizer,
                                 .dtype = dtype,
                                 .recompute = recompute,
                                 .has_master = has_master,
                                 .is_routed = cases.size() % 2 == 1});
              }
            }
          }
        }
      }
    }
  }
  return cases;
}

/// Some cases, drawn by the seed of the tests: 16, or as many as MYLOS_MATRIX says.
std::vector<AsynchronousCase> drawn_cases(int ranks) {
  std::vector<AsynchronousCase> cases = asynchronous_cases(ranks);
  const char* wanted = std::getenv("MYLOS_MATRIX");
  const std::size_t most = wanted != nullptr ? std::strtoul(wanted, nullptr, 10) : 16;
  std::mt19937 random(test::seed_of_tests());
  std::shuffle(cases.begin(), cases.end(), random);
  cases.resize(std::min(cases.size(), most));
  return cases;
}

/// Weights are bitwise those of the loop, on stages and emulated, whenever the pipeline drains.
TEST_F(Asynchronous, ComputeWhatTheRuleSays) {
  if (world_->size() < 2 || world_->size() > 4) GTEST_SKIP() << "needs 2 to 4 ranks";
  const int steps = std::getenv("MYLOS_MATRIX") != nullptr ? 20 : 7;
  std::mt19937 random(test::seed_of_tests());
  for (const AsynchronousCase& own : drawn_cases(world_->size())) {
    SCOPED_TRACE(own.text());
    if (world_->rank() == 0) fmt::print("  {}\n", own.text());
    const RunConfig run = staged(own);
    std::vector<bool> drains(static_cast<std::size_t>(steps) + 1);
    for (auto&& drain : drains) drain = random() % 4 == 0;
    const auto is_drain = [&](std::int64_t step) { return drains[static_cast<std::size_t>(step)]; };
    const Outcome divided = train(run, *world_, steps, is_drain);
    const Outcome alone = train(emulated(own), *self_, steps, is_drain);
    const Outcome defined = loop(own, base(own), *self_, steps);
    for (const auto& [name, weights] : divided.weights) {
      EXPECT_EQ(weights, alone.weights.at(name)) << name;
      EXPECT_EQ(weights, defined.weights.at(name)) << name;
    }
    EXPECT_EQ(alone.losses, defined.losses);
    EXPECT_EQ(alone.statistics, defined.statistics);
    EXPECT_EQ(alone.statistics.empty(), !own.is_routed);
    for (std::size_t i = 0; i < divided.statistics.size(); ++i)
      EXPECT_TRUE(divided.statistics[i] == 0.0F || divided.statistics[i] == alone.statistics[i]) << i;
    const bool has_head = divided.weights.contains("ln_f.weight");
    EXPECT_EQ(has_head, world_->rank() + 1 == world_->size());
    EXPECT_EQ(divided.losses,
              has_head ? defined.losses : std::vector<float>(static_cast<std::size_t>(steps)));
    if (HasFailure()) return;
  }
}

/// Equal replicas of the stages take micro-batches in turn, and follow the rule of their later weights. So do
/// replicas that divide the experts: they exchange tokens within a pass.
TEST_F(Asynchronous, ComputeWhatTheRuleSaysWithReplicas) {
  if (world_->size() != 4) GTEST_SKIP() << "needs 4 ranks";
  constexpr int steps = 7;
  const auto stage = of_stage({.rule = "", .data = 2});
  const auto is_drain = [](std::int64_t number) { return number == 3; };
  for (const char* rule : {"stashing", "vertical", "2bw"}) {
    for (const int step : {2, 4, 8}) {
      if (std::string_view(rule) == "2bw" && step < 4) continue;
      for (const DType dtype : {DType::fp32, DType::bf16}) {
        for (const int expert : {0, 1, 2}) {
          AsynchronousCase own{.rule = rule, .step = step, .data = 2, .dtype = dtype};
          own.is_routed = expert > 0;
          own.expert = std::max(1, expert);
          if (own.is_routed) own.recompute = step == 4 ? Recompute::block : Recompute::none;
          SCOPED_TRACE(fmt::format("{}, expert {}", own.text(), own.expert));
          const Outcome divided = train(staged(own), *world_, steps, is_drain);
          const Outcome alone = train(emulated(own), *stage, steps, is_drain);
          const Outcome defined = loop(own, base(own), *stage, steps);
          for (const auto& [name, weights] : divided.weights) {
            EXPECT_EQ(weights, alone.weights.at(name)) << name;
            EXPECT_EQ(weights, defined.weights.at(name)) << name;
          }
          EXPECT_EQ(alone.losses, defined.losses);
        }
      }
    }
  }
}

/// Unequal replicas: their gradients are summed in another order than the loop's.
TEST_F(Asynchronous, ComputeWhatTheRuleSaysWithUnequalReplicas) {
  if (world_->size() < 3) GTEST_SKIP() << "needs 3 ranks or more";
  constexpr int steps = 20;
  const std::vector<AsynchronousCase> cases = {
      {.rule = "stashing", .stages = 2, .step = 4, .replicas = {2, 1}},
      {.rule = "stashing", .stages = 2, .step = 2, .replicas = {1, 2}},
      {.rule = "2bw", .stages = 2, .step = 6, .replicas = {2, 1}},
      {.rule = "vertical", .stages = 2, .step = 4, .replicas = {1, 2}},
      {.rule = "stashing", .stages = 2, .step = 6, .replicas = {3, 1}},
      {.rule = "stashing", .stages = 3, .step = 4, .replicas = {2, 1, 1}},
      {.rule = "2bw", .stages = 3, .step = 8, .replicas = {1, 2, 1}},
      {.rule = "stashing", .stages = 2, .step = 4, .replicas = {2, 1}, .tensor = 2}};
  for (const AsynchronousCase& one : cases) {
    // Rounding errors of gradients stay small with SGD, but AdamW's first steps do not depend on their size.
    for (const char* optimizer : {"adamw", "sgd"}) {
      AsynchronousCase own = one;
      own.optimizer = optimizer;
      RunConfig run = staged(own);
      RunConfig alone = base(own);
      run.lr.peak = alone.lr.peak = 2e-3;
      if (run.parallel.world_size() != world_->size()) continue;
      SCOPED_TRACE(own.text() + testing::PrintToString(own.replicas));
      const auto is_drain = [&](std::int64_t number) { return number == 3 || number == 11; };
      const Outcome divided = train(run, *world_, steps, is_drain);
      const Outcome defined = loop(own, alone, *self_, steps);
      const bool has_head = divided.weights.contains("ln_f.weight");
      for (std::size_t step = 0; step < steps && has_head; ++step)
        EXPECT_NEAR(divided.losses[step] / defined.losses[step], 1.0, 1e-5) << step + 1;
      for (const auto& [name, weights] : divided.weights) {
        const std::vector<float>& expected = defined.weights.at(name);
        if (weights.size() != expected.size() || own.optimizer != "sgd")
          continue;  // or divided by tensor ranks
        double most = 0.0;
        for (std::size_t i = 0; i < weights.size(); ++i)
          most = std::max(most, std::abs(static_cast<double>(weights[i]) - expected[i]));
        EXPECT_LT(most, 1e-5) << name;
      }
    }
  }
}

/// Every group in which a layout communicates has a communicator.
TEST_F(Asynchronous, CommunicateInGroupsOfTheGrid) {
  std::vector<AsynchronousCase> cases = {
      {.rule = "stashing", .step = 4, .data = 2, .tensor = 2},
      {.rule = "stashing", .step = 8, .data = 4, .expert = 2, .is_routed = true},
      {.rule = "stashing", .stages = 3, .step = 6, .replicas = {3, 1, 2}, .tensor = 2},
      {.rule = "stashing", .stages = 3, .step = 6, .tensor = 2}};
  for (const AsynchronousCase& own : cases) {
    SCOPED_TRACE(own.text());
    const RunConfig run = staged(own);
    for (int rank = 0; rank < run.parallel.world_size(); ++rank) {
      const Coordinates at = run.parallel.coordinates(rank);
      const std::vector<AxisSet> groups = ProcessGrid::distinct(at, run.groups());
      const RankProgram program(run, at);
      const auto check = [&](const Entry& entry) {
        const std::optional<ListedCall> call = listed_call(entry);
        if (!call) return;
        EXPECT_NE(std::ranges::find(groups, call->group.common(at.used_axes())), groups.end());
      };
      program.for_each_step_entry([&](const Action&, const Entry& entry, std::size_t) { check(entry); });
      for (const Pass& pass : program.evaluation().passes)
        for_each_entry(pass, program.pool(), [&](const Entry& entry, const EntryPlace&) { check(entry); });
    }
  }
}

/// The rules are different ones, and none is that of synchronous schedules.
TEST_F(Asynchronous, RulesDiffer) {
  std::vector<std::vector<float>> losses;
  for (const char* rule : {"stashing", "vertical", "2bw"}) {
    const AsynchronousCase own{.rule = rule, .stages = 3, .step = 3};
    losses.push_back(train(emulated(own), *self_, 6, [](std::int64_t) { return true; }).losses);
  }
  losses.push_back(
      train(base({.rule = "", .stages = 3, .step = 3}), *self_, 6, [](std::int64_t) { return true; }).losses);
  for (std::size_t i = 0; i < losses.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(losses[i], losses[j]) << i << ", " << j;
  }
}

/// A part of the model whose gradient is larger than the norm is scaled down alone, and one whose gradient is
/// not finite keeps its weights.
TEST_F(Asynchronous, ClipAndSkipByStage) {
  if (world_->size() < 2 || world_->size() > 4) GTEST_SKIP() << "needs 2 to 4 ranks";
  for (const char* rule : {"stashing", "2bw"}) {
    for (const float clip : {0.05F, 0.0F}) {
      AsynchronousCase own{.rule = rule, .stages = world_->size(), .step = 4, .dtype = DType::fp16};
      RunConfig divided = staged(own);
      RunConfig alone = emulated(own);
      for (RunConfig* run : {&divided, &alone}) {
        run->guard.clip_norm = clip;
        if (clip == 0.0F) run->train.loss_scale = 0x1p22F;  // overflows on some stages
      }
      const auto never = [](std::int64_t) { return false; };
      const Outcome of_stage = train(divided, *world_, 6, never);
      const Outcome all = train(alone, *self_, 6, never);
      for (const auto& [name, weights] : of_stage.weights) EXPECT_EQ(weights, all.weights.at(name)) << name;
      EXPECT_EQ(std::ranges::count(all.skips, 1) > 0, clip == 0.0F);
      if (clip == 0.0F) continue;
      RunConfig unclipped = emulated(own);
      EXPECT_NE(train(unclipped, *self_, 6, never).losses, all.losses);
    }
  }
}

/// The versions and activations that each rank keeps are those of the definition, and in the plan.
TEST_F(Asynchronous, KeepTheVersionsThatAreInUse) {
  if (world_->size() < 2 || world_->size() > 4) GTEST_SKIP() << "needs 2 to 4 ranks";
  const int stage = world_->rank();
  for (const AsynchronousCase& own : asynchronous_cases(world_->size())) {
    if (own.optimizer != "adamw" || own.recompute != Recompute::none || !own.has_master) continue;
    SCOPED_TRACE(own.text());
    const Rank rank(backend_, *world_, staged(own));
    const std::int64_t delay = own.delay(stage);
    const auto versions = static_cast<std::size_t>((delay + own.step - 1) / own.step + 1);
    std::size_t weights = 0;
    for (int unit = 0; unit < rank.program.table().num_units(); ++unit) {
      EXPECT_EQ(rank.program.versions_of_weights(unit).size(), versions);
      weights += static_cast<std::size_t>(rank.program.table().unit(unit).size) * size_of(own.dtype);
    }
    EXPECT_EQ(rank.ledger.current(MemoryCategory::parameters), weights);
    EXPECT_EQ(rank.ledger.current(MemoryCategory::weight_versions), (versions - 1) * weights);
    EXPECT_EQ(rank.program.places().num_slots(), own.stages - stage);
    std::map<MemoryCategory, std::size_t> planned;
    for (const Storage& storage : rank.program.storages().all()) {
      if (storage.persists && storage.within < 0) planned[storage.category] += storage.bytes;
    }
    for (const auto& [arena, bytes] : rank.program.places().arenas()) planned[arena.category] += bytes;
    for (const MemoryCategory category :
         {MemoryCategory::parameters, MemoryCategory::weight_versions, MemoryCategory::gradients,
          MemoryCategory::optimizer, MemoryCategory::activations})
      EXPECT_EQ(rank.ledger.current(category), planned[category]) << name_of(category);
  }
}

}  // namespace
}  // namespace mylos
