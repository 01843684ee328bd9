// SPDX-License-Identifier: BSD-3-Clause
// The checkpoints of a run as directories: their names, and which of them are kept. These functions delete
// nothing that they do not recognise as mylos' own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mylos {

/// Which checkpoints are kept.
struct Retention {
  std::int64_t keep = 2;            ///< number of newest whole checkpoints
  std::int64_t keep_every = 0;      ///< steps; checkpoints at multiples of it are kept too; 0: none
  std::int64_t keep_abandoned = 1;  ///< number of newest `abandoned-<n>` directories
};

struct CheckpointSettings {
  Retention retention;
  std::int64_t alignment = 4096;  ///< bytes; applies to datasets of at least this size
};

/// Receives warnings, for example about a checkpoint that is skipped or cannot be deleted.
using Warn = std::function<void(const std::string&)>;

inline constexpr const char* temporary_suffix = ".tmp";

/// "step_000400".
std::string step_name(std::int64_t step);

/// The steps that have an entry in the directory, ascending, whatever the entry holds.
std::vector<std::int64_t> list_steps(const std::filesystem::path& directory);

/// Removes the temporary directories of killed or failed writers and interrupted removals, if they hold only
/// mylos' own files.
void remove_leftovers(const std::filesystem::path& directory, const Warn& warn);

/// Applies `retention` to the abandoned directories and to the checkpoints up to step `newest`: removes those
/// that it does not keep, unless they hold files other than mylos' own or a copy of another step's
/// checkpoint. A checkpoint with a damaged manifest or wrong file sizes stays, with a warning, if fewer than
/// `keep` newer ones are whole. The directories `own_abandoned`, which the caller has made, stay.
void purge(const std::filesystem::path& directory, std::int64_t newest, const Retention& retention,
           const std::vector<std::filesystem::path>& own_abandoned, const Warn& warn);

/// Moves the checkpoints of `steps` to a new directory `abandoned-<n>`, which it returns. Its number is
/// larger than that of any other in `directory`: numbers, not times, say which directory is newer.
std::filesystem::path abandon(const std::filesystem::path& directory, const std::vector<std::int64_t>& steps);

/// The steps after `step` that a run continuing at `step` gives up: all except those whose directory holds a
/// copy of another step's checkpoint.
std::vector<std::int64_t> steps_to_abandon(const std::filesystem::path& directory, std::int64_t step);

/// Bytes of all regular files below a directory.
std::uintmax_t bytes_in(const std::filesystem::path& directory);

}  // namespace mylos
