// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints: directories of global tensors, written atomically by all ranks together and verified before
// they are read.
//
// A checkpoint is <run>/checkpoints/step_NNNNNN with weights.h5, optimizer.h5 (one group per optimizer
// state), state.json and manifest.json (XXH3-128 digests that cover every byte). Rank 0 lays out the HDF5
// files; every rank writes the bytes of its parts. The directory is written as step_NNNNNN.tmp and renamed
// when everything is on disk. See docs/schema.md.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint/checkpoint_directory.hpp"
#include "io/checkpoint/tensor.hpp"
#include "io/io_thread.hpp"

namespace mylos {

/// Everything except tensors. The app composes the JSON text; io adds nothing to it.
struct CheckpointState {
  std::int64_t step = 0;
  std::string json;  ///< content of state.json
};

/// The parts of a tensor that this rank writes or reads.
struct CheckpointTensor {
  std::string file;  ///< "weights.h5" or "optimizer.h5"
  TensorInfo info;   ///< name with group, e.g. "first_moment/h.0.ln_1.weight"
  std::vector<TensorPart> parts;
};

/// The data that a checkpoint is written from. The parts of a tensor on all ranks together must contain every
/// element exactly once; the writer checks this.
struct CheckpointContent {
  std::vector<CheckpointTensor> tensors;
  CheckpointState state;
};

/// The phases of writing a checkpoint, in order.
enum class CheckpointPhase : std::uint8_t {
  begin,
  create,
  write,
  fsync,
  manifest,
  rename,
  verify,
  purge,
  done,
};
inline constexpr int num_checkpoint_phases = 9;

constexpr std::string_view name_of(CheckpointPhase phase) {
  constexpr std::array<std::string_view, num_checkpoint_phases> names = {
      "begin", "create", "write", "fsync", "manifest", "rename", "verify", "purge", "done"};
  return names[static_cast<std::size_t>(phase)];
}

/// Called at each phase of writing the checkpoint of `step`, on the store's thread `io` of every rank. Fault
/// injection uses it.
using CheckpointPhaseHook = std::function<void(CheckpointPhase phase, std::int64_t step)>;

/// A checkpoint that has been written and read back.
struct WrittenCheckpoint {
  std::int64_t step = 0;
  std::int64_t bytes = 0;       ///< of its tensors, over all ranks
  double write_seconds = 0.0;   ///< until it was on disk under its final name
  double verify_seconds = 0.0;  ///< after that, for reading it back and removing older ones
};

/// Writes the checkpoints of one run, one at a time, and removes those that are no longer needed.
/// `check_file_system`, `write`, `start` and `abandon_after` are collective over the communicator of the
/// thread `io`.
class CheckpointStore {
 public:
  /// Works on thread `io` and calls HDF5 on thread `hdf5`; they may be the same.
  CheckpointStore(IoThread& io, IoThread& hdf5, std::filesystem::path directory, CheckpointSettings settings,
                  CheckpointPhaseHook hook = {}, Warn warn = {});
  /// Waits for the background work of `write` or `start`.
  ~CheckpointStore();
  CheckpointStore(const CheckpointStore&) = delete;
  CheckpointStore& operator=(const CheckpointStore&) = delete;

  /// Throws ExitCode::usage on all ranks if they are on several nodes and the directory is on NFS. NFS caches
  /// pages per node: if two nodes write parts of one page, one of them may lose its part.
  void check_file_system();

  /// Writes `content` as step_NNNNNN; an existing checkpoint of that step is moved to `abandoned-<n>`. On
  /// return the new checkpoint is on disk under its final name. While the caller continues, the checkpoint is
  /// read back, and after that the retention rules are applied. All ranks throw the same error: ExitCode::io
  /// naming the file, or ExitCode::numerical for values that are not finite.
  void write(const CheckpointContent& content);
  /// Like `write`, but the writing too runs while the caller continues. The memory that `content` refers to
  /// must not change until `finish` returns or `poll` returns a checkpoint.
  void start(CheckpointContent content);
  /// Waits for the background work of the last `write` or `start` and returns the checkpoint, or throws the
  /// work's error, as the next `write` or `start` would. Empty if there was no such work, or if its result
  /// has already been returned or thrown.
  std::optional<WrittenCheckpoint> finish();
  /// Like `finish` if the work has ended; otherwise returns empty without waiting.
  std::optional<WrittenCheckpoint> poll();

  /// Moves the checkpoints of `steps_to_abandon` to `abandoned-<n>`, for a run that continues at `step`. What
  /// this object has moved away, it never removes.
  void abandon_after(std::int64_t step);

  std::filesystem::path path_of(std::int64_t step) const;

 private:
  class Writer;

  /// Called on rank 0.
  std::filesystem::path abandon_steps(const std::vector<std::int64_t>& steps);
  void write_on_thread(const CheckpointContent& content);
  /// Reads the checkpoint back, then removes the older ones that are no longer needed.
  void verify_on_thread();

  IoThread& io_;
  IoThread& hdf5_;
  std::filesystem::path directory_;
  CheckpointSettings settings_;
  CheckpointPhaseHook hook_;
  Warn warn_;
  std::vector<std::filesystem::path> abandoned_;  // made by this object; of the I/O thread of rank 0
  WrittenCheckpoint written_;                     // belongs to the I/O thread until `finished_` is ready
  std::future<void> finished_;
};

/// An opened, verified checkpoint.
class CheckpointReader {
 public:
  /// Collective: verifies manifest, sizes and digests before any value is used; each rank checks its share of
  /// the digests. Throws ExitCode::bad_data if a check fails or the checkpoint is not of `step`; the message
  /// names the file and, if known, the dataset. Throws ExitCode::io if a file cannot be read.
  CheckpointReader(IoThread& io, const std::filesystem::path& checkpoint,
                   std::optional<std::int64_t> step = std::nullopt);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;

  const CheckpointState& state() const;
  /// Whether there is a file of this name: "optimizer.h5" may be missing from a checkpoint of weights only.
  bool has(const std::string& file) const;
  /// The tensors of a file, in the manifest's order. Throws ExitCode::bad_data if the checkpoint has no such
  /// file.
  std::vector<TensorInfo> tensors(const std::string& file) const;
  /// Reads this rank's parts of a tensor. Throws ExitCode::bad_data with the expected shape if the tensor is
  /// missing or has another shape.
  void read(const CheckpointTensor& wanted) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The newest checkpoint of `directory` that passes verification, or that of `step` if given. Newer ones that
/// fail are skipped with a warning. Throws ExitCode::bad_data if all checkpoints fail, or if that of `step`
/// does. Empty if `step` is not given and `directory` has no checkpoints.
std::optional<CheckpointReader> open_newest(IoThread& io, const std::filesystem::path& directory,
                                            std::optional<std::int64_t> step, const Warn& warn);

/// Checks sizes and digests of a checkpoint. Returns the problems found, empty if it is whole. For one
/// process.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace mylos
