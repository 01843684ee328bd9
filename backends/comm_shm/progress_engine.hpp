// SPDX-License-Identifier: BSD-3-Clause
// ProgressEngine: advances what is under way on all communicators of a rank, and sleeps where nothing moves.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "backends/comm_shm/shared_part.hpp"

namespace mylos::comm_shm {

/// Counts what is left of an operation.
class Completion {
 public:
  explicit Completion(int remaining) : remaining_(remaining) {}
  void complete_one() { --remaining_; }
  bool done() const { return remaining_ == 0; }

 private:
  std::atomic<int> remaining_;
};

/// Operations that an engine advances. Called with the engine's lock held.
class Progressing {
 public:
  virtual ~Progressing() = default;
  /// Does the next short piece of work that does not wait for another rank; false where there was none.
  virtual bool advance() = 0;
};

/// Wakes whoever sleeps at the bell.
void ring(Doorbell& bell);

/// One for each rank, shared by its communicators: waiting for any operation advances all of them, so that
/// ranks may wait in different orders. Any thread may call it.
class ProgressEngine {
 public:
  /// `parts` are those of the communicator that all others were split from; `may_spin` where each rank has a
  /// core of its own.
  ProgressEngine(std::vector<SharedPart> parts, int rank, bool may_spin);

  void add(Progressing& member);
  void remove(Progressing& member);

  /// Calls `start`, which gives members work, and does what can be done of it at once.
  template <class Start>
  void post(Start&& start) {
    {
      const std::lock_guard lock(mutex_);
      start();
    }
    progress();
  }
  /// Advances everything as far as it goes, unless another thread is at it.
  void progress();
  /// Returns when the operation is complete.
  void wait(const Completion& completion);

  /// The bell of a rank of the first communicator.
  Doorbell& bell(int rank) const { return parts_[static_cast<std::size_t>(rank)].doorbell(); }

 private:
  bool advance_all();
  bool advance_locked();
  void sleep(const Completion& completion);

  std::vector<SharedPart> parts_;
  int rank_;
  bool may_spin_;
  std::mutex mutex_;
  std::vector<Progressing*> members_;
};

}  // namespace mylos::comm_shm
