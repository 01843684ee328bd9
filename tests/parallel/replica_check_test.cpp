// SPDX-License-Identifier: BSD-3-Clause
// Replicas are compared in weights, masters and moments, and the rank that differs, or each that may be the
// one, is named.
#include "parallel/engine/replica_check.hpp"

#include <vector>

#include <gtest/gtest.h>

#include "tests/parallel/equivalence.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

class ReplicaCheck : public testing::Test {
 protected:
  int ranks() const { return world_->size(); }

  RunConfig config(DType dtype) const {
    RunConfig config = mini_config(small_model(), global_batch, 16, ranks());
    config.train.dtype = dtype;
    return config;
  }
  std::string problem(MiniTrainer& trainer) {
    backend_.synchronize();
    const std::vector<StateHash> hashes = hash_states(backend_, trainer.state(), trainer.grid());
    return compare_replicas(backend_, trainer.state(), trainer.grid(), hashes);
  }
  /// Flips the lowest bit of the last element that this rank holds of a parameter; `of` gives the tensor of a
  /// part.
  template <class Of>
  void flip(MiniTrainer& trainer, const char* name, const Of& of) {
    const std::vector<UnitPart>& parts = trainer.state().owned();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (const Piece& piece : pieces_of(trainer.table(), parts[i])) {
        if (piece.parameter.name != name) continue;
        const TensorRef last = of(i).flat(piece.offset + piece.count - 1, 1);
        std::uint8_t byte = 0;
        backend_.copy_to_host(last.data, &byte, 1);
        backend_.synchronize();
        byte ^= 1U;
        backend_.copy_to_device(&byte, last.data, 1);
        backend_.synchronize();
      }
    }
  }

  ComputeBackend& backend_ = test_backends(1).at("kokkos");
  std::unique_ptr<Communicator> world_ = open_communicator("shm", &backend_);
};

TEST_F(ReplicaCheck, FindsOneBitInAnyState) {
  constexpr const char* name = "h.1.mlp.c_fc.weight";
  MemoryLedger ledger;
  MiniTrainer trainer(backend_, ledger, *world_, config(DType::bf16));
  trainer.step(walk_tokens(config(DType::bf16), 1));
  EXPECT_EQ(problem(trainer), "");
  const auto weights = [&](std::size_t i) { return trainer.state().weights(trainer.state().owned()[i]); };
  const auto master = [&](std::size_t i) { return trainer.state().master(i); };
  const auto moment = [&](std::size_t state) {
    return [&trainer, state](std::size_t i) {
      return trainer.state().state(state, i, 0, trainer.state().owned()[i].count);
    };
  };
  const int culprit = ranks() - 1;
  const auto expect_found = [&](const std::string& prefix, const std::string& suspects, const auto& of) {
    SCOPED_TRACE(prefix);
    if (world_->rank() == culprit) flip(trainer, name, of);
    EXPECT_EQ(problem(trainer), ranks() == 1
                                    ? ""
                                    : fmt::format("{}{} differs between replicas; corrupted on rank {}",
                                                  prefix, name, suspects));
    if (world_->rank() == culprit) flip(trainer, name, of);
    EXPECT_EQ(problem(trainer), "");
  };
  // Weights are compared with their own master, which identifies the corrupted rank. For masters and moments
  // the majority is right; two ranks have no majority.
  const std::string outvoted = ranks() == 2 ? "0 or 1" : fmt::format("{}", culprit);
  expect_found("", fmt::format("{}", culprit), weights);
  expect_found("the master of ", outvoted, master);
  expect_found("the first moment of ", outvoted, moment(0));
  expect_found("the second moment of ", outvoted, moment(1));
}

/// Ranks along the tensor axis hold copies of the norms.
TEST_F(ReplicaCheck, ComparesParametersThatTheTensorAxisDoesNotDivide) {
  if (ranks() == 1) GTEST_SKIP() << "nobody to compare with";
  RunConfig run = config(DType::fp32);
  run.model.heads = 12;  // for 2, 3, 4 and 6 ranks
  run.parallel.data = 1;
  run.parallel.tensor = ranks();
  run.train.micro_batch = global_batch;
  MemoryLedger ledger;
  MiniTrainer trainer(backend_, ledger, *world_, run);
  trainer.step(walk_tokens(run, 1));
  EXPECT_EQ(problem(trainer), "");
  const auto moment = [&](std::size_t i) {
    return trainer.state().state(1, i, 0, trainer.state().owned()[i].count);
  };
  if (world_->rank() == 0) flip(trainer, "h.0.ln_1.bias", moment);
  EXPECT_EQ(problem(trainer).substr(0, 43), "the second moment of h.0.ln_1.bias differs ");
  if (world_->rank() == 0) flip(trainer, "h.0.ln_1.bias", moment);
  EXPECT_EQ(problem(trainer), "");
}

}  // namespace
}  // namespace mylos
