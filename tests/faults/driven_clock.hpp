// SPDX-License-Identifier: BSD-3-Clause
// DrivenClock: the time of a job, which a test drives.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/faults/run_mylos.hpp"
#include "tests/io/io_test_util.hpp"

namespace mylos::test {

/// The file that MYLOS_CLOCK names.
class DrivenClock {
 public:
  explicit DrivenClock(const fs::path& file) : file_(file) {
    spill(file, std::string(sizeof(Time), '\0'));
    const int descriptor = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
    void* page = ::mmap(nullptr, sizeof(Time), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    ::close(descriptor);
    if (page == MAP_FAILED) throw std::runtime_error("no clock");
    time_ = static_cast<Time*>(page);
  }
  ~DrivenClock() { ::munmap(time_, sizeof(Time)); }
  DrivenClock(const DrivenClock&) = delete;
  DrivenClock& operator=(const DrivenClock&) = delete;

  void advance(std::chrono::milliseconds time) { time_->fetch_add(std::chrono::nanoseconds(time).count()); }
  void advance(std::int64_t seconds) { advance(std::chrono::seconds(seconds)); }
  std::int64_t seconds() const { return time_->load() / 1'000'000'000; }
  std::string variable() const { return "MYLOS_CLOCK=" + file_.string(); }

 private:
  using Time = std::atomic<std::int64_t>;
  fs::path file_;
  Time* time_ = nullptr;
};

/// Lets time pass until the job has ended; returns how many seconds that took. `step` of the clock is about
/// what passes between two looks of the watchdog, so that a limit that is too short is seen; where the
/// watchdog is slower, more passes. For limits of 8 s.
std::int64_t seconds_until_end(const Job& job, DrivenClock& clock,
                               std::chrono::milliseconds step = std::chrono::milliseconds(500),
                               std::chrono::milliseconds between_looks = std::chrono::milliseconds(200));

}  // namespace mylos::test
