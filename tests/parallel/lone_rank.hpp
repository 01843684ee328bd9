// SPDX-License-Identifier: BSD-3-Clause
// LoneRank: what one rank of a grid holds of a model, in memory, without the other ranks.
#pragma once

#include <optional>

#include "app/train/model_state.hpp"
#include "core/memory/pinned_buffer.hpp"
#include "parallel/engine/rank_state.hpp"
#include "parallel/plan/run_plan.hpp"
#include "tests/parallel/mini_trainer.hpp"

namespace mylos {

class LoneRank {
 public:
  /// `config` must outlive the object. `self` is a communicator of one rank: the exchange is ddp.
  LoneRank(ComputeBackend& backend, Communicator& self, const RunConfig& config, const Coordinates& at = {})
      : backend_(backend),
        grid_(self, {}, ParallelLayout().groups(), traffic_, nullptr, backend.host_accessible()),
        program_(config, at),
        executor_(backend, ledger_, grid_, program_) {}

  const ParameterTable& table() const { return program_.table(); }
  RankState& state() { return state_; }
  void initialise(std::uint64_t seed) { state_.initialise(backend_, seed); }
  CheckpointContent content() { return checkpoint_content(backend_, state_, {}); }
  /// The content, copied to memory that this object owns.
  CheckpointContent snapshot() {
    const auto bytes = static_cast<std::size_t>(snapshot_bytes(program_));
    snapshot_.emplace(backend_, ledger_, MemoryCategory::snapshot, bytes);
    return checkpoint_content(backend_, state_, {}, snapshot_->data());
  }
  void restore_from(const CheckpointReader& reader) { restore(backend_, reader, state_, {}); }

 private:
  ComputeBackend& backend_;
  MemoryLedger ledger_;
  TrafficCounter traffic_;
  ProcessGrid grid_;
  RankProgram program_;
  ModelExecutor executor_;
  RankState state_{program_, executor_};
  std::optional<PinnedBuffer> snapshot_;
};

}  // namespace mylos
