// SPDX-License-Identifier: BSD-3-Clause
// Beacon: heartbeats between nodes, by messages.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include <mpi.h>

#include "core/base/semaphore.hpp"
#include "parallel/health/flight_recorder.hpp"

namespace mylos {

/// The lowest ranks of the nodes form a ring. Each sends its page to the next one with every heartbeat, as
/// far as the message before has left, so that a node that stops is seen by one other, whatever the number of
/// nodes.
class Beacon {
 public:
  /// Collective over MPI_COMM_WORLD. Without other nodes it does nothing.
  explicit Beacon(FlightRecorder& recorder);
  /// Waits for the last message of the rank before this one.
  ~Beacon();
  Beacon(const Beacon&) = delete;
  Beacon& operator=(const Beacon&) = delete;

  void set_interval(std::chrono::milliseconds interval) { interval_ = interval; }

 private:
  void run();

  FlightRecorder& recorder_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int next_ = 0, previous_ = 0;
  std::atomic<std::chrono::milliseconds> interval_{std::chrono::milliseconds(200)};
  std::atomic<bool> stops_{false};
  Semaphore wake_;
  std::thread thread_;
};

}  // namespace mylos
