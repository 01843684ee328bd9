// SPDX-License-Identifier: BSD-3-Clause
#include "backends/comm_shm/mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "backends/comm_shm/streaming_copy.hpp"

namespace mylos::comm_shm {

namespace {

// The collective algorithms and all_to_all_v use tags from this one upwards. Their messages need no parcels,
// because the ranks wait for them anyway.
constexpr int first_reserved_tag = 16384;
constexpr std::size_t smallest_parcel = 16 << 10;
// The receiver reads one piece while the sender writes the next one.
constexpr std::uint64_t piece = Ring::capacity / 4;

/// Calls `copy(memory, offset, length)` for `bytes` bytes of the ring from `position`: twice if they wrap
/// around.
template <class Copy>
void for_ring(Ring& ring, std::uint64_t position, std::uint64_t bytes, Copy&& copy) {
  const std::uint64_t begin = position % Ring::capacity;
  const std::uint64_t first = std::min(bytes, Ring::capacity - begin);
  if (first > 0) copy(&ring.data[begin], std::uint64_t{0}, first);
  if (bytes > first) copy(ring.data.data(), first, bytes - first);
}

void write_ring(Ring& ring, std::uint64_t position, const void* from, std::uint64_t bytes) {
  for_ring(ring, position, bytes, [&](std::byte* in_ring, std::uint64_t offset, std::uint64_t length) {
    copy_to_other_core(in_ring, static_cast<const std::byte*>(from) + offset, length);
  });
}

void read_ring(Ring& ring, std::uint64_t position, void* to, std::uint64_t bytes) {
  for_ring(ring, position, bytes, [&](const std::byte* in_ring, std::uint64_t offset, std::uint64_t length) {
    copy_bytes(static_cast<std::byte*>(to) + offset, in_ring, length, Stores::cached);
  });
}

}  // namespace

Mailbox::Mailbox(SharedMemory& memory, MemoryLedger* ledger, const std::vector<SharedPart>& parts, int rank,
                 std::vector<Doorbell*> bells)
    : memory_(memory),
      ledger_(ledger),
      parts_(parts),
      rank_(rank),
      bells_(std::move(bells)),
      peers_(parts.size()) {}

void Mailbox::push_send(int peer, int tag, const std::byte* data, std::size_t bytes,
                        std::shared_ptr<Completion> completion) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  const Ring& ring_to = parts_[static_cast<std::size_t>(peer)].ring_from(rank_);
  const std::uint64_t free = Ring::capacity - (ring_to.written.value - ring_to.read.value);
  const bool has_room = to.outgoing.empty() && bytes + sizeof(Header) <= free;
  if (tag < first_reserved_tag && bytes >= smallest_parcel && !has_room)
    return push_parcel(peer, tag, data, bytes, std::move(completion));
  to.outgoing.push_back({{tag, bytes, none, 0}, data, 0, false, std::move(completion)});
}

void Mailbox::push_parcel(int peer, int tag, const std::byte* data, std::size_t bytes,
                          std::shared_ptr<Completion> completion) {
  finish_parcels(peer);
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  auto parcel = std::ranges::find_if(
      to.parcels, [&](const Parcel& each) { return each.completion == nullptr && each.bytes >= bytes; });
  if (parcel == to.parcels.end())
    parcel = to.parcels.insert(
        parcel, {memory_.offer(bytes), MemoryCharge(ledger_, MemoryCategory::communication, bytes), bytes, 0,
                 nullptr});
  copy_to_other_core(parcel->offer.memory.get(), data, bytes);
  parcel->completion = std::move(completion);
  parcel->taken_at = std::numeric_limits<std::uint64_t>::max();
  to.outgoing.push_back({{tag, bytes, parcel->offer.key, parcel->bytes}, nullptr, bytes, false, nullptr});
}

bool Mailbox::finish_parcels(int peer) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  if (to.parcels.empty()) return false;
  const std::uint64_t read = parts_[static_cast<std::size_t>(peer)].ring_from(rank_).read.value;
  bool finished = false;
  for (Parcel& parcel : to.parcels) {
    if (parcel.completion == nullptr || parcel.taken_at > read) continue;
    parcel.completion->complete_one();
    parcel.completion.reset();
    finished = true;
  }
  return finished;
}

