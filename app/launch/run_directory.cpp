// SPDX-License-Identifier: BSD-3-Clause
#include "app/launch/run_directory.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <unistd.h>

#include "app/launch/shared_directory.hpp"
#include "core/base/host.hpp"
#include "core/base/say.hpp"
#include "core/base/version.hpp"
#include "core/base/what_is_at.hpp"
#include "io/checkpoint/checkpoint_directory.hpp"
#include "io/json.hpp"
#include "io/tensorboard/event_file.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

std::string processor_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

std::map<std::int64_t, fs::path> traces_of(const RunPaths& paths) {
  std::map<std::int64_t, fs::path> traces;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(paths.root, error)) {
    const std::string name = entry.path().filename();
    const std::size_t digit = std::min(name.find_first_of("0123456789"), name.size());
    std::int64_t step = 0;
    std::from_chars(name.data() + digit, name.data() + name.size(), step);
    if (name == paths.trace(step).filename()) traces.emplace(step, entry.path());
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    fail(ExitCode::io, "cannot read {}: {}; there is {}", paths.root.string(), error.message(),
         what_is_at(paths.root));
  return traces;
}

namespace {

/// Where a run's checkpoints are.
struct CheckpointPlace {
  fs::path place;
  bool is_elsewhere = false;  ///< not in the run's directory
  bool has_link = false;      ///< in the run's directory
};

/// Throws ExitCode::usage like the constructor of `RunDirectory`, except for locks.
CheckpointPlace check_directory(const RunPaths& paths, const fs::path& checkpoints, bool restart) {
  if (!restart && fs::exists(paths.resolved_deck())) {
    fail(ExitCode::usage, "{} already holds a run; continue it with --restart or choose another [run] dir",
         paths.root.string());
  }
  const fs::path link = paths.checkpoints();
  const bool is_link = fs::is_symlink(link);
  // For a link: the directory that it points to, even if that directory no longer exists.
  const fs::path present = place_of(is_link ? link.parent_path() / fs::read_symlink(link) : link);
  const fs::path place = checkpoints.empty() ? present : place_of(checkpoints);
  const auto holds_nothing = [&] {
    const fs::directory_iterator entries(link);
    return std::all_of(begin(entries), end(entries),
                       [](const auto& entry) { return is_probe(entry.path()); });
  };
  const bool has_none = !is_link && (!fs::exists(link) || (fs::is_directory(link) && holds_nothing()));
  if (place == place_of(paths.root))
    fail(ExitCode::usage, "[checkpoint] dir = {} is the run's directory itself", checkpoints.string());
  if (place != present && !has_none) {
    fail(ExitCode::usage,
         "the checkpoints of this run are in {}, not in [checkpoint] dir = {}: move them, or {}",
         present.string(), checkpoints.string(),
         is_link ? fmt::format("point the link {} to the new place", link.string())
                 : "leave the parameter out");
  }
  if (!list_steps(place).empty()) {
    if (place != present) {
      fail(ExitCode::usage,
           "{} holds checkpoints of another run; choose another [checkpoint] dir, or, if they are this "
           "run's, make {} a link to it",
           place.string(), link.string());
    }
    if (!restart) {
      fail(ExitCode::usage, "{} holds checkpoints; continue them with --restart or choose another [run] dir",
           place.string());
    }
  }
  return {.place = place, .is_elsewhere = place != present || is_link, .has_link = is_link};
}

}  // namespace

std::string run_directory_problem(const RunPaths& paths, const fs::path& checkpoints, bool restart) {
  for (const fs::path& directory : {paths.root, checkpoints}) {
    const std::string holder = directory.empty() ? "" : run_lock_holder(directory);
    if (!holder.empty()) return fmt::format("{} is in use by {}", directory.string(), holder);
  }
  try {
    const CheckpointPlace found = check_directory(paths, checkpoints, restart);
    if (restart && list_steps(found.place).empty())
      return fmt::format("{} holds no checkpoint: with --restart the run begins at step 0",
                         found.place.string());
  } catch (const Error& error) {
    return error.what();
  }
  fs::path present = fs::absolute(paths.root);
  std::error_code error;
  while (!fs::exists(present, error) && present.has_relative_path()) present = present.parent_path();
  if (!fs::is_directory(present, error)) return fmt::format("{} is not a directory", present.string());
  return ::access(present.c_str(), W_OK | X_OK) == 0
             ? ""
             : fmt::format("{} cannot be written: {}", present.string(), std::strerror(errno));
}

