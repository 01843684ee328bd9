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
#include <tuple>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/watched_call.hpp"
#include "io/checkpoint/checkpoint_manifest.hpp"
#include "io/file_util.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view step_prefix = "step_";
constexpr std::string_view abandoned_prefix = "abandoned-";
/// The names that earlier versions gave, for strptime(3); "-2", "-3" ... followed if several directories were
/// made in the same second.
constexpr const char* timed_format = "abandoned-%Y%m%dT%H%M%SZ";

/// The number after `prefix` in a name; empty if `name_of(number)` is not exactly this name.
std::optional<std::int64_t> number_in(const std::string& name, std::string_view prefix,
                                      std::string (*name_of)(std::int64_t)) {
  if (name.size() <= prefix.size()) return std::nullopt;
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
  if (error != std::errc() || number < 0 || name_of(number) != name) return std::nullopt;
  return number;
}

std::optional<std::int64_t> step_of(const std::string& name) {
  return number_in(name, step_prefix, step_name);
}

std::string abandoned_name(std::int64_t number) {
  return fmt::format("{}{:04}", abandoned_prefix, number);
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
  constexpr std::array<std::string_view, 5> names = {"weights.h5", "optimizer.h5", "versions.h5",
                                                     "state.json", "manifest.json"};
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

/// The place of a directory in the order in which `abandon` made them; empty if it gives no such names.
/// Those with a time in their name come first, as they are from an earlier version.
using AbandonedOrder =
    std::tuple<std::int64_t, std::string, std::int64_t>;  // number, time, number in a second
std::optional<AbandonedOrder> abandoned_order(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!fs::is_directory(fs::symlink_status(path))) return std::nullopt;
  if (const auto number = number_in(name, abandoned_prefix, abandoned_name)) return {{*number, "", 0}};
  std::tm time{};
  const char* rest = ::strptime(name.c_str(), timed_format, &time);
  if (rest == nullptr) return std::nullopt;
  const std::string timed(name.c_str(), rest);
  if (*rest == '\0') return {{-1, timed, 1}};
  std::int64_t in_second = 0;
  const char* end = name.data() + name.size();
  const bool is_numbered = *rest == '-' && std::from_chars(rest + 1, end, in_second).ptr == end;
  return is_numbered ? std::optional<AbandonedOrder>({-1, timed, in_second}) : std::nullopt;
}

/// The oldest first.
std::vector<fs::path> abandoned_in(const fs::path& directory) {
  std::vector<std::pair<AbandonedOrder, fs::path>> found;
  for (const fs::path& entry : entries_of(directory)) {
    if (auto order = abandoned_order(entry)) found.emplace_back(std::move(*order), entry);
  }
  std::ranges::sort(found);
  std::vector<fs::path> paths;
  for (auto& [order, path] : found) paths.push_back(std::move(path));
  return paths;
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

void purge(const fs::path& directory, std::int64_t newest, const Retention& retention,
           const std::vector<fs::path>& own_abandoned, const Warn& warn) {
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
  for (std::size_t i = 0; i + most < abandoned.size(); ++i) {
    if (std::ranges::find(own_abandoned, abandoned[i]) == own_abandoned.end())
      remove_abandoned(abandoned[i], warn);
  }
}

fs::path abandon(const fs::path& directory, const std::vector<std::int64_t>& steps) {
  std::int64_t number = 1;
  for (const fs::path& entry : entries_of(directory)) {  // whatever it is
    if (const auto taken = number_in(entry.filename().string(), abandoned_prefix, abandoned_name))
      number = std::max(number, *taken + 1);
  }
  fs::path target = directory / abandoned_name(number);
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
