// SPDX-License-Identifier: BSD-3-Clause
#include "core/optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/model/parameters.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

class OptimizerTest : public testing::TestWithParam<std::string> {
 protected:
  /// The bits of the whole model's weights, by name, after three steps without a master. Each rank along the
  /// tensor axis updates the elements that it holds; each unit is cut into `cuts` parts.
  using Weights = std::map<std::string, std::vector<std::uint16_t>>;
  Weights step(const char* name, std::int64_t cuts, std::uint64_t seed, int tensor = 1,
               const TensorSplits& splits = {}) {
    Weights whole;
    for (int rank = 0; rank < tensor; ++rank)
      step_rank(table_.local(Coordinates({{Axis::tensor, tensor}}, tensor, rank), splits), name, cuts, seed,
                whole);
    return whole;
  }

  void step_rank(const ParameterTable& table, const char* name, std::int64_t cuts, std::uint64_t seed,
                 Weights& whole) {
    std::vector<UnitPart> parts;
    std::vector<std::int64_t> offsets;
    std::int64_t total = 0;
    for (int unit = 0; unit < table.num_units(); ++unit) {
      const std::int64_t size = table.unit(unit).size;
      for (std::int64_t cut = 0; cut < cuts; ++cut) {
        const std::int64_t begin = size * cut / cuts;
        parts.push_back({unit, begin, size * (cut + 1) / cuts - begin});
        offsets.push_back(total + begin);
      }
      total += size;
    }
    MemoryLedger ledger;
    OptimizerConfig config = optimizer_config(name);
    config.keeps_master = false;
    config.seed = seed;
    Storages storages(table, {});
    const auto bytes = static_cast<std::size_t>(total) * sizeof(bf16);
    const int of_weights = storages.add({.name = "weights", .bytes = bytes, .persists = true});
    const int of_gradient = storages.add({.name = "gradient", .bytes = bytes, .persists = true});
    std::vector<SteppedUnit> units;
    for (const UnitPart& part : parts) units.push_back({.part = part, .divided_axes = {}});
    Optimizer optimizer(config, table, Coordinates(), DType::bf16, units, storages);
    Program update;
    UpdateRecorder run(update.entries);
    StepScalars placeholder;
    std::vector<UpdatedPart> updated;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto part = [&](int storage) {
        return Storages::flat(storage, 2 * offsets[i], DType::bf16, parts[i].count);
      };
      updated.push_back(
          {.index = i, .weights = part(of_weights), .previous = {}, .gradient = part(of_gradient)});
    }
    optimizer.record(updated, &placeholder, run, [](std::size_t) {});
    std::map<int, DeviceBuffer> memory;
    Binding binding;
    for (int i = 0; i < std::ssize(storages.all()); ++i) {
      binding.storages.emplace_back();
      const Storage& storage = storages.at(i);
      if (!storage.persists) continue;
      memory[i] =
          DeviceBuffer(backend_, ledger, MemoryCategory::workspace, storage.bytes, "mylos::tests::kept");
      binding.storages.back().data = static_cast<std::byte*>(memory[i].data());
      const std::vector<std::byte> zeros(storage.bytes);
      backend_.copy_to_device(zeros.data(), memory[i].data(), storage.bytes);
      backend_.synchronize();
    }
    backend_.copy_to_device(optimizer.segments().data(), memory[optimizer.segments_storage()].data(),
                            optimizer.segments().size() * sizeof(Segment));
    const DeviceBuffer& weights = memory[of_weights];
    const DeviceBuffer& gradient = memory[of_gradient];
    const DeviceBuffer scalars(backend_, ledger, MemoryCategory::workspace, sizeof(StepScalars),
                               "mylos::tests::scalars");
    /// Calls `visit(element of the buffer, parameter, element of the whole parameter)` for every element
    /// except padding.
    const auto for_each_element = [&](const auto& visit) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        for (const Piece& piece : pieces_of(table, parts[i])) {
          const GlobalIndex global = piece.global_index();
          for (std::int64_t e = 0; e < piece.count; ++e)
            visit(static_cast<std::size_t>(offsets[i] + piece.offset + e), piece.parameter, global(e));
        }
      }
    };
    const auto fill = [&](const DeviceBuffer& buffer, std::uint64_t key) {
      std::vector<bf16> values(static_cast<std::size_t>(total));
      for_each_element([&](std::size_t at, const Parameter& parameter, std::int64_t element) {
        const PhiloxBlock words =
            philox(stream_key(key, parameter.name), static_cast<std::uint32_t>(element), 0, 0, 0);
        values[at] = bf16(normal_pair(words.x[0], words.x[1])[0]);
      });
      backend_.copy_to_device(values.data(), buffer.data(), bytes);
      backend_.synchronize();
    };
    fill(weights, 1);
    fill(gradient, 2);
    for (std::int64_t t = 1; t <= 3; ++t) {
      const StepScalars host{.step = t, .learning_rate = 1e-3F};
      backend_.copy_to_device(&host, scalars.data(), sizeof(host));
      binding.scalars = static_cast<StepScalars*>(scalars.data());
      for (const Entry& entry : update.entries) {
        with_bound(entry, binding, [&]<class Op>(const Op& op) {
          if constexpr (!is_call<Op> && !std::is_same_v<Op, Await>) backend_.run(op);
        });
      }
      backend_.synchronize();
    }
    std::vector<std::uint16_t> stepped(static_cast<std::size_t>(total));
    backend_.copy_to_host(weights.data(), stepped.data(), bytes);
    backend_.synchronize();
    for_each_element([&](std::size_t at, const Parameter& parameter, std::int64_t element) {
      auto& values = whole[parameter.name];
      values.resize(static_cast<std::size_t>(product(parameter.shape)));
      values[static_cast<std::size_t>(element)] = stepped[at];
    });
  }

  static ModelConfig model() {
    ModelConfig model;
    model.layers = 2;
    model.heads = 6;
    model.width = 54;
    model.context = 10;
    model.vocab = 101;
    return model;
  }

  ParameterTable table_ = parameters_of(model());
  ComputeBackend& backend_ = test_backends().at(GetParam());
};

