// SPDX-License-Identifier: BSD-3-Clause
#include "tests/support/waiting.hpp"

#include <algorithm>
#include <filesystem>
#include <regex>
#include <thread>
#include <vector>

namespace mylos::test {

bool wait_until(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + hang_limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool recorder_files_go() {
  namespace fs = std::filesystem;
  const std::regex recorder("mylos-[0-9a-f]+-[0-9]+");
  std::vector<fs::path> files;
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (std::regex_match(entry.path().filename().string(), recorder)) files.push_back(entry.path());
    }
  }
  return wait_until(
      [&] { return std::ranges::none_of(files, [](const fs::path& file) { return fs::exists(file); }); });
}

}  // namespace mylos::test