RunDirectory::RunDirectory(const RunPaths& paths, const fs::path& checkpoints, bool restart) : paths_(paths) {
  note_missing(paths.root);
  make_directory(paths.root);
  note_missing(paths.root / "lock");
  lock_ = std::make_unique<RunLock>(paths.root, "run.dir");
  const CheckpointPlace found = check_directory(paths, checkpoints, restart);
  const fs::path& place = found.place;
  note_missing(place);
  make_directory(place);
  // Another run may have its checkpoints in this run's directory, or this run in another one's. Each takes
  // the lock that the other looks for before it looks for the other's.
  std::error_code error;
  if (found.is_elsewhere) note_missing(place / "lock");
  if (found.is_elsewhere || fs::exists(place / "lock", error))
    checkpoint_lock_ = std::make_unique<RunLock>(place, "checkpoint.dir");
  const fs::path owner = place.parent_path();
  if (found.is_elsewhere && place.filename() == paths.checkpoints().filename() &&
      fs::exists(owner / "lock", error))
    owner_lock_ = std::make_unique<RunLock>(owner, "checkpoint.dir");
  if (found.is_elsewhere && !found.has_link) to_link_ = place;
}

fs::path RunDirectory::checkpoints() const {
  return to_link_.empty() ? paths_.checkpoints() : to_link_;
}

void RunDirectory::note_missing(const fs::path& path) {
  std::error_code unknown;
  std::vector<fs::path> missing;
  for (fs::path part = path; !part.empty() && !fs::exists(fs::symlink_status(part, unknown));
       part = part.parent_path())
    missing.push_back(part);
  made_.insert(made_.end(), missing.rbegin(), missing.rend());
}

std::vector<std::string> RunDirectory::begin(bool restart) {
  if (!to_link_.empty()) {
    const fs::path link = paths_.checkpoints();
    std::error_code error;
    remove_probes(link);
    fs::remove(link, error);  // at most an empty directory
    fs::create_directory_symlink(to_link_, link, error);
    if (error)
      fail(ExitCode::io, "cannot link {} to {}: {}", link.string(), to_link_.string(), error.message());
    sync_path(paths_.root);
  }
  std::vector<std::string> removed;
  if (restart) return removed;
  for (const auto& [step, trace] : traces_of(paths_)) {
    for (const fs::path& file : {trace, paths_.units(step)})
      if (remove_file(file)) removed.push_back(file.filename());
  }
  for (const fs::path& file : {paths_.metrics(), paths_.status(), paths_.report()})
    if (remove_file(file)) removed.push_back(file.filename());
  for (const char* name : {"train", "eval"}) {
    const fs::path folder = paths_.tensorboard() / name;
    for (const fs::path& file : event_files(folder))
      if (remove_file(file)) removed.push_back(file.lexically_relative(paths_.root));
  }
  return removed;
}

void RunDirectory::withdraw() {
  std::error_code ignored;
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) fs::remove(*path, ignored);
}

std::string folder_of_run(const RunPaths& paths) {
  std::error_code unknown;
  if (!fs::is_regular_file(paths.status(), unknown)) return "";
  const std::optional<Json> status = Json::parse_if_whole(read_text_file(paths.status()));
  return status && status->is_object() && status->has("folder") ? status->text("folder") : "";
}

void write_status(const RunPaths& paths, const std::string& state, std::optional<ExitCode> code,
                  std::int64_t step, const std::string& message) noexcept {
  try {
    const std::optional<SlurmJob> job = slurm_job();
    const Json status = Json::object({{"state", state},
                                      {"exit_code", code ? Json(static_cast<int>(*code)) : Json()},
                                      {"host", host_name()},
                                      {"slurm_job", job ? Json(job->id) : Json()},
                                      {"processor", processor_name()},
                                      {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
                                      {"mylos", version()},
                                      {"git", git_hash()},
                                      {"folder", paths.folder},
                                      {"step", step},
                                      {"message", message},
                                      {"unix_time", static_cast<std::int64_t>(std::time(nullptr))}});
    write_text_file(paths.status(), status.dump(2) + "\n");
  } catch (const std::exception& error) {
    say(stderr, "mylos: {} was not written: {}\n", paths.status().string(), error_of(error).what());
    std::error_code ignored;
    fs::remove(paths.status(), ignored);  // it tells of an earlier state
  }
}

}  // namespace mylos
