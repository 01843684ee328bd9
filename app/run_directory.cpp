// SPDX-License-Identifier: BSD-3-Clause
#include "app/run_directory.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <unistd.h>

#include "core/base/say.hpp"
#include "core/base/version.hpp"
#include "io/checkpoint/checkpoint_directory.hpp"
#include "io/json.hpp"

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

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
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

RunDirectory::RunDirectory(const RunPaths& paths, const fs::path& checkpoints, bool restart) {
  make_directory(paths.root);
  lock_ = std::make_unique<RunLock>(paths.root, "run.dir");
  if (!restart && fs::exists(paths.resolved_deck())) {
    fail(ExitCode::usage, "{} already holds a run; continue it with --restart or choose another [run] dir",
         paths.root.string());
  }
  const fs::path link = paths.checkpoints();
  const bool is_link = fs::is_symlink(link);
  // For a link: the directory that it points to, even if that directory no longer exists.
  const fs::path present = place_of(is_link ? link.parent_path() / fs::read_symlink(link) : link);
  const fs::path place = checkpoints.empty() ? present : place_of(checkpoints);
  const bool has_none = !is_link && (!fs::exists(link) || (fs::is_directory(link) && fs::is_empty(link)));
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
           "run's, make "
           "{} a link to it",
           place.string(), link.string());
    }
    if (!restart) {
      fail(ExitCode::usage, "{} holds checkpoints; continue them with --restart or choose another [run] dir",
           place.string());
    }
  }
  make_directory(place);
  // Another run may have its checkpoints in this run's directory, or this run in another one's. Each takes
  // the lock that the other looks for before it looks for the other's.
  const bool is_own = place == present && !is_link;
  std::error_code error;
  if (!is_own || fs::exists(place / "lock", error))
    checkpoint_lock_ = std::make_unique<RunLock>(place, "checkpoint.dir");
  const fs::path owner = place.parent_path();
  if (!is_own && place.filename() == paths.checkpoints().filename() && fs::exists(owner / "lock", error))
    owner_lock_ = std::make_unique<RunLock>(owner, "checkpoint.dir");
  if (!restart) {
    for (const auto& [step, file] : traces_of(paths))
      if (remove_file(file)) removed_.push_back(file.filename());
    for (const fs::path& file : {paths.metrics(), paths.status(), paths.report()})
      if (remove_file(file)) removed_.push_back(file.filename());
  }
  if (is_own || is_link) return;
  fs::remove(link, error);  // at most an empty directory
  fs::create_directory_symlink(place, link, error);
  if (error) fail(ExitCode::io, "cannot link {} to {}: {}", link.string(), place.string(), error.message());
  sync_path(paths.root);
}

void write_status(const RunPaths& paths, const std::string& state, std::optional<ExitCode> code,
                  std::int64_t step, const std::string& message) noexcept {
  try {
    const Json status = Json::object({{"state", state},
                                      {"exit_code", code ? Json(static_cast<int>(*code)) : Json()},
                                      {"host", host_name()},
                                      {"processor", processor_name()},
                                      {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
                                      {"mylos", version()},
                                      {"git", git_hash()},
                                      {"step", step},
                                      {"message", message},
                                      {"unix_time", static_cast<std::int64_t>(std::time(nullptr))}});
    write_text_file(paths.status(), status.dump(2) + "\n");
  } catch (const std::exception& error) {
    say(stderr, "mylos: {} was not written: {}\n", paths.status().string(), message_of(error));
  }
}

}  // namespace mylos
