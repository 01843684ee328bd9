// SPDX-License-Identifier: BSD-3-Clause
#include "app/run_directory.hpp"

#include <cstdio>
#include <ctime>

#include <nlohmann/json.hpp>

namespace mylos {

RunDirectory::RunDirectory(const std::filesystem::path& root, bool restart) {
  const RunPaths paths{root};
  make_directory(root);
  lock_ = std::make_unique<RunLock>(root);
  if (!restart && std::filesystem::exists(paths.resolved_deck())) {
    fail(ExitCode::usage, "{} already holds a run; continue it with --restart or choose another [run] dir",
         root.string());
  }
  make_directory(paths.checkpoints());
}

void write_status(const RunPaths& paths, const std::string& state, ExitCode code, std::int64_t step,
                  const std::string& message) noexcept {
  try {
    const nlohmann::json status = {{"state", state},
                                   {"exit_code", static_cast<int>(code)},
                                   {"step", step},
                                   {"message", message},
                                   {"unix_time", static_cast<std::int64_t>(std::time(nullptr))}};
    write_text_file(paths.status(), status.dump(2) + "\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "mylos: {} was not written: {}\n", paths.status().string(), error.what());
  }
}

}  // namespace mylos
