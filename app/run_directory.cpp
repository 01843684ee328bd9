// SPDX-License-Identifier: BSD-3-Clause
#include "app/run_directory.hpp"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string_view>
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

fs::path resolved(const fs::path& path) {
  return fs::weakly_canonical(fs::absolute(path));
}

}  // namespace

std::map<std::int64_t, fs::path> traces_in(const RunPaths& paths) {
  constexpr std::string_view before = "trace-";
  std::map<std::int64_t, fs::path> traces;
  for (const auto& entry : fs::directory_iterator(paths.root)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(before)) continue;
    const std::int64_t step = std::atoll(name.c_str() + before.size());
    if (paths.trace(step).filename() == name) traces.emplace(step, entry.path());
  }
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
  const fs::path present = resolved(is_link ? link.parent_path() / fs::read_symlink(link) : link);
  const fs::path place = checkpoints.empty() ? present : resolved(checkpoints);
  const bool has_none = !is_link && (!fs::exists(link) || (fs::is_directory(link) && fs::is_empty(link)));
  if (place == resolved(paths.root))
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
  if (place == present && !is_link) return;
  checkpoint_lock_ = std::make_unique<RunLock>(place, "checkpoint.dir");
  if (is_link) return;
  std::error_code error;
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
    say(stderr, "mylos: {} was not written: {}\n", paths.status().string(), error.what());
  }
}

}  // namespace mylos
