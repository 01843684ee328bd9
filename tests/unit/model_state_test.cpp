// SPDX-License-Identifier: BSD-3-Clause
// Weights that are not fp32 are saved and restored a limited number of elements at a time: larger tensors are
// restored completely. Large pieces lie in a snapshot as in the file.
#include "app/model_state.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "core/memory/pinned_buffer.hpp"
#include "core/model/parameters.hpp"
#include "parallel/engine/initial_weights.hpp"
#include "parallel/exchange/ddp.hpp"
#include "parallel/plan/run_plan.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/parallel/mini_trainer.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

/// A model with a matrix of 8.6 million elements.
ModelConfig wide_model() {
  ModelConfig model;
  model.layers = 1;
  model.heads = 3;
  model.width = 144;
  model.context = 8;
  model.vocab = 60000;
  return model;
}

/// bf16 weights without a master.
class Narrow {
 public:
  Narrow(ComputeBackend& backend, Communicator& self, const Coordinates& at = {})
      : backend_(backend), self_(self), table_(parameters_of(wide_model()).local(at, {.vocab = true})) {}

  void initialise(std::uint64_t seed) { initialise_weights(backend_, table_, seed, exchange_, *optimizer_); }
  PinnedBuffer snapshot_memory() {
    return {backend_, ledger_, MemoryCategory::snapshot,
            static_cast<std::size_t>(snapshot_bytes(optimizer_->kind(), exchange_.stored()))};
  }
  /// What is saved while training continues.
  CheckpointContent content(const PinnedBuffer& snapshot) {
    return checkpoint_content(backend_, table_, exchange_, *optimizer_, snapshot.data());
  }
  void save(CheckpointStore& store) {
    const PinnedBuffer snapshot = snapshot_memory();
    CheckpointContent saved = content(snapshot);
    saved.state = {.step = 1, .json = "{}"};
    store.write(saved);
  }
  void restore_from(const CheckpointReader& reader) {
    restore(backend_, table_, reader, exchange_, *optimizer_);
  }
  std::vector<std::uint16_t> weights(int unit) {
    std::vector<std::uint16_t> values(static_cast<std::size_t>(table_.unit(unit).size));
    const TensorRef place = exchange_.weights({unit, 0, table_.unit(unit).size});
    backend_.copy_to_host(place.data, values.data(), place.bytes());
    backend_.synchronize();
    return values;
  }
  int num_units() const { return table_.num_units(); }

 private:
  static OptimizerConfig optimizer() {
    OptimizerConfig config = optimizer_config("sgd");
    config.keeps_master = false;
    return config;
  }

  ComputeBackend& backend_;
  Communicator& self_;
  MemoryLedger ledger_;
  ParameterTable table_;
  Ddp exchange_{{}, {.table = table_, .compute_type = DType::bf16}, backend_, ledger_, self_};
  OptimizerConfig config_ = optimizer();
  std::unique_ptr<Optimizer> optimizer_ =
      config_.kind->make(config_, {backend_, ledger_, table_, DType::bf16, exchange_.owned()});
};

TEST(ModelState, NarrowWeightsLargerThanAPartAreSavedAndRestoredWhole) {
  ComputeBackend& backend = test_backends().at("kokkos");
  const std::unique_ptr<Communicator> self = open_communicator("self", &backend);
  const test::ScratchDirectory scratch;
  IoThread io;
  Narrow saved(backend, *self);
  saved.initialise(3);
  CheckpointStore store(io, io, scratch.path(), {});
  saved.save(store);
  Narrow restored(backend, *self);
  restored.initialise(5);
  EXPECT_NE(restored.weights(0), saved.weights(0));
  restored.restore_from(CheckpointReader(io, store.path_of(1)));
  for (int unit = 0; unit < saved.num_units(); ++unit)
    EXPECT_TRUE(restored.weights(unit) == saved.weights(unit)) << unit;
}

TEST(ModelState, LargePiecesLieInASnapshotAsInTheFile) {
  ComputeBackend& backend = test_backends().at("kokkos");
  const std::unique_ptr<Communicator> self = open_communicator("self", &backend);
  for (const int rank : {0, 1, 2}) {
    Narrow state(backend, *self, Coordinates({.tensor = 3}, 3, rank));
    state.initialise(3);
    const PinnedBuffer snapshot = state.snapshot_memory();
    int num_large = 0;
    for (const CheckpointTensor& tensor : state.content(snapshot).tensors) {
      for (const TensorPart& part : tensor.parts) {
        if (4 * part.box.size() < pages_of_aligned_piece * snapshot_page) continue;
        ++num_large;
        const auto address = reinterpret_cast<std::intptr_t>(part.data);
        EXPECT_EQ(address % snapshot_page, part.box.start[0] * 144 * 4 % snapshot_page) << tensor.info.name;
      }
    }
    EXPECT_EQ(num_large, 2);  // the token embedding and its momentum
  }
}

}  // namespace
}  // namespace mylos
