// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/progress_engine.hpp"

#include <algorithm>
#include <climits>
#include <ctime>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mylos::comm_shm {

namespace {

constexpr int spins = 2000;  // about 100 us
/// Further yields would cost time slices if other processes want the core; a sleep costs none.
constexpr int yields = 1;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Calls the kernel's futex, because the wait of std::atomic does not work between processes.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void ring(Doorbell& bell) {
  if (bell.sleepers == 0) return;
  ++bell.rings;
  futex(bell.rings, FUTEX_WAKE, INT_MAX, nullptr);
}

ProgressEngine::ProgressEngine(std::vector<SharedPart> parts, int rank, bool may_spin)
    : parts_(std::move(parts)), rank_(rank), may_spin_(may_spin) {}

void ProgressEngine::add(Progressing& member) {
  const std::lock_guard lock(mutex_);
  members_.push_back(&member);
}

void ProgressEngine::remove(Progressing& member) {
  const std::lock_guard lock(mutex_);
  std::erase(members_, &member);
}

bool ProgressEngine::advance_all() {
  bool moved = false;
  for (Progressing* member : members_) moved = member->advance() || moved;
  return moved;
}

bool ProgressEngine::advance_locked() {
  const std::lock_guard lock(mutex_);
  return advance_all();
}

void ProgressEngine::progress() {
  bool moved = true;
  while (moved) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    moved = lock.owns_lock() && advance_all();
    if (moved) ring(bell(rank_));  // another thread may be asleep, waiting for its operation
  }
}

void ProgressEngine::wait(const Completion& completion) {
  int idle = 0;
  while (!completion.done()) {
    if (advance_locked()) {
      ring(bell(rank_));
      idle = 0;
    } else if (may_spin_ && idle < spins) {
      ++idle;
      pause_briefly();
    } else if (idle < spins + yields) {
      idle = std::max(idle, spins) + 1;
      sched_yield();
    } else {
      sleep(completion);
      idle = 0;
    }
  }
}

void ProgressEngine::sleep(const Completion& completion) {
  // No wake-up is lost, even without a limit. The limit bounds the cost of a defect elsewhere.
  constexpr timespec limit = {.tv_sec = 0, .tv_nsec = 100'000'000};
  Doorbell& own = bell(rank_);
  ++own.sleepers;
  const std::uint32_t rings = own.rings;
  if (!advance_locked() && !completion.done()) futex(own.rings, FUTEX_WAIT, rings, &limit);
  --own.sleepers;
}

}  // namespace mylos::comm_shm
