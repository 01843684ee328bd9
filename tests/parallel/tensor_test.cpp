// SPDX-License-Identifier: BSD-3-Clause
// Tensor parallelism, with every exchange along the data axis, against one rank that computes the same global
// batch alone.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/parallel/equivalence.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

/// Twelve heads: for 1, 2, 3, 4 and 6 ranks.
ModelConfig model_of_heads() {
  ModelConfig model = small_model();
  model.heads = 12;
  return model;
}

class Tensor : public testing::Test {
 protected:
  int ranks() const { return world_->size(); }

  /// Calls visit(config) for each way to divide the ranks along the tensor and data axes, if that is more
  /// than one, for each exchange, with `samples` samples per step.
  template <class Visit>
  void for_all_layouts(const ModelConfig& model, std::int64_t samples, std::int64_t accumulation,
                       const Visit& visit) {
    for (std::int64_t tensor = 2; tensor <= ranks(); ++tensor) {
      const std::int64_t data = ranks() / tensor;
      if (ranks() % tensor != 0 || model.heads % tensor != 0) continue;
      if (samples % (data * accumulation) != 0) continue;
      for (const char* exchange : {"ddp", "zero1", "zero2", "zero3"}) {
        if (data == 1 && exchange != std::string("ddp")) continue;
        SCOPED_TRACE(
            fmt::format("tensor {} x data {}, {}, accumulation {}", tensor, data, exchange, accumulation));
        RunConfig config = mini_config(model, samples, 37, data, accumulation);
        config.parallel.tensor = tensor;
        set_exchange(config, exchange, exchange == std::string("ddp") ? 1 : data);
        visit(config);
      }
    }
  }
  Outcome alone(const ModelConfig& model, std::int64_t samples, std::int64_t steps) {
    return train_alone(backend_, *self_, mini_config(model, samples, 37), steps);
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  CommunicatorHandle self_ = open_communicator("self", &backend_);
  CommunicatorHandle world_ = open_communicator("mpi", &backend_);
};

TEST_F(Tensor, EveryLayoutComputesWhatOneRankDoes) {
  constexpr std::int64_t steps = 20;
  const Outcome oracle = alone(model_of_heads(), global_batch, steps);
  for_all_layouts(model_of_heads(), global_batch, 1, [&](const RunConfig& config) {
    expect_equal_to_rounding(config, train(backend_, *world_, config, steps), oracle);
  });
}

TEST_F(Tensor, KeepsItsPartThroughEveryFeature) {
  constexpr std::int64_t steps = 3;
  Recompute recompute = Recompute::none;
  for (const bool tied : {true, false}) {
    for (const float dropout : {0.0F, 0.2F}) {
      ModelConfig model = model_of_heads();
      model.tied = tied;
      model.dropout = dropout;
      const Outcome oracle = alone(model, global_batch, steps);
      for_all_layouts(model, global_batch, 3, [&](RunConfig config) {
        SCOPED_TRACE(fmt::format("{}, dropout {}", tied ? "tied" : "untied", dropout));
        config.train.recompute = recompute;
        recompute = recompute == Recompute::none        ? Recompute::selective
                    : recompute == Recompute::selective ? Recompute::block
                                                        : Recompute::none;
        expect_equal_to_rounding(config, train(backend_, *world_, config, steps), oracle);
      });
    }
  }
}

TEST_F(Tensor, RoundsStochasticallyByTheSameBits) {
  constexpr std::int64_t steps = 4;
  const Outcome oracle = alone(model_of_heads(), global_batch, steps);
  for_all_layouts(model_of_heads(), global_batch, 1, [&](RunConfig config) {
    config.train.dtype = DType::bf16;
    config.train.grad_dtype = DType::bf16;
    config.optimizer.keeps_master = false;
    const Outcome outcome = train(backend_, *world_, config, steps);
    for (std::size_t step = 0; step < oracle.steps.size(); ++step) {
      EXPECT_NEAR(outcome.steps[step].loss / oracle.steps[step].loss, 1.0, 2e-3) << "step " << step + 1;
      EXPECT_NEAR(outcome.steps[step].gradient_norm / oracle.steps[step].gradient_norm, 1.0, 3e-2);
    }
  });
}

/// Per block and micro-batch two sums forward and two backward, each of a micro-batch's stream, and with
/// block recomputation one more: the second of the forward pass is not repeated.
TEST_F(Tensor, SendsExactlyWhatTheFormulaSays) {
  constexpr std::int64_t steps = 2;
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::block}) {
    for (const std::int64_t accumulation : {1, 3}) {
      for_all_layouts(model_of_heads(), global_batch, accumulation, [&](RunConfig config) {
        config.train.recompute = recompute;
        const std::int64_t stream = config.train.micro_batch * config.train.seq_len * config.model.width * 4;
        const std::int64_t sums =
            (recompute == Recompute::block ? 5 : 4) * config.model.layers * accumulation;
        // The guard's sums join that of the tensor axis if there is no other.
        const std::int64_t scalars = config.parallel.data == 1 ? 1 : 0;
        std::vector<TrafficRow> sent = sent_by_rings(backend_, config, steps).calls;
        std::erase_if(sent, [](const TrafficRow& row) { return row.axis != "tensor"; });
        ASSERT_EQ(sent.size(), 1U);
        EXPECT_EQ(sent[0].operation, Operation::all_reduce);
        EXPECT_EQ(static_cast<std::int64_t>(sent[0].calls), steps * (sums + scalars));
        EXPECT_EQ(static_cast<std::int64_t>(sent[0].payload_bytes), steps * (sums * stream + 8 * scalars));
      });
    }
  }
}

/// From 512 rows on a backend may keep copies of weights.
TEST_F(Tensor, MultipliesPartsOfWeightsWithEveryBackend) {
  constexpr std::int64_t steps = 2;
  ModelConfig model = model_of_heads();
  model.context = 128;
  const Outcome oracle = train_alone(backend_, *self_, mini_config(model, global_batch, 128), steps);
  for (const std::string& name : compute_backend_names()) {
    if (name == "kokkos") continue;
    SCOPED_TRACE(name);
    for_all_layouts(model, global_batch, 1, [&](RunConfig config) {
      config.train.seq_len = 128;
      expect_equal_to_rounding(config, train(test_backends(1).at(name), *world_, config, steps), oracle);
    });
  }
}

}  // namespace
}  // namespace mylos
