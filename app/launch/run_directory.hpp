// SPDX-License-Identifier: BSD-3-Clause
// RunDirectory: the directory of a run, its lock and its status.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.hpp"
#include "io/file_util.hpp"

namespace mylos {

/// Paths of a run.
struct RunPaths {
  std::filesystem::path root;
  std::string folder = {};  ///< where relative paths of its deck begin; for `write_status`
  std::filesystem::path resolved_deck() const { return root / "resolved.deck"; }
  std::filesystem::path metrics() const { return root / "metrics.h5"; }
  std::filesystem::path status() const { return root / "status.json"; }
  std::filesystem::path units(std::int64_t step) const { return root / fmt::format("units-{}.csv", step); }
  std::filesystem::path trace(std::int64_t step) const { return root / fmt::format("trace-{}.json", step); }
  std::filesystem::path ranks() const { return root / "gpt2.tiktoken"; }
  std::filesystem::path report() const { return root / "report.html"; }
  std::filesystem::path tensorboard() const { return root / "tensorboard"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }
};

/// The traces of a run by their steps. Throws ExitCode::io if there is a directory that cannot be read.
std::map<std::int64_t, std::filesystem::path> traces_of(const RunPaths& paths);

/// Creates and locks a run's directory, and the directory of its checkpoints if that is elsewhere. Rank 0
/// keeps this object for the whole run.
class RunDirectory {
 public:
  /// `checkpoints` names the directory of the checkpoints; after `begin`, `paths.checkpoints()` is that
  /// directory or a link to it. If no directory is named, the checkpoints are in `paths.checkpoints()`, which
  /// may be a link. Throws ExitCode::usage if `restart` is false but a run or checkpoints exist; if
  /// `checkpoints` is the run's directory itself, differs from the place that this run's checkpoints already
  /// have, or holds those of another run; or if another job has locked one of the two directories. Throws
  /// ExitCode::io if a directory cannot be written.
  RunDirectory(const RunPaths& paths, const std::filesystem::path& checkpoints, bool restart);

  /// Where the checkpoints are, or will be after `begin`.
  std::filesystem::path checkpoints() const;
  /// Makes the link to the checkpoints, if they are elsewhere. A run that does not continue another then
  /// removes metrics, status, report, traces and events of an earlier one. Returns their names. Throws
  /// ExitCode::io.
  std::vector<std::string> begin(bool restart);
  /// Removes the directories and locks that the constructor has made, for a run that does not begin. What
  /// holds other files stays.
  void withdraw();

 private:
  /// Has `withdraw` remove `path` and its parents if they do not exist yet.
  void note_missing(const std::filesystem::path& path);

  RunPaths paths_;
  std::vector<std::filesystem::path> made_;  // the outermost first
  std::filesystem::path to_link_;            // checkpoints elsewhere, to which there is no link yet
  std::unique_ptr<RunLock> lock_;
  std::unique_ptr<RunLock> checkpoint_lock_;  // of a checkpoint directory that other runs may name
  std::unique_ptr<RunLock> owner_lock_;       // of the run whose own checkpoint directory that is
};

/// Returns why a run cannot begin in its directory as it is now, or is to begin although it is meant to be
/// continued; "" if nothing is in its way. Changes nothing. The parameters are those of `RunDirectory`.
std::string run_directory_problem(const RunPaths& paths, const std::filesystem::path& checkpoints,
                                  bool restart);

/// Returns the folder in which the run was started, where relative paths of its resolved deck begin,
/// according to status.json; empty if unknown.
std::string folder_of_run(const RunPaths& paths);

/// Replaces status.json: the state of the run, its exit code once it has ended, and the machine. Never
/// throws; a status that cannot be written is reported on stderr.
void write_status(const RunPaths& paths, const std::string& state, std::optional<ExitCode> code,
                  std::int64_t step, const std::string& message) noexcept;

}  // namespace mylos
