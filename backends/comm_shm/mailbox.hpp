// SPDX-License-Identifier: BSD-3-Clause
// Mailbox: messages between the ranks of one communicator, through a byte ring for each ordered pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "backends/comm_shm/progress_engine.hpp"
#include "backends/comm_shm/shared_memory.hpp"
#include "backends/comm_shm/shared_part.hpp"
#include "core/base/error.hpp"
#include "core/memory/memory_charge.hpp"

namespace mylos::comm_shm {

/// A send through the ring is complete once its last byte is in the ring. A message of at least 16 KiB with a
/// tag below 16384 that would have to wait for room in the ring goes into shared memory instead (a parcel),
/// so that it arrives while the sender computes. Such a send is complete once the receiver has taken the
/// parcel. Messages and receives match by tag, messages in the order of sending and receives in the order of
/// posting. A message without a receive is kept until one is posted. `push_*` are called with the engine's
/// lock held.
class Mailbox final : public Progressing {
 public:
  /// `bells`: one for each rank of the communicator. Parcels are charged to `ledger`, which may be null.
  Mailbox(SharedMemory& memory, MemoryLedger* ledger, const std::vector<SharedPart>& parts, int rank,
          std::vector<Doorbell*> bells);

  void push_send(int peer, int tag, const std::byte* data, std::size_t bytes,
                 std::shared_ptr<Completion> completion);
  void push_recv(int peer, int tag, std::byte* data, std::size_t bytes,
                 std::shared_ptr<Completion> completion);
  bool advance() override;

 private:
  /// Announces a message in the ring.
  struct Header {
    std::int64_t tag;
    std::uint64_t bytes;
    std::int64_t parcel;         // key; `none` if the bytes follow in the ring
    std::uint64_t parcel_bytes;  // size of the parcel's memory
  };
  static constexpr std::int64_t none = -1;
  /// Memory for one message to a peer, reused once the peer has taken the message.
  struct Parcel {
    SharedMemory::Offer offer;
    MemoryCharge charge;
    std::uint64_t bytes;
    std::uint64_t taken_at;                  // taken once the peer has read the ring up to here
    std::shared_ptr<Completion> completion;  // null if the parcel is free
  };
  struct Outgoing {
    Header header;
    const std::byte* data;
    std::uint64_t sent;
    bool header_sent;
    std::shared_ptr<Completion> completion;
  };
  struct Receive {
    std::int64_t tag;
    std::byte* data;
    std::uint64_t bytes;
    std::shared_ptr<Completion> completion;
  };
  struct Incoming {
    Header header;
    std::uint64_t received;
    std::byte* data;
    std::unique_ptr<std::byte[]> kept;       // used if no receive has matched
    std::shared_ptr<Completion> completion;  // of the matching receive
  };
  struct Peer {
    std::deque<Outgoing> outgoing;
    std::deque<Parcel> parcels;
    std::map<std::int64_t, SharedBytes> opened;  // mapped parcels of the peer, by key
    std::deque<Receive> receives;                // not yet matched
    // Messages that no receive has matched. If `arriving`, the last one is incomplete and may have a receive.
    std::deque<Incoming> incoming;
    bool arriving = false;
  };

  void push_parcel(int peer, int tag, const std::byte* data, std::size_t bytes,
                   std::shared_ptr<Completion> completion);
  /// Completes the sends whose parcels the peer has taken.
  bool finish_parcels(int peer);
  bool send_some(int peer);
  bool receive_some(int peer);
  void publish(Counter& counter, std::uint64_t value, int peer);
  void begin_arrival(Peer& from, const Header& header);
  void end_arrival(Peer& from);

  SharedMemory& memory_;
  MemoryLedger* ledger_;
  const std::vector<SharedPart>& parts_;
  int rank_;
  std::vector<Doorbell*> bells_;
  std::vector<Peer> peers_;
};

}  // namespace mylos::comm_shm
