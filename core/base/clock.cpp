// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/clock.hpp"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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

}  // namespace mylos
