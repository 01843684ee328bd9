// SPDX-License-Identifier: BSD-3-Clause
// RunDirectory: the one directory of a run, its lock and its status.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "core/base/error.hpp"
#include "io/file_util.hpp"

namespace mylos {

/// Paths of a run.
struct RunPaths {
  std::filesystem::path root;
  std::filesystem::path resolved_deck() const { return root / "resolved.deck"; }
  std::filesystem::path metrics() const { return root / "metrics.h5"; }
  std::filesystem::path status() const { return root / "status.json"; }
  std::filesystem::path trace(std::int64_t step) const { return root / fmt::format("trace-{}.json", step); }
  std::filesystem::path ranks() const { return root / "gpt2.tiktoken"; }
  std::filesystem::path report() const { return root / "report.html"; }
  std::filesystem::path checkpoints() const { return root / "checkpoints"; }
};

/// Creates and locks a run's directory, and that of its checkpoints if it is elsewhere; held by rank 0 for
/// the whole run.
class RunDirectory {
 public:
  /// `checkpoints` names their directory; a link in the run's directory then shows it. If it is empty they
  /// stay in the directory that the link shows, or in the run's own. Throws ExitCode::usage if the run's
  /// directory holds a run and `restart` is false, if its checkpoints lie in another directory, or if another
  /// job has one of the two, ExitCode::io if they cannot be written.
  RunDirectory(const RunPaths& paths, const std::filesystem::path& checkpoints, bool restart);

 private:
  std::unique_ptr<RunLock> lock_;
  std::unique_ptr<RunLock> checkpoint_lock_;  // of a directory elsewhere
};

/// Replaces status.json: how the run stands (no code yet) or ended, and on which machine. Never throws; a
/// status that cannot be written is said on stderr.
void write_status(const RunPaths& paths, const std::string& state, std::optional<ExitCode> code,
                  std::int64_t step, const std::string& message) noexcept;

}  // namespace mylos
