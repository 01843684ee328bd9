// SPDX-License-Identifier: BSD-3-Clause
#include "io/checkpoint/checkpoint_directory.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <exception>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/base/error.hpp"
#include "core/base/watched_call.hpp"
#include "io/checkpoint/checkpoint_manifest.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view step_prefix = "step_";
/// For strftime(3) and strptime(3); a number follows if several directories were made in the same second.
constexpr const char* abandoned_format = "abandoned-%Y%m%dT%H%M%SZ";

/// The step that a directory's name encodes; empty if `step_name` would not produce exactly this name.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (name.size() <= step_prefix.size()) return std::nullopt;
  std::int64_t step = 0;
  const auto [end, error] =
      std::from_chars(name.data() + step_prefix.size(), name.data() + name.size(), step);
  if (error != std::errc() || step < 0 || step_name(step) != name) return std::nullopt;
  return step;
}

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error))
    entries.push_back(entry.path());
  if (error && error != std::errc::no_such_file_or_directory)
    fail(ExitCode::io, "cannot read {}: {}", directory.string(), error.message());
  std::ranges::sort(entries);
  return entries;
}

bool is_own_file(const fs::path& path) {
  constexpr std::array<std::string_view, 4> names = {"weights.h5", "optimizer.h5", "state.json",
                                                     "manifest.json"};
  fs::path name = path.filename();
  if (name.extension() == temporary_suffix) name = name.stem();
  return std::ranges::find(names, name.string()) != names.end() &&
         fs::is_regular_file(fs::symlink_status(path));
}

/// Whether a directory holds only files that mylos writes to a checkpoint.
bool is_own(const fs::path& checkpoint) try {
  return fs::is_directory(fs::symlink_status(checkpoint)) &&
         std::ranges::all_of(entries_of(checkpoint), is_own_file);
} catch (const std::exception&) {  // a directory that cannot be read is not known to be mylos' own
  return false;
}

/// Whether the manifest and the directory's name give different steps: a user's copy.
bool is_copy(const fs::path& checkpoint) {
  try {
    return step_name(read_manifest(checkpoint).step) != checkpoint.filename().string();
  } catch (const Error&) {
    return false;
  }
}

/// Renames the directory to a temporary name, then deletes it, so that a kill during the deletion leaves no
/// incomplete checkpoint under a checkpoint's name.
void remove_checkpoint(const fs::path& checkpoint, const Warn& warn) {
  const WatchedCall call(CallKind::io, "remove", checkpoint.native());
  std::error_code error;
  fs::path temporary = checkpoint;
  if (checkpoint.extension() != temporary_suffix) {
    temporary += temporary_suffix;
    fs::rename(checkpoint, temporary, error);
  }
  if (!error) fs::remove_all(temporary, error);
  if (error) warn(fmt::format("cannot remove {}: {}", checkpoint.string(), error.message()));
}

/// Whether `path` is a directory with a name like those that `abandon` gives.
bool is_abandoned(const fs::path& path) {
  std::string name = path.filename().string();
  std::tm time{};
  const char* rest = ::strptime(name.c_str(), abandoned_format, &time);
  if (rest == nullptr || !fs::is_directory(fs::symlink_status(path))) return false;
  return *rest == '\0' || (*rest == '-' && std::string_view(rest + 1).find_first_not_of("0123456789") ==
                                               std::string_view::npos);
}

std::vector<fs::path> abandoned_in(const fs::path& directory) {
  std::vector<fs::path> found = entries_of(directory);
  std::erase_if(found, [](const fs::path& entry) { return !is_abandoned(entry); });
  return found;
}

/// Whether `path` has a name that a killed or failed writer or an interrupted removal leaves.
bool is_leftover(const fs::path& path) {
  return path.extension() == temporary_suffix && step_of(path.stem().string());
}

void remove_abandoned(const fs::path& abandoned, const Warn& warn) {
  const std::vector<fs::path> entries = entries_of(abandoned);
  const bool is_known = std::ranges::all_of(entries, [](const fs::path& entry) {
    if (is_leftover(entry)) return is_own(entry);
    return step_of(entry.filename().string()) && is_own(entry) && !is_copy(entry);
  });
  if (!is_known) return;
  for (const fs::path& entry : entries) remove_checkpoint(entry, warn);
  std::error_code error;
  fs::remove(abandoned, error);
}

}  // namespace

std::string step_name(std::int64_t step) {
  return fmt::format("{}{:06}", step_prefix, step);
}

std::vector<std::int64_t> list_steps(const fs::path& directory) {
  std::vector<std::int64_t> steps;
  for (const fs::path& entry : entries_of(directory)) {
    if (const auto step = step_of(entry.filename().string())) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

void remove_leftovers(const fs::path& directory, const Warn& warn) {
  for (const fs::path& entry : entries_of(directory)) {
    if (is_leftover(entry) && is_own(entry)) remove_checkpoint(entry, warn);
  }
}

void purge(const fs::path& directory, std::int64_t newest, const Retention& retention, const Warn& warn) {
  std::vector<std::int64_t> steps = list_steps(directory);
  std::int64_t kept = 0;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (*step > newest) continue;
    const fs::path checkpoint = directory / step_name(*step);
    if (kept < retention.keep) {
      try {
        read_whole_manifest(checkpoint, *step);
        ++kept;
      } catch (const Error& error) {
        warn(fmt::format("{} is not whole: {}", step_name(*step), error.what()));
      }
      continue;
    }
    if (retention.keep_every > 0 && *step % retention.keep_every == 0) continue;
    if (is_own(checkpoint) && !is_copy(checkpoint)) remove_checkpoint(checkpoint, warn);
  }
  const std::vector<fs::path> abandoned = abandoned_in(directory);
  const auto most = static_cast<std::size_t>(retention.keep_abandoned);
  for (std::size_t i = 0; i + most < abandoned.size(); ++i) remove_abandoned(abandoned[i], warn);
}

fs::path abandon(const fs::path& directory, const std::vector<std::int64_t>& steps) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> name{};
  std::strftime(name.data(), name.size(), abandoned_format, &utc);
  fs::path target = unused_name(directory / name.data());
  make_directory(target);
  for (const std::int64_t step : steps) {
    rename_file(directory / step_name(step), target / step_name(step));
  }
  sync_path(target);
  sync_path(directory);
  return target;
}

std::vector<std::int64_t> steps_to_abandon(const fs::path& directory, std::int64_t step) {
  std::vector<std::int64_t> later = list_steps(directory);
  std::erase_if(later,
                [&](std::int64_t other) { return other <= step || is_copy(directory / step_name(other)); });
  return later;
}

std::uintmax_t bytes_in(const fs::path& directory) {
  std::uintmax_t bytes = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory, error)) {
    const bool is_file = entry.is_regular_file(error);
    const std::uintmax_t size = entry.file_size(error);
    if (is_file && !error) bytes += size;  // a file that vanishes in between counts as empty
  }
  return bytes;
}

}  // namespace mylos
