// SPDX-License-Identifier: BSD-3-Clause
#include "app/run_directory.hpp"

#include <cstdio>
#include <ctime>
#include <fstream>
#include <unistd.h>

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

/// Where the checkpoints of a run lie or will lie: `link` itself, or what it shows or shall show.
fs::path place_of_checkpoints(const fs::path& link, const fs::path& wish) {
  const bool is_link = fs::is_symlink(link);
  fs::path present = is_link ? fs::weakly_canonical(link) : link;
  if (wish.empty()) return present;
  const fs::path wanted = fs::weakly_canonical(fs::absolute(wish));
  const bool is_free = !is_link && (!fs::exists(link) || fs::is_empty(link));
  if (is_free || wanted == fs::weakly_canonical(present)) return is_free ? wanted : present;
  fail(
      ExitCode::usage,
      "the checkpoints of this run are in {}, not in [checkpoint] dir = {}: move them, or {}",
      present.string(), wish.string(),
      is_link ? fmt::format("let the link {} show the new place", link.string()) : "leave the parameter out");
}

}  // namespace

RunDirectory::RunDirectory(const RunPaths& paths, const fs::path& checkpoints, bool restart) {
  make_directory(paths.root);
  lock_ = std::make_unique<RunLock>(paths.root, "run.dir");
  if (!restart && fs::exists(paths.resolved_deck())) {
    fail(ExitCode::usage, "{} already holds a run; continue it with --restart or choose another [run] dir",
         paths.root.string());
  }
  const fs::path link = paths.checkpoints();
  const fs::path place = place_of_checkpoints(link, checkpoints);
  if (!restart && !list_steps(place).empty()) {
    fail(ExitCode::usage, "{} holds checkpoints; continue them with --restart or choose another {}",
         place.string(), place == link ? "[run] dir" : "[checkpoint] dir");
  }
  make_directory(place);
  if (place == link) return;
  checkpoint_lock_ = std::make_unique<RunLock>(place, "checkpoint.dir");
  if (fs::is_symlink(link)) return;
  std::error_code error;
  fs::remove(link, error);  // an empty directory
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
    fmt::print(stderr, "mylos: {} was not written: {}\n", paths.status().string(), error.what());
  }
}

}  // namespace mylos