TEST_P(OptimizerTest, RoundsTheSameHoweverUnitsAreDivided) {
  for (const OptimizerKind* kind : optimizers()) {
    if (kind->matrices != nullptr) continue;  // whole matrices are those of all ranks
    SCOPED_TRACE(kind->name);
    const Weights whole = step(kind->name, 1, 5);
    EXPECT_EQ(step(kind->name, 2, 5), whole);
    EXPECT_EQ(step(kind->name, 7, 5), whole);
    EXPECT_NE(step(kind->name, 1, 6), whole) << "another seed";
  }
}

TEST_P(OptimizerTest, RoundsTheSameHoweverTensorParallelismDividesWeights) {
  for (const OptimizerKind* kind : optimizers()) {
    if (kind->matrices != nullptr) continue;  // whole matrices are those of all ranks
    SCOPED_TRACE(kind->name);
    const Weights whole = step(kind->name, 1, 5);
    for (const int tensor : {2, 3}) {
      SCOPED_TRACE(tensor);
      EXPECT_EQ(step(kind->name, 1, 5, tensor), whole);
      EXPECT_EQ(step(kind->name, 4, 5, tensor, {.vocab = true, .sequence = true}), whole);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, OptimizerTest, testing::ValuesIn(compute_backend_names()),
                         backend_test_name);

/// If two parameters drew the same numbers, their rounding errors would be correlated.
TEST(Segments, RoundEachParameterByItsOwnKey) {
  const ParameterTable table = parameters_of(ModelConfig());
  std::set<std::pair<std::uint32_t, std::uint32_t>> keys;
  for (const UnitPart& part : whole_units(table)) {
    for (const Segment& segment : segments_of(table, part, 5))
      keys.insert({segment.rounding.key.k0, segment.rounding.key.k1});
  }
  EXPECT_EQ(keys.size(), table.parameters().size());
}

/// The loss of the last of 30 steps, with this optimizer and learning rate.
float loss_after_30_steps(const char* name, double learning_rate) {
  ModelConfig model;
  model.layers = 2;
  model.heads = 2;
  model.width = 32;
  model.context = 32;
  model.vocab = 61;
  RunConfig config = mini_config(model, 8, 32);
  config.optimizer = optimizer_config(name);
  config.lr.peak = learning_rate;
  ComputeBackend& backend = test_backends().at("kokkos");
  const std::unique_ptr<Communicator> self = open_communicator("self", &backend);
  MemoryLedger ledger;
  MiniTrainer trainer(backend, ledger, *self, config);
  float loss = 0.0F;
  for (std::int64_t step = 1; step <= 30; ++step) loss = trainer.step(walk_tokens(config, step)).loss;
  return loss;
}

TEST(Optimizers, Learn) {
  const float guess = std::log(61.0F);
  EXPECT_LT(loss_after_30_steps("adamw", 3e-3), guess - 0.5F);
  EXPECT_LT(loss_after_30_steps("sgd", 0.1), guess - 0.3F);
  EXPECT_LT(loss_after_30_steps("muon", 3e-3), guess - 0.5F);
}

}  // namespace
}  // namespace mylos
