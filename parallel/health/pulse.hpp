// SPDX-License-Identifier: BSD-3-Clause
// Pulse: heartbeats between nodes as UDP datagrams, which do not wait behind MPI's messages.
#pragma once

#include <cstdint>
#include <netinet/in.h>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mylos {

/// A socket that sends this rank's heartbeats to one rank of another node and receives those of one rank,
/// over IPv4. Where datagrams do not arrive (no such socket, a firewall), nothing is received. Never waits.
class Pulse {
 public:
  Pulse();
  ~Pulse();
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  /// What other ranks need to know: a random key, the port, and the host's addresses except loopback ones.
  const std::string& text() const { return text_; }
  /// Sends to the rank with the text `to`, and receives only from the rank with the text `from`.
  void connect(std::string_view to, std::string_view from);

  void send(std::uint64_t heartbeats) const;
  /// A number that has arrived; empty if there is none left.
  std::optional<std::uint64_t> receive() const;

 private:
  struct Datagram {
    std::uint64_t key = 0;  // of the sender
    std::uint64_t heartbeats = 0;
  };

  int socket_ = -1;
  std::uint64_t own_key_ = 0, expected_key_ = 0;
  std::string text_;
  std::vector<sockaddr_in> to_;
};

}  // namespace mylos
