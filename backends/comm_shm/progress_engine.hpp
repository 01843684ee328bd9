// SPDX-License-Identifier: BSD-3-Clause
// ProgressEngine: advances the pending operations of a rank's communicators, and sleeps if nothing moves.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "backends/comm_shm/shared_part.hpp"

namespace mylos::comm_shm {

/// Counts the unfinished parts of an operation.
class Completion {
 public:
  explicit Completion(int remaining) : remaining_(remaining) {}
  void complete_one() { --remaining_; }
  bool done() const { return remaining_ == 0; }

 private:
  std::atomic<int> remaining_;
};

/// Operations that an engine advances. `advance` is called with the engine's lock held.
class Progressing {
 public:
  virtual ~Progressing() = default;
  /// Does work that need not wait for another rank; false if there was none.
  virtual bool advance() = 0;
};

/// Wakes the threads that sleep at the bell.
void ring(Doorbell& bell);

/// A rank has one engine for its first communicator and all that are split from it. Waiting for any operation
/// advances the operations of all these communicators, so that ranks may wait in different orders. Any thread
/// may call the engine.
class ProgressEngine {
 public:
  /// `parts` are the parts of the first communicator, from which all others are split. `may_spin`: there is a
  /// core for each rank.
  ProgressEngine(std::vector<SharedPart> parts, int rank, bool may_spin);

  void add(Progressing& member);
  void remove(Progressing& member);

  /// Calls `start`, which gives members work, and then `progress`.
  template <class Start>
  void post(Start&& start) {
    {
      const std::lock_guard lock(mutex_);
      start();
    }
    progress();
  }
  /// Advances all members until nothing moves or another thread holds the lock.
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
