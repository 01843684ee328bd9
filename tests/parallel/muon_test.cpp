// SPDX-License-Identifier: BSD-3-Clause
// Muon in every layout: the losses of one rank that computes the same global batch alone, and memory and
// payload as planned.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/kinds.hpp"
#include "parallel/engine/list_check.hpp"
#include "parallel/engine/replica_check.hpp"
#include "parallel/plan/run_plan.hpp"
#include "tests/parallel/equivalence.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

OptimizerConfig muon(bool is_original = false) {
  OptimizerConfig optimizer = optimizer_config("muon");
  optimizer.values.set("optim.lr", 2e-3);
  optimizer.values.set("optim.muon_lr", is_original ? 5e-3 : 0.0);
  optimizer.values.set("optim.muon_scale", std::string(is_original ? "original" : "adamw"));
  return optimizer;
}

class Muon : public testing::Test {
 protected:
  static constexpr int steps = 6;

  int ranks() const { return world_->size(); }

  /// Two layers, whose matrices lie across the parts of most exchanges.
  ModelConfig model(bool has_experts = false) const {
    ModelConfig model;
    model.layers = 2;
    model.heads = ranks() == 8 ? 8 : 6;
    model.width = 48;
    model.feed_forward = 72;
    model.context = 16;
    model.vocab = 97;
    model.dropout = 0.1F;
    if (has_experts)
      model.experts = {.count = 4, .width = 24, .every = 2, .has_shared = true, .capacity = 1.25};
    return model;
  }

  RunConfig whole(bool has_experts = false) const {
    RunConfig config = mini_config(model(has_experts), 24, 16);
    config.guard.clip_norm = 0.7F;
    config.lr.peak = 2e-3;
    config.optimizer = muon(has_experts);
    return config;
  }

  /// Losses and norms; checks lists, memory, payload and replicas on the way.
  std::vector<StepScalars> train(const RunConfig& config, Communicator& world) {
    MemoryLedger ledger;
    MiniTrainer trainer(backend_, ledger, world, config);
    check_lists(backend_, trainer.grid(), trainer.program());
    for (const MemoryCategory category : {MemoryCategory::optimizer, MemoryCategory::activations}) {
      std::size_t planned = 0;
      for (const Storage& storage : trainer.program().storages().all())
        planned += storage.persists && storage.within < 0 && storage.category == category ? storage.bytes : 0;
      for (const auto& [arena, bytes] : trainer.program().places().arenas())
        planned += arena.category == category ? bytes : 0;
      EXPECT_EQ(ledger.current(category), planned) << name_of(category);
    }
    std::vector<StepScalars> outcome;
    for (std::int64_t step = 1; step <= steps; ++step) {
      const std::uint64_t before = sent(trainer);
      outcome.push_back(trainer.step(walk_tokens(config, step)));
      std::uint64_t planned = 0;
      trainer.program().for_each_step_entry([&](const Action&, const Entry& entry, std::size_t times) {
        const std::optional<ListedCall> call = listed_call(entry);
        if (call && trainer.grid().coordinates().extent(call->group) > 1)
          planned += times * call->payload_bytes;
      });
      // The first step awaits no gather of the step before.
      if (step > 1) {
        EXPECT_EQ(sent(trainer) - before, planned) << "step " << step;
      }
    }
    backend_.synchronize();
    EXPECT_EQ(compare_replicas(backend_, trainer.state(), trainer.grid(),
                               hash_states(backend_, trainer.state(), trainer.grid())),
              "");
    return outcome;
  }

  static std::uint64_t sent(MiniTrainer& trainer) {
    std::uint64_t bytes = 0;
    for (const TrafficRow& row : trainer.traffic().table()) bytes += row.payload_bytes;
    return bytes;
  }

  std::vector<StepScalars> alone(RunConfig config) {
    config.train.micro_batch = config.train.global_batch;
    config.train.accumulation = 1;
    config.train.recompute = Recompute::none;
    config.parallel = whole().parallel;
    return train(config, *self_);
  }

  static void expect_near(const std::vector<StepScalars>& outcome, const std::vector<StepScalars>& oracle) {
    for (std::size_t i = 0; i < oracle.size(); ++i) {
      EXPECT_NEAR(outcome[i].loss / oracle[i].loss, 1.0, 2e-5) << "step " << i + 1;
      EXPECT_NEAR(outcome[i].gradient_norm / oracle[i].gradient_norm, 1.0, 2e-4) << "step " << i + 1;
    }
  }

