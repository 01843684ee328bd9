// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/clock.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/core.h>

#include "core/base/error.hpp"

namespace mylos {

namespace {

using Nanoseconds = std::atomic<std::int64_t>;

/// Maps the file that MYLOS_CLOCK names; null if there is no such variable.
const Nanoseconds* map_driver() {
  const char* file = Clock::driver();
  if (*file == '\0') return nullptr;
  void* page = MAP_FAILED;
  struct stat status {};
  const int descriptor = ::open(file, O_RDONLY | O_CLOEXEC);
  if (descriptor >= 0 && ::fstat(descriptor, &status) == 0 &&
      status.st_size == static_cast<off_t>(sizeof(Nanoseconds)))
    page = ::mmap(nullptr, sizeof(Nanoseconds), PROT_READ, MAP_SHARED, descriptor, 0);
  if (descriptor >= 0) ::close(descriptor);
  if (page == MAP_FAILED) fail(ExitCode::usage, "MYLOS_CLOCK=\"{}\" is not a file of 8 bytes", file);
  return static_cast<const Nanoseconds*>(page);
}

}  // namespace

const char* Clock::driver() {
  const char* file = std::getenv("MYLOS_CLOCK");
  return file != nullptr ? file : "";
}

Clock::time_point Clock::now() {
  static const Nanoseconds* const driven = map_driver();
  if (driven == nullptr) return std::chrono::steady_clock::now();
  return time_point(std::chrono::nanoseconds(driven->load()));
}

std::string clock_text(double seconds) {
  constexpr double longest = 1e15;
  const auto s = static_cast<std::int64_t>(std::clamp(seconds, 0.0, longest));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace mylos
