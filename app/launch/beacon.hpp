// SPDX-License-Identifier: BSD-3-Clause
// Beacon: heartbeats between nodes, sent as MPI messages and as datagrams.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include <mpi.h>

#include "core/base/semaphore.hpp"
#include "parallel/health/flight_recorder.hpp"
#include "parallel/health/pulse.hpp"

namespace mylos {

/// The lowest ranks of the nodes form a ring. At every heartbeat, each of them sends its page to the next
/// one, unless its previous message is still in flight: on a slow link it waits behind the run's messages, so
/// the number of heartbeats is also sent as a datagram. If one of several nodes stops, exactly one other node
/// notices.
class Beacon {
 public:
  /// Collective over MPI_COMM_WORLD. Does nothing if the job has only one node.
  explicit Beacon(FlightRecorder& recorder);
  /// Sends a last message and waits for that of the previous rank in the ring.
  ~Beacon();
  Beacon(const Beacon&) = delete;
  Beacon& operator=(const Beacon&) = delete;

  void set_interval(std::chrono::milliseconds interval) { interval_ = interval; }

 private:
  void run();

  FlightRecorder& recorder_;
  std::optional<Pulse> pulse_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int next_ = 0, previous_ = 0;
  std::atomic<std::chrono::milliseconds> interval_{std::chrono::milliseconds(200)};
  std::atomic<bool> stops_{false};
  Semaphore wake_;
  std::thread thread_;
};

}  // namespace mylos
