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

RunDirectory::RunDirectory(const std::filesystem::path& root, bool restart) {
  const RunPaths paths{root};
  make_directory(root);
  lock_ = std::make_unique<RunLock>(root);
  if (!restart && std::filesystem::exists(paths.resolved_deck())) {
    fail(ExitCode::usage, "{} already holds a run; continue it with --restart or choose another [run] dir",
         root.string());
  }
  if (!restart && !list_steps(paths.checkpoints()).empty()) {
    fail(ExitCode::usage, "{} holds checkpoints; continue them with --restart or choose another [run] dir",
         paths.checkpoints().string());
  }
  make_directory(paths.checkpoints());
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
