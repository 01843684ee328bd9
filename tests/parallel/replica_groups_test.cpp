// SPDX-License-Identifier: BSD-3-Clause
// If the replicas of one group differ, all ranks of the job learn it in the same comparison: none is left in
// a collective of a group that agrees.
#include <vector>

#include <gtest/gtest.h>

#include "parallel/engine/replica_check.hpp"
#include "tests/parallel/equivalence.hpp"
#include "tests/support/backend_fixture.hpp"
#include "tests/support/test_plugins.hpp"

namespace mylos {
namespace {

TEST(ReplicaGroups, AllRanksLearnOfADifferenceInOneGroup) {
  ComputeBackend& backend = test_backends(1).at("kokkos");
  const auto world = open_communicator("shm", &backend);
  if (world->size() != 4) GTEST_SKIP() << "for two groups of two replicas";
  RunConfig run = mini_config(small_model(), global_batch, 16, 2);
  run.model.heads = 12;
  run.parallel.tensor = 2;
  MemoryLedger ledger;
  MiniTrainer trainer(backend, ledger, *world, run);
  trainer.step(walk_tokens(run, 1));
  const auto problem = [&] {
    backend.synchronize();
    return compare_replicas(backend, trainer.state(), trainer.grid(),
                            hash_states(backend, trainer.state(), trainer.grid()));
  };
  const auto flip = [&](const char* name) {
    const std::vector<UnitPart>& parts = trainer.state().owned();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (const Piece& piece : pieces_of(trainer.table(), parts[i])) {
        if (piece.parameter.name != name) continue;
        static_cast<std::uint8_t*>(trainer.state().state(0, i, piece.offset, 1).data)[0] ^= 1U;
      }
    }
  };
  EXPECT_EQ(problem(), "");
  // Tensor rank 1 of both replicas (ranks 1 and 3) holds the same part of this matrix; ranks 0 and 2 agree.
  constexpr const char* matrix = "h.1.mlp.c_fc.weight";
  if (world->rank() == 3) flip(matrix);
  EXPECT_EQ(problem(),
            fmt::format("the first moment of {} differs between replicas; corrupted on rank 1 or 3", matrix));
  if (world->rank() == 3) flip(matrix);
  EXPECT_EQ(problem(), "");
  // Every rank holds the norms whole: rank 3 differs from its replica, rank 1, and from its twin, rank 2.
  if (world->rank() == 3) flip("h.0.ln_1.bias");
  EXPECT_EQ(problem(),
            "the first moment of h.0.ln_1.bias differs between replicas; corrupted on rank 1 or 3");
  if (world->rank() == 3) flip("h.0.ln_1.bias");
  EXPECT_EQ(problem(), "");
}

}  // namespace
}  // namespace mylos
