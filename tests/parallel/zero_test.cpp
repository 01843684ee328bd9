// SPDX-License-Identifier: BSD-3-Clause
// Sharded data parallelism against one rank that computes the same global batch alone.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/parallel/equivalence.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

constexpr const char* stages[] = {"zero1", "zero2", "zero3"};

class Zero : public testing::Test {
 protected:
  int ranks() const { return world_->size(); }

  /// The sizes of the sharding groups: all ranks, or some of them.
  std::vector<std::int64_t> shards() const {
    std::vector<std::int64_t> sizes;
    for (int size = 2; size < ranks(); ++size) {
      if (ranks() % size == 0) sizes.push_back(size);
    }
    sizes.push_back(ranks());
    return sizes;
  }

  /// Calls visit(config) for each stage and each group size.
  template <class Visit>
  void for_all_stages(const RunConfig& config, const Visit& visit) {
    for (const char* stage : stages) {
      for (const std::int64_t shard : shards()) {
        SCOPED_TRACE(fmt::format("{} among {} of {} ranks, accumulation {}", stage, shard, ranks(),
                                 config.train.accumulation));
        RunConfig own = config;
        set_exchange(own, stage, shard);
        visit(own);
      }
    }
  }
  /// Micro-batches per step: 1, and the largest listed number, if any, that divides `samples` evenly on all
  /// ranks.
  std::vector<std::int64_t> accumulations(std::int64_t samples = global_batch) const {
    for (const std::int64_t accumulation : {12, 6, 4, 3, 2}) {
      if (samples % (accumulation * ranks()) == 0) return {1, accumulation};
    }
    return {1};
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> self_ = open_communicator("self", &backend_);
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
};

TEST_F(Zero, EveryStageComputesWhatOneRankDoes) {
  constexpr std::int64_t steps = 20;
  const std::int64_t samples = global_batch % ranks() == 0 ? global_batch : 2 * ranks();
  RunConfig whole = mini_config(small_model(), samples, 37);
  whole.guard.clip_norm = 0.5F;
  const Outcome oracle = train_alone(backend_, *self_, whole, steps);
  for (const auto& step : oracle.steps) EXPECT_GT(step.gradient_norm, whole.guard.clip_norm);
  for (const std::int64_t accumulation : accumulations(samples)) {
    RunConfig divided = mini_config(small_model(), samples, 37, ranks(), accumulation);
    divided.guard.clip_norm = whole.guard.clip_norm;
    for_all_stages(divided, [&](const RunConfig& config) {
      expect_equal_to_rounding(config, train(backend_, *world_, config, steps), oracle);
    });
  }
}

class ZeroVariants : public Zero, public testing::WithParamInterface<Variant> {};

TEST_P(ZeroVariants, ComputeWhatOneRankDoes) {
  constexpr std::int64_t steps = 5;
  const Outcome oracle = train_alone(backend_, *self_, config_of(GetParam(), 1), steps);
  // With so few terms, Adam amplifies the rounding differences between orders of summation.
  const bool has_few_tokens = GetParam().seq_len == 1;
  const std::int64_t accumulation = has_few_tokens ? 1 : accumulations().back();
  Recompute recompute = Recompute::none;
  for_all_stages(config_of(GetParam(), ranks(), accumulation), [&](RunConfig config) {
    config.train.recompute = recompute;
    recompute = recompute == Recompute::none ? Recompute::selective : Recompute::block;
    expect_equal_to_rounding(config, train(backend_, *world_, config, steps), oracle);
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, ZeroVariants, testing::ValuesIn(variants),
                         [](const auto& variant) { return std::string(variant.param.name); });

TEST_F(Zero, GathersAnyDistanceAheadWithAndWithoutResharding) {
  constexpr std::int64_t steps = 3;
  RunConfig config = mini_config(small_model(), global_batch, 37, ranks(), accumulations().back());
  set_exchange(config, "zero3", ranks());
  const Outcome control = train(backend_, *world_, config, steps);
  for (const bool reshard : {true, false}) {
    for (const std::int64_t prefetch : {0, 2, 5, 100}) {
      SCOPED_TRACE(fmt::format("reshard {}, prefetch {}", reshard, prefetch));
      config.parallel.values.set("parallel.reshard", reshard);
      config.parallel.values.set("parallel.prefetch", prefetch);
      expect_bitwise_equal(train(backend_, *world_, config, steps), control);
    }
  }
}

TEST_F(Zero, TrainsInNarrowTypesWithGradientsOfEitherType) {
  constexpr std::int64_t steps = 4;
  const Outcome oracle = train_alone(backend_, *self_, mini_config(small_model(), global_batch, 37), steps);
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const DType gradient : {DType::fp32, dtype}) {
      for (const bool has_master : {true, false}) {
        if (gradient != dtype && !has_master) continue;
        RunConfig narrow = mini_config(small_model(), global_batch, 37, ranks(), accumulations().back());
        narrow.train.dtype = dtype;
        narrow.train.grad_dtype = gradient;
        narrow.train.loss_scale = dtype == DType::fp16 ? 1024.0F : 1.0F;
        narrow.optimizer.keeps_master = has_master;
        for_all_stages(narrow, [&](const RunConfig& config) {
          SCOPED_TRACE(
              fmt::format("{}, gradients {}, master {}", name_of(dtype), name_of(gradient), has_master));
          const Outcome outcome = train(backend_, *world_, config, steps);
          for (std::size_t step = 0; step < oracle.steps.size(); ++step) {
            EXPECT_NEAR(outcome.steps[step].loss / oracle.steps[step].loss, 1.0, 1e-3) << "step " << step + 1;
            EXPECT_NEAR(outcome.steps[step].gradient_norm / oracle.steps[step].gradient_norm, 1.0, 3e-2);
          }
        });
      }
    }
  }
}

TEST_F(Zero, StepsBySgd) {
  constexpr std::int64_t steps = 5;
  RunConfig sgd = mini_config(small_model(), global_batch, 37, ranks());
  sgd.optimizer = optimizer_config("sgd");
  sgd.lr.peak = 0.05;
  const Outcome oracle = train_alone(backend_, *self_, sgd, steps);
  for_all_stages(sgd, [&](const RunConfig& config) {
    expect_equal_to_rounding(config, train(backend_, *world_, config, steps), oracle);
  });
}

/// Hybrid sharding: two groups, each of which shards a whole replica.
TEST_F(Zero, GroupsThatHoldTheSameComputeWhatOneRankDoes) {
  if (ranks() != 4) GTEST_SKIP() << "needs 4 ranks";
  constexpr std::int64_t steps = 3;
  for (const std::int64_t accumulation : {1, 2}) {
    RunConfig config = mini_config(small_model(), 8, 8, ranks(), accumulation);
    config.optimizer = optimizer_config("sgd");
    config.lr.peak = 0.05;
    const Outcome oracle = train_alone(backend_, *self_, config, steps);
    for (const char* stage : stages) {
      SCOPED_TRACE(fmt::format("{}, accumulation {}", stage, accumulation));
      set_exchange(config, stage, 2);
      expect_equal_to_rounding(config, train(backend_, *world_, config, steps), oracle);
    }
  }
}

/// With 512 rows or more, a backend may keep packed copies of weights: no copy may outlive the weights that
/// it was made from.
TEST_F(Zero, MultipliesNoStaleCopiesOfWeights) {
  constexpr std::int64_t steps = 4;
  ModelConfig model = small_model();
  model.context = 128;
  const std::int64_t seq_len = 128;
  for (const std::string& name : compute_backend_names()) {
    if (name == "kokkos") continue;
    SCOPED_TRACE(name);
    ComputeBackend& backend = test_backends(1).at(name);
    const Outcome oracle = train_alone(backend_, *self_, mini_config(model, global_batch, seq_len), steps);
    const std::int64_t accumulation = ranks() == 1 ? 2 : 1;
    for_all_stages(mini_config(model, global_batch, seq_len, ranks(), accumulation),
                   [&](const RunConfig& config) {
                     EXPECT_TRUE(ranks() > 3 || config.train.micro_batch * seq_len >= 512);
                     expect_equal_to_rounding(config, train(backend, *world_, config, steps), oracle);
                   });
  }
}

/// Elements of the embedding, a block and the head, padded so that each rank has the same multiple of 64.
struct UnitSizes {
  std::int64_t embedding, block, head;

