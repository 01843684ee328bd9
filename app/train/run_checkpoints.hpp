// SPDX-License-Identifier: BSD-3-Clause
// RunCheckpoints: the checkpoints of a run that trains, and what they cost it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/deck/run_config.hpp"
#include "app/launch/session.hpp"
#include "core/base/clock.hpp"
#include "core/memory/pinned_buffer.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "parallel/engine/replica_check.hpp"
#include "parallel/engine/training_step.hpp"

namespace mylos {

/// Writes the states of a training step, with `[checkpoint] async` while the run goes on, and compares the
/// replicas before: otherwise a restart could continue from a corrupt one. All calls are made by all ranks,
/// at the same step.
class RunCheckpoints {
 public:
  /// Called after a checkpoint was written and read back, with the seconds for which training waited.
  using OnWritten = std::function<void(const WrittenCheckpoint& written, double stall_seconds)>;

  struct Context {
    Session& session;
    TrainingStep& training;
    const CheckpointConfig& config;
    std::filesystem::path directory;
    IoThread& io;    ///< writes, reads back, hashes
    IoThread& hdf5;  ///< calls HDF5
    CheckpointPhaseHook hook;
    Warn warn;
    OnWritten on_written;
  };

  explicit RunCheckpoints(Context context);
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;
  /// Waits for the hashes of a checkpoint, which another thread computes.
  ~RunCheckpoints();

  CheckpointStore& store() { return store_; }

  /// Whether `step` has a checkpoint, from which the run may have started.
  bool has(std::int64_t step) const { return newest_ == step; }
  void start_after(std::int64_t step) { newest_ = step; }

  /// Writes the states after `step`, in the background if the run goes on and the deck asks for it. `json` is
  /// the run's state.
  void write(std::int64_t step, const std::string& json, bool ends_run);
  /// Begins to write a checkpoint whose replicas were hashed beside the step. Before the optimizer's next
  /// step.
  void write_hashed();
  /// Notes a checkpoint that has been written by now.
  void poll() { note(store_.poll()); }
  /// Waits for a checkpoint that is being written.
  void finish() { note(store_.finish()); }
  /// Compares the replicas. Throws ExitCode::numerical if they differ.
  void check_replicas(std::int64_t step);

  /// The time since a checkpoint that is under way was begun; nothing without one.
  std::optional<double> seconds_under_way() const;
  /// The seconds for which training has waited since the last call.
  double take_seconds() { return std::exchange(seconds_, 0.0); }
  /// The traffic of comparing replicas while a step was being queued, since the last call: not that step's.
  std::vector<TrafficRow> take_traffic() { return std::exchange(comparison_traffic_, {}); }

 private:
  /// A checkpoint whose states are hashed while the next step runs; it is written once the replicas' hashes
  /// agree.
  struct Pending {
    CheckpointContent content;
    std::vector<StateHash> hashes;  // set by `hashed`
    std::future<void> hashed;
  };

  std::vector<StateHash> hashes();
  void compare(const std::vector<StateHash>& hashes, std::int64_t step);
  void note(const std::optional<WrittenCheckpoint>& written);

  Session& session_;
  ComputeBackend& backend_;
  TrainingStep& training_;
  std::optional<PinnedBuffer> snapshot_;  // for [checkpoint] async; outlives the store, which writes it
  CheckpointStore store_;
  IoThread& io_;
  OnWritten on_written_;
  std::optional<Pending> pending_;
  std::vector<TrafficRow> comparison_traffic_;
  std::int64_t newest_ = -1;
  double seconds_ = 0.0;
  double stall_seconds_ = 0.0;              // of the checkpoint under way
  std::optional<Clock::time_point> begin_;  // empty if none is under way
};

}  // namespace mylos