  /// Calls visit(config) for each division of the ranks among stages, the tensor axis and the data axis, and
  /// for each exchange of these, with splits, accumulation and recomputation in turn.
  template <class Visit>
  void for_all_layouts(bool has_experts, const Visit& visit) {
    int turn = 0;
    for (const int stages : {1, 2}) {
      for (int tensor = 1; tensor * stages <= ranks(); ++tensor) {
        const int data = ranks() / stages / tensor;
        if (stages * tensor * data != ranks() || model().heads % tensor != 0 || 24 % data != 0) continue;
        for (const std::string exchange : {"ddp", "zero1", "zero2", "zero3"}) {
          if (exchange != "ddp" && data == 1) continue;
          if (stages == 2 && exchange > "zero1") continue;
          for (const int shard : {data, 2}) {
            const bool is_hybrid = shard != data;
            if (is_hybrid && (exchange == "ddp" || data <= 2 || data % 2 != 0)) continue;
            for (const int expert : {1, 2}) {
              if (expert == 2 && (!has_experts || data % 2 != 0 || (exchange != "ddp" && shard % 2 != 0)))
                continue;
              const int accumulation = stages == 2 || turn % 2 == 1 ? (24 / data) % 2 == 0 ? 2 : 1 : 1;
              RunConfig config = whole(has_experts);
              config.train.accumulation = accumulation;
              config.train.micro_batch = 24 / data / accumulation;
              config.train.recompute = turn % 3 == 2 ? Recompute::block : Recompute::none;
              config.parallel.data = data;
              config.parallel.tensor = tensor;
              config.parallel.expert = expert;
              if (tensor > 1)
                config.parallel.splits = {.vocab = turn % 2 == 0, .sequence = turn / 2 % 2 == 0};
              set_exchange(config, exchange, exchange == "ddp" ? 1 : shard);
              config.parallel.pipeline = stages;
              if (stages == 2) config.parallel.schedule = &find_kind(schedules(), "1f1b");
              ++turn;
              SCOPED_TRACE(
                  fmt::format("{} stages x tensor {} x data {}, {} among {}, expert {}, {} micro-batches",
                              stages, tensor, data, exchange, shard, expert, accumulation));
              visit(config);
            }
          }
        }
      }
    }
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
};

TEST_F(Muon, EveryLayoutComputesWhatOneRankDoes) {
  const std::vector<StepScalars> oracle = alone(whole());
  EXPECT_LT(oracle.back().loss, oracle.front().loss);
  for_all_layouts(false, [&](const RunConfig& config) { expect_near(train(config, *world_), oracle); });
}

TEST_F(Muon, EveryLayoutOfExpertsComputesWhatOneRankDoes) {
  const std::vector<StepScalars> oracle = alone(whole(true));
  for_all_layouts(true, [&](const RunConfig& config) { expect_near(train(config, *world_), oracle); });
}

TEST_F(Muon, TrainsInNarrowTypes) {
  const std::vector<StepScalars> oracle = alone(whole());
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const bool has_master : {true, false}) {
      for_all_layouts(false, [&](RunConfig config) {
        if (config.parallel.pipeline > 1) return;
        config.train.dtype = config.train.grad_dtype = dtype;
        config.train.loss_scale = dtype == DType::fp16 ? 1024.0F : 1.0F;
        config.optimizer.keeps_master = has_master;
        const std::vector<StepScalars> outcome = train(config, *world_);
        for (std::size_t i = 0; i < oracle.size(); ++i)
          EXPECT_NEAR(outcome[i].loss / oracle[i].loss, 1.0, 5e-3) << "step " << i + 1;
      });
    }
  }
}

/// An owner's results leave it once, however many ranks hold copies.
TEST_F(Muon, NeedsNoMoreOfARankIfThereAreMoreOfThem) {
  if (ranks() > 1) GTEST_SKIP() << "plans alone";
  const auto needs_of = [&](int data) {
    RunConfig config = whole();
    config.train.global_batch = data;
    config.train.micro_batch = config.train.accumulation = 1;
    config.parallel.data = data;
    std::size_t most = 0;
    std::uint64_t sent = 0;
    for (const int rank : {0, data / 2, data - 1}) {
      const RankProgram program(config, config.parallel.coordinates(rank));
      for (const auto& [arena, bytes] : program.places().arenas())
        most = std::max(most, arena.category == MemoryCategory::activations ? bytes : 0);
      std::uint64_t own = 0;
      program.for_each_step_entry([&](const Action&, const Entry& entry, std::size_t times) {
        const std::optional<ListedCall> call = listed_call(entry);
        if (call && call->operation == CommOperation::broadcast) own += times * call->payload_bytes;
      });
      sent = std::max(sent, own);
    }
    return std::pair(most, sent);
  };
  const auto [few_bytes, few_sent] = needs_of(8);
  const auto [many_bytes, many_sent] = needs_of(256);
  EXPECT_LE(many_bytes, few_bytes);
  EXPECT_EQ(many_sent, few_sent);
  const RankProgram alone(whole(), Coordinates());
  std::int64_t elements = 0;
  for (const Parameter& parameter : alone.table().parameters())
    elements += parameter.is_matrix ? parameter.size() : 0;
  EXPECT_EQ(many_sent, 4 * static_cast<std::uint64_t>(elements));
}

/// Of matrices one state, of everything else two.
TEST_F(Muon, KeepsOneStateOfMatrices) {
  RunConfig config = whole();
  config.parallel.data = ranks();
  config.train.micro_batch = 24 / ranks();
  if (24 % ranks() != 0) GTEST_SKIP() << "an uneven batch";
  const RankProgram program(config, config.parallel.coordinates(world_->rank()));
  std::int64_t states = 0;
  for (const Parameter& parameter : program.table().parameters())
    states += parameter.padded_size() * (parameter.is_matrix ? 1 : 2);
  std::int64_t kept = 0;
  for (const Storage& storage : program.storages().all())
    kept += storage.category == MemoryCategory::optimizer ? static_cast<std::int64_t>(storage.bytes) : 0;
  EXPECT_GE(kept, 4 * states);
  EXPECT_LE(kept, 4 * states + 4 * 64 * 2 * std::ssize(program.table().parameters()));
}

}  // namespace
}  // namespace mylos
