// SPDX-License-Identifier: BSD-3-Clause
// Semaphore: a POSIX semaphore (sem_init(3)), because std::counting_semaphore spins before it sleeps.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <semaphore.h>

namespace mylos {

/// Takes no lock; a signal handler may call `release`.
class Semaphore {
 public:
  Semaphore() { sem_init(&semaphore_, 0, 0); }
  ~Semaphore() { sem_destroy(&semaphore_); }
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  void release() { sem_post(&semaphore_); }
  void acquire() {
    while (sem_wait(&semaphore_) != 0 && errno == EINTR) {
    }
  }
  /// Returns whether it acquired the semaphore within `time`.
  bool acquire_for(std::chrono::nanoseconds time) {
    constexpr std::int64_t second = 1'000'000'000;
    timespec until{};
    clock_gettime(CLOCK_MONOTONIC, &until);
    const std::int64_t nanoseconds = until.tv_nsec + time.count();
    until.tv_sec += nanoseconds / second;
    until.tv_nsec = nanoseconds % second;
    int failed = 0;
    do {
      failed = sem_clockwait(&semaphore_, CLOCK_MONOTONIC, &until);
    } while (failed != 0 && errno == EINTR);
    return failed == 0;
  }

 private:
  sem_t semaphore_{};
};

}  // namespace mylos