void Mailbox::push_recv(int peer, int tag, std::byte* data, std::size_t bytes,
                        std::shared_ptr<Completion> completion) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  const auto message = std::ranges::find_if(from.incoming, [&](const Incoming& incoming) {
    return incoming.completion == nullptr && incoming.header.tag == tag;
  });
  if (message == from.incoming.end()) {
    from.receives.push_back({tag, data, bytes, std::move(completion)});
    return;
  }
  require(message->header.bytes == bytes, "a message has the size of the receive that it matches");
  if (message->received > 0) std::memcpy(data, message->data, message->received);
  const bool is_arriving = from.arriving && &*message == &from.incoming.back();
  if (is_arriving) {
    message->data = data;
    message->kept.reset();
    message->completion = std::move(completion);
  } else {
    from.incoming.erase(message);
    completion->complete_one();
  }
}

bool Mailbox::advance() {
  bool moved = false;
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    moved = finish_parcels(peer) || moved;
    moved = send_some(peer) || moved;
    moved = receive_some(peer) || moved;
  }
  return moved;
}

bool Mailbox::send_some(int peer) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  if (to.outgoing.empty()) return false;
  Ring& ring_to = parts_[static_cast<std::size_t>(peer)].ring_from(rank_);
  const std::uint64_t begin = ring_to.written.value;
  const std::uint64_t end = ring_to.read.value + Ring::capacity;
  std::uint64_t position = begin;
  while (!to.outgoing.empty()) {
    Outgoing& message = to.outgoing.front();
    if (!message.header_sent) {
      if (end - position < sizeof(Header)) break;
      write_ring(ring_to, position, &message.header, sizeof(Header));
      position += sizeof(Header);
      message.header_sent = true;
      if (message.header.parcel != none) {
        std::ranges::find(to.parcels, message.header.parcel, [](const Parcel& each) {
          return each.offer.key;
        })->taken_at = position;
      }
    }
    const std::uint64_t length = std::min({end - position, message.header.bytes - message.sent, piece});
    write_ring(ring_to, position, message.data + message.sent, length);
    position += length;
    message.sent += length;
    publish(ring_to.written, position, peer);
    if (message.sent == message.header.bytes) {
      if (message.completion != nullptr) message.completion->complete_one();
      to.outgoing.pop_front();
    } else if (position == end) {
      break;
    }
  }
  return position > begin;
}

bool Mailbox::receive_some(int peer) {
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  Ring& ring_from = parts_[static_cast<std::size_t>(rank_)].ring_from(peer);
  const std::uint64_t begin = ring_from.read.value;
  const std::uint64_t end = ring_from.written.value;
  std::uint64_t position = begin;
  while (position < end) {
    if (!from.arriving) {
      Header header;
      read_ring(ring_from, position, &header, sizeof header);
      position += sizeof header;
      begin_arrival(from, header);
    }
    Incoming& message = from.incoming.back();
    const std::uint64_t length = std::min({end - position, message.header.bytes - message.received, piece});
    read_ring(ring_from, position, message.data + message.received, length);
    position += length;
    message.received += length;
    publish(ring_from.read, position, peer);
    if (message.received == message.header.bytes) end_arrival(from);
  }
  return position > begin;
}

void Mailbox::publish(Counter& counter, std::uint64_t value, int peer) {
  counter.value = value;
  ring(*bells_[static_cast<std::size_t>(peer)]);
}

void Mailbox::begin_arrival(Peer& from, const Header& header) {
  from.arriving = true;
  Incoming& message = from.incoming.emplace_back(Incoming{header, 0, nullptr, nullptr, nullptr});
  const auto match = std::ranges::find(from.receives, header.tag, &Receive::tag);
  if (match == from.receives.end()) {
    message.kept = std::make_unique_for_overwrite<std::byte[]>(header.bytes);
    message.data = message.kept.get();
  } else {
    require(match->bytes == header.bytes, "a message has the size of the receive that it matches");
    message.data = match->data;
    message.completion = std::move(match->completion);
    from.receives.erase(match);
  }
  if (header.parcel == none) return;
  SharedBytes& parcel = from.opened[header.parcel];
  if (parcel == nullptr) parcel = memory_.map(header.parcel, header.parcel_bytes);
  copy_bytes(message.data, parcel.get(), header.bytes, Stores::cached);
  message.received = header.bytes;
}

void Mailbox::end_arrival(Peer& from) {
  from.arriving = false;
  if (from.incoming.back().completion == nullptr) return;
  from.incoming.back().completion->complete_one();
  from.incoming.pop_back();
}

}  // namespace mylos::comm_shm
