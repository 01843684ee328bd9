// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints: directories of global tensors in parallel HDF5, written atomically, verified before they are
// read.
//
// A checkpoint is <run>/checkpoints/step_NNNNNN with weights.h5, optimizer.h5 (groups first_moment,
// second_moment), state.json and manifest.json (sizes and XXH3-128 digests per 64 MiB piece). It is written
// as step_NNNNNN.tmp and renamed when everything is on disk. See docs/schema.md.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/layout/box.hpp"
#include "io/io_thread.hpp"

namespace mylos {

/// A tensor of a checkpoint: its name and global, unpadded shape. Always fp32 in the file.
struct TensorInfo {
  std::string name;                 ///< Hugging Face's, e.g. "h.0.attn.c_attn.weight"
  std::vector<std::int64_t> shape;  ///< row-major
  std::int64_t size() const;
};

/// A box of a global tensor, and this rank's fp32 host memory for it: the first element lies at `data`,
/// neighbours along dimension d lie stride[d] elements apart. The last stride is 1, each other a multiple of
/// the next.
struct TensorPart {
  Box box;
  float* data = nullptr;
  std::vector<std::int64_t> stride;
};

/// Elements [begin, begin + count) of the flattened tensor, which lie one behind the other from `data` on.
std::vector<TensorPart> parts_of_range(const TensorInfo& tensor, std::int64_t begin, std::int64_t count,
                                       float* data);

/// Everything but tensors. The text is what the app makes of it (JSON); io adds nothing to it.
struct CheckpointState {
  std::int64_t step = 0;
  std::string json;  ///< content of state.json
};

/// What a checkpoint is written from: for each tensor, the parts that this rank writes. Over all ranks the
/// parts of a tensor cover it disjointly and completely, which the writer checks.
struct CheckpointContent {
  struct Tensor {
    std::string file;  ///< "weights.h5" or "optimizer.h5"
    TensorInfo info;   ///< name with group, e.g. "first_moment/h.0.ln_1.weight"
    std::vector<TensorPart> parts;
  };
  std::vector<Tensor> tensors;
  CheckpointState state;
};

/// What writing a checkpoint goes through, in this order.
enum class CheckpointPhase : std::uint8_t {
  begin,
  create,
  write,
  close,
  fsync,
  manifest,
  rename,
  purge,
  done,
};
inline constexpr int num_checkpoint_phases = 9;

constexpr std::string_view name_of(CheckpointPhase phase) {
  constexpr std::array<std::string_view, num_checkpoint_phases> names = {
      "begin", "create", "write", "close", "fsync", "manifest", "rename", "purge", "done"};
  return names[static_cast<std::size_t>(phase)];
}

/// Called at each phase of writing, on every rank. The fault hooks live behind it.
using CheckpointPhaseHook = std::function<void(CheckpointPhase phase)>;

/// Writes and finds the checkpoints of one run directory. Collective over the ranks of the I/O thread's
/// communicator.
class CheckpointStore {
 public:
  CheckpointStore(IoThread& io, std::filesystem::path directory, std::int64_t keep,
                  CheckpointPhaseHook hook = {});

  /// Writes `content` as step_NNNNNN (an existing one of that step is replaced only by the rename), then
  /// removes the oldest beyond `keep` (at least 2 are kept). Errors throw ExitCode::io with the file named;
  /// the caller aborts the job, since other ranks may wait in a collective. An error found before the first
  /// collective HDF5 call (no space, no permission) is agreed on by all ranks and thrown by all.
  void write(const CheckpointContent& content);

  /// The steps that have a manifest, ascending; `.tmp` leftovers are ignored.
  std::vector<std::int64_t> steps() const;
  std::filesystem::path path_of(std::int64_t step) const;

 private:
  IoThread& io_;
  std::filesystem::path directory_;
  std::int64_t keep_;
  CheckpointPhaseHook hook_;
};

/// An opened, verified checkpoint.
class CheckpointReader {
 public:
  /// Verifies manifest, sizes and digests (by all ranks, each its share) before any HDF5 call, then the
  /// schema. Throws ExitCode::bad_data naming file, piece, dataset and what was expected.
  CheckpointReader(IoThread& io, const std::filesystem::path& checkpoint);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;
  CheckpointReader& operator=(CheckpointReader&&) noexcept;

  const CheckpointState& state() const;
  /// The tensors of a file, in file order.
  std::vector<TensorInfo> tensors(const std::string& file) const;
  /// Reads parts of a tensor. Collective; throws ExitCode::bad_data with both shapes if the tensor is missing
  /// or has another shape.
  void read(const std::string& file, const TensorInfo& tensor, std::span<const TensorPart> parts);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The newest checkpoint of `directory` that verifies, or the one named by `step`. Older ones are tried with
/// a warning through `warn`; a named one that does not verify throws ExitCode::bad_data. Empty where there is
/// none.
std::optional<CheckpointReader> open_newest(IoThread& io, const std::filesystem::path& directory,
                                            std::optional<std::int64_t> step,
                                            const std::function<void(const std::string&)>& warn);

/// The digests of a checkpoint without opening HDF5; returns the problems found, empty where whole. For one
/// process.
std::vector<std::string> verify_checkpoint(const std::filesystem::path& checkpoint);

}  // namespace mylos
