// SPDX-License-Identifier: BSD-3-Clause
// SimulatedLink: delays messages as a network with a given latency and bandwidth would.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/communication/forwarding_communicator.hpp"

namespace mylos {

/// Hockney's model: a message of n bytes takes `latency` + 8 n / `gigabits_per_second` / 10⁹ seconds.
struct LinkModel {
  double latency = 0.0;              ///< seconds
  double gigabits_per_second = 1.0;  ///< greater than 0
};

/// The clock of the links, in nanoseconds since an epoch that all ranks share.
class LinkClock {
 public:
  virtual ~LinkClock() = default;
  virtual std::int64_t now() = 0;
  /// Whether `time` has come. Never blocks; a logical clock may advance to `time` and return true.
  virtual bool has_come(std::int64_t time) = 0;
  virtual void sleep_until(std::int64_t time) = 0;
};

/// CLOCK_MONOTONIC, which cannot be set and is the same for all processes of a machine. All ranks must be on
/// one machine.
LinkClock& monotonic_link_clock();

/// send and recv take at least as long as over a link that follows the model. Each ordered pair of ranks has
/// its own link, which carries one message at a time, whichever split the message belongs to. A message
/// starts once it is posted and the link is free, and occupies the link until it is delivered. A send is
/// complete when its buffer is free and the message's time of delivery has come; a receive is complete when
/// the message has arrived and that time has come.
///
/// Buffers are host memory. A barrier takes no simulated time. Native collectives would bypass the link, so
/// they throw ExitCode::usage; AlgorithmCommunicator builds collectives from send and recv.
class SimulatedLink final : public ForwardingCommunicator {
 public:
  /// Throws ExitCode::usage if the model is not valid. `clock` must outlive this, its splits and requests.
  SimulatedLink(NextCommunicator next, const LinkModel& model, LinkClock& clock = monotonic_link_clock());

  std::unique_ptr<Communicator> split(int color, int key) override;

 private:
  /// The links that leave this process, shared by all splits.
  class Links;

  SimulatedLink(NextCommunicator next, std::shared_ptr<Links> links, std::vector<int> world_ranks);

  Request start(const CommCall& call) override;

  std::shared_ptr<Links> links_;
  std::vector<int> world_ranks_;  // of the ranks of this communicator
};

}  // namespace mylos
