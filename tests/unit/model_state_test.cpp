// SPDX-License-Identifier: BSD-3-Clause
// Weights that are not fp32 are saved and restored a limited number of elements at a time: larger tensors are
// restored completely. Large pieces lie in a snapshot as in the file.
#include "app/train/model_state.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "core/model/parameters.hpp"
#include "tests/io/io_test_util.hpp"
#include "tests/parallel/lone_rank.hpp"
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
RunConfig narrow_config() {
  RunConfig config = mini_config(wide_model(), 1, 1);
  config.train.dtype = DType::bf16;
  config.optimizer = optimizer_config("sgd");
  config.optimizer.keeps_master = false;
  config.parallel.splits.vocab = true;
  return config;
}

void save(LoneRank& rank, CheckpointStore& store) {
  CheckpointContent saved = rank.snapshot();
  saved.state = {.step = 1, .json = "{}"};
  store.write(saved);
}

std::vector<std::uint16_t> weights(ComputeBackend& backend, LoneRank& rank, int unit) {
  const std::int64_t size = rank.table().unit(unit).size;
  std::vector<std::uint16_t> values(static_cast<std::size_t>(size));
  const TensorRef place = rank.state().weights({unit, 0, size});
  backend.copy_to_host(place.data, values.data(), place.bytes());
  backend.synchronize();
  return values;
}

TEST(ModelState, NarrowWeightsLargerThanAPartAreSavedAndRestoredWhole) {
  ComputeBackend& backend = test_backends().at("kokkos");
  const std::unique_ptr<Communicator> self = open_communicator("self", &backend);
  const test::ScratchDirectory scratch;
  IoThread io;
  const RunConfig config = narrow_config();
  LoneRank saved(backend, *self, config);
  saved.initialise(3);
  CheckpointStore store(io, io, scratch.path(), {});
  save(saved, store);
  LoneRank restored(backend, *self, config);
  restored.initialise(5);
  EXPECT_NE(weights(backend, restored, 0), weights(backend, saved, 0));
  restored.restore_from(CheckpointReader(io, store.path_of(1)));
  for (int unit = 0; unit < saved.table().num_units(); ++unit)
    EXPECT_TRUE(weights(backend, restored, unit) == weights(backend, saved, unit)) << unit;
}

TEST(ModelState, LargePiecesLieInASnapshotAsInTheFile) {
  ComputeBackend& backend = test_backends().at("kokkos");
  const std::unique_ptr<Communicator> self = open_communicator("self", &backend);
  for (const int rank : {0, 1, 2}) {
    RunConfig config = narrow_config();
    config.parallel.tensor = 3;
    LoneRank state(backend, *self, config, Coordinates({{Axis::tensor, 3}}, 3, rank));
    state.initialise(3);
    int num_large = 0;
    for (const CheckpointTensor& tensor : state.snapshot().tensors) {
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
