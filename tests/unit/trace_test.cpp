// SPDX-License-Identifier: BSD-3-Clause
// The trace of a training step: operations by name, and linear layers also by shape, one after the other,
// inside the step and its phases.
#include "core/trace/trace.hpp"

#include <algorithm>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

using testing::IsEmpty;

class TraceTest : public testing::Test {
 protected:
  static RunConfig config() {
    ModelConfig model;
    model.layers = 3;
    model.heads = 4;
    model.width = 64;
    model.context = 64;
    model.vocab = 257;
    return mini_config(model, 8, 64, 1, 2);
  }

  void step(bool is_traced) {
    if (is_traced) trainer_.trace().start();
    trainer_.step(walk_tokens(config(), 1));
    trainer_.trace().stop();
  }

  std::span<const TraceEvent> events() { return trainer_.trace().events(); }
  /// The only phase of this name.
  TraceEvent phase(std::string_view name) {
    const auto is_it = [&](const TraceEvent& event) {
      return event.kind == TraceKind::phase && event.name == name;
    };
    EXPECT_EQ(std::ranges::count_if(events(), is_it), 1) << name;
    return *std::ranges::find_if(events(), is_it);
  }

  ComputeBackend& backend_ = test_backends().at("kokkos");
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  MemoryLedger ledger_;
  MiniTrainer trainer_{backend_, ledger_, *self_, config()};
};

TEST_F(TraceTest, IsEmptyUnlessStarted) {
  step(false);
  EXPECT_THAT(events(), IsEmpty());
  step(true);
  EXPECT_GT(events().size(), 100U);
  const std::size_t before = events().size();
  step(false);
  EXPECT_EQ(events().size(), before);
}

TEST_F(TraceTest, NamesEveryOperationAndCountsItsCalls) {
  step(true);
  std::map<std::string, std::int64_t> calls;
  for (const OperationTime& operation : profile_of(trainer_.trace()).operations)
    calls[operation.label] = operation.calls;
  constexpr std::int64_t layers = 3;
  constexpr std::int64_t micro_batches = 2;
  // Fused operations appear as their parts, because the backend has no kernels for them.
  const std::map<std::string, std::int64_t> per_micro_batch = {
      {"linear_forward 64x192 (kokkos)", layers},
      {"linear_forward 64x64 (kokkos)", layers},
      {"linear_forward 64x256 (kokkos)", layers},
      {"linear_forward 256x64 (kokkos)", layers},
      {"linear_backward_input 64x192 (kokkos)", layers},
      {"linear_backward_input 256x64 (kokkos)", layers},
      {"linear_backward_weight 256x64 (kokkos)", layers},
      {"linear_forward 64x384 (kokkos)", 1},
      {"linear_backward_input 64x384 (kokkos)", 1},
      {"linear_backward_weight 64x384 (kokkos)", 1},
      {"attention_forward (kokkos)", layers},
      {"attention_backward (kokkos)", layers},
      {"gelu_forward (kokkos)", layers},
      {"gelu_backward (kokkos)", layers},
      {"layernorm_forward (kokkos)", 2 * layers + 1},
      {"layernorm_backward_input (kokkos)", 2 * layers + 1},
      {"layernorm_backward_weight (kokkos)", 2 * layers + 1},
      {"dropout_add (kokkos)", 2 * layers},
      {"embedding_forward (kokkos)", 1},
      {"embedding_backward (kokkos)", 1},
      {"cross_entropy (kokkos)", 1},
      {"sum (kokkos)", 1},
      {"read_samples", 1}};
  for (const auto& [label, count] : per_micro_batch) EXPECT_EQ(calls[label], micro_batches * count) << label;
  EXPECT_EQ(calls["guard_step (kokkos)"], 1);
  EXPECT_GE(calls["adamw (kokkos)"], 1);
  EXPECT_GE(calls["copy_to_device"], 2 * micro_batches);
}

TEST_F(TraceTest, EventsFollowOneAnotherInsideTheirPhases) {
  step(true);
  const TraceEvent whole = phase(whole_step);
  const TraceEvent optimizer = phase("optimizer");
  std::int64_t last_end = 0;
  for (const TraceEvent& event : events()) {
    EXPECT_LE(whole.begin, event.begin);
    EXPECT_LE(event.begin, event.end);
    EXPECT_LE(event.end, whole.end);
    if (event.kind == TraceKind::phase) continue;
    EXPECT_LE(last_end, event.begin) << event.label();
    last_end = event.end;
    if (event.name == "adamw") {
      EXPECT_TRUE(optimizer.begin <= event.begin && event.end <= optimizer.end);
    }
  }
}

TEST_F(TraceTest, ProfilesTheStepWithTheLongestOperationsFirst) {
  step(true);
  const StepProfile profile = profile_of(trainer_.trace());
  EXPECT_GT(profile.covered(), 0.0);
  EXPECT_LE(profile.covered(), profile.seconds);
  EXPECT_TRUE(std::ranges::is_sorted(profile.operations, std::ranges::greater(), &OperationTime::seconds));
}

TEST_F(TraceTest, CountsTheEventsThatItHasNoRoomFor) {
  trainer_.trace().start(10);
  trainer_.step(walk_tokens(config(), 1));
  trainer_.trace().stop();
  EXPECT_GT(trainer_.trace().num_lost(), 100);
  EXPECT_LE(std::ranges::count_if(events(), [](const TraceEvent& e) { return e.kind != TraceKind::phase; }),
            10);
  EXPECT_EQ(events().back().name, whole_step);
  EXPECT_GT(profile_of(trainer_.trace()).seconds, 0.0);
}

TEST_F(TraceTest, DoesNotChangeTheNumbers) {
  MiniTrainer plain(backend_, ledger_, *self_, config());
  for (std::int64_t i = 1; i <= 3; ++i) {
    const std::vector<std::int32_t> tokens = walk_tokens(config(), i);
    trainer_.trace().start();
    const StepScalars traced = trainer_.step(tokens);
    const StepScalars untraced = plain.step(tokens);
    EXPECT_EQ(traced.loss, untraced.loss);
    EXPECT_EQ(traced.gradient_norm, untraced.gradient_norm);
  }
  EXPECT_EQ(trainer_.weight("wte.weight"), plain.weight("wte.weight"));
}

}  // namespace
}  // namespace mylos
