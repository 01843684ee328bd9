// SPDX-License-Identifier: BSD-3-Clause
// The checkpoints of a run as directories: names, which are whole, which are kept. Nothing is deleted that
// mylos does not know as its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace mylos {

/// Which checkpoints stay.
struct Retention {
  std::int64_t keep = 2;            ///< of the newest whole ones
  std::int64_t keep_every = 0;      ///< steps: those of its multiples stay for good; 0 for none
  std::int64_t keep_abandoned = 1;  ///< of the newest `abandoned-<time>` directories
};

struct CheckpointSettings {
  Retention retention;
  std::int64_t alignment = 4096;  ///< bytes; of datasets that are larger
};

/// What is passed over or cannot be deleted is said here.
using Warn = std::function<void(const std::string&)>;

inline constexpr const char* temporary_suffix = ".tmp";

/// "step_000400".
std::string step_name(std::int64_t step);

/// The steps that have a directory, ascending, whatever it holds.
std::vector<std::int64_t> list_steps(const std::filesystem::path& directory);

/// Removes what a killed writer left.
void remove_leftovers(const std::filesystem::path& directory, const Warn& warn);

/// Removes what `retention` does not keep among the checkpoints up to step `newest`, which is whole.
void purge(const std::filesystem::path& directory, std::int64_t newest, const Retention& retention,
           const Warn& warn);

/// Moves checkpoints out of the way, to a new directory `abandoned-<time>`, which it returns.
std::filesystem::path abandon(const std::filesystem::path& directory, const std::vector<std::int64_t>& steps);

/// The steps beyond `step` that a run that continues there gives up: all but copies of others.
std::vector<std::int64_t> steps_to_abandon(const std::filesystem::path& directory, std::int64_t step);

/// Bytes of all files in a directory.
std::uintmax_t bytes_in(const std::filesystem::path& directory);

}  // namespace mylos