  UnitSizes(const ModelConfig& model, std::int64_t ranks) {
    const std::int64_t c = model.width;
    const std::int64_t matrix = (model.vocab + 127) / 128 * 128 * c;
    const auto unit = [&](std::initializer_list<std::int64_t> tensors) {
      std::int64_t size = 0;
      for (const std::int64_t tensor : tensors) size += (tensor + 63) / 64 * 64;
      return (size + 64 * ranks - 1) / (64 * ranks) * 64 * ranks;
    };
    embedding = unit({matrix, model.context * c});
    block = unit({c, c, 3 * c * c, 3 * c, c * c, c, c, c, 4 * c * c, 4 * c, 4 * c * c, c});
    head = model.tied ? unit({c, c}) : unit({c, c, matrix});
  }
  /// The sum of of(size) over all units.
  template <class Of>
  std::int64_t sum(std::int64_t layers, const Of& of) const {
    return of(embedding) + layers * of(block) + of(head);
  }
  std::int64_t all(std::int64_t layers) const { return sum(layers, std::identity()); }
};

/// Elements that a step gathers. The function visits units in the order of the passes; a unit that was used
/// at most `prefetch` passes ago is still resident.
std::int64_t gathered(const ModelConfig& model, const UnitSizes& sizes, std::int64_t accumulation,
                      std::int64_t prefetch) {
  const std::int64_t last = model.layers + 1;  // the head; 0 is the embedding
  std::vector<std::int64_t> newest(static_cast<std::size_t>(last + 1), -1000);  // the latest use, by unit
  std::int64_t sum = 0;
  std::int64_t pass = 0;
  const auto use = [&](std::int64_t unit) {
    std::int64_t& before = newest[static_cast<std::size_t>(unit)];
    if (pass - before > prefetch)
      sum += unit == 0 ? sizes.embedding : unit == last ? sizes.head : sizes.block;
    before = pass;
  };
  for (std::int64_t micro_batch = 0; micro_batch < accumulation; ++micro_batch) {
    for (std::int64_t unit = 0; unit < last; ++unit, ++pass) use(unit);
    use(last);
    if (model.tied) use(0);
    ++pass;
    for (std::int64_t unit = last - 1; unit > 0; --unit, ++pass) use(unit);
  }
  return sum;
}

TEST_F(Zero, SendsExactlyWhatTheFormulaSays) {
  if (ranks() == 1) GTEST_SKIP() << "nothing is sent";
  constexpr std::int64_t steps = 2;
  struct Case {
    DType dtype;
    DType grad_dtype;
    std::int64_t prefetch;
    bool reshard;
  };
  using enum DType;
  for (const Case& what : {Case{fp32, fp32, 1, true}, Case{bf16, fp32, 1, true}, Case{bf16, bf16, 1, true},
                           Case{fp16, fp16, 1, true}, Case{fp32, fp32, 0, true}, Case{fp32, fp32, 3, true},
                           Case{fp32, fp32, 1, false}}) {
    for (const auto& [tied, m] :
         {std::pair(true, 1), std::pair(true, 2), std::pair(false, 1), std::pair(false, 2)}) {
      SCOPED_TRACE(fmt::format("{}, gradients {}, prefetch {}, reshard {}, tied {}", name_of(what.dtype),
                               name_of(what.grad_dtype), what.prefetch, what.reshard, tied));
      ModelConfig model = small_model();
      model.layers = 3;
      model.width = 45;  // not a multiple of the alignment
      model.tied = tied;
      RunConfig whole = mini_config(model, 2 * ranks(), 8, ranks(), m);
      whole.train.dtype = what.dtype;
      whole.train.grad_dtype = what.grad_dtype;
      // Bytes of a gradient and of a weight.
      const std::int64_t g = what.grad_dtype == fp32 ? 4 : 2;
      const std::int64_t p = what.dtype == fp32 ? 4 : 2;
      for_all_stages(whole, [&](RunConfig config) {
        const std::string_view stage = config.parallel.exchange->name;
        if (stage != "zero3" && (what.prefetch != 1 || !what.reshard)) return;  // these are zero3's alone
        const std::int64_t shard = config.parallel.shard;
        const UnitSizes sizes(model, shard);
        const std::int64_t n = sizes.all(model.layers);
        std::int64_t scattered = g * n;
        std::int64_t brought = p * n;
        if (stage != "zero1") scattered *= m;
        if (stage == "zero3") {
          config.parallel.values.set("parallel.prefetch", what.prefetch);
          config.parallel.values.set("parallel.reshard", what.reshard);
          brought = p * (what.reshard ? gathered(model, sizes, m, what.prefetch) : m * n);
        }
        const std::int64_t initial = stage == "zero3" ? 0 : p * n;  // the initial weights
        const std::int64_t summed = shard < ranks() ? g * n / shard : 0;
        constexpr std::int64_t scalars = 2;  // loss sum and squared norm, one call in fp32

        const Sent sent = sent_by_rings(backend_, config, steps);
        std::int64_t sums = 0;
        for (const TrafficRow& row : sent.calls) {
          const auto bytes = static_cast<std::int64_t>(row.payload_bytes);
          if (row.operation != CommOperation::all_reduce) {
            EXPECT_EQ(row.axis, shard < ranks() ? "shard" : "data");
          }
          if (row.operation == CommOperation::reduce_scatter) {
            EXPECT_EQ(bytes, steps * scattered);
            EXPECT_EQ(static_cast<std::int64_t>(row.calls),
                      steps * (stage == "zero1" ? 1 : m) * (model.layers + 2));
          } else if (row.operation == CommOperation::all_gather) {
            EXPECT_EQ(bytes, steps * brought + initial);
          } else {
            EXPECT_EQ(row.operation, CommOperation::all_reduce);
            sums += bytes;
          }
        }
        EXPECT_EQ(sums, steps * (summed + 4 * scalars));

        if (calls_are_checked) return;  // the checks send messages that count too
        const std::int64_t groups = ranks() / shard;
        const std::int64_t rank = world_->rank();
        const std::int64_t between_groups = g * sizes.sum(model.layers, [&](std::int64_t unit) {
          return sent_by_ring_all_reduce(unit / shard, groups, rank / shard);
        });
        const std::int64_t scalar_bytes = 4 * sent_by_ring_all_reduce(scalars, ranks(), rank);
        EXPECT_EQ(sent.wire_bytes,
                  sent_by_half_a_ring(initial, shard) +
                      steps * (sent_by_half_a_ring(scattered, shard) + sent_by_half_a_ring(brought, shard) +
                               between_groups + scalar_bytes));
      });
    }
  }
}

}  // namespace
}  // namespace mylos
