// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/health/pulse.hpp"

#include <arpa/inet.h>
#include <array>
#include <cstring>
#include <ifaddrs.h>
#include <net/if.h>
#include <sstream>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/core.h>

namespace mylos {

namespace {

// The sockets API takes every kind of address as a sockaddr.
const sockaddr* general(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

std::string own_addresses() {
  std::string text;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return text;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) continue;
    sockaddr_in address{};
    std::memcpy(&address, one->ifa_addr, sizeof address);
    std::array<char, INET_ADDRSTRLEN> name{};
    if (inet_ntop(AF_INET, &address.sin_addr, name.data(), name.size()) != nullptr)
      text += fmt::format(" {}", name.data());
  }
  freeifaddrs(first);
  return text;
}

}  // namespace

Pulse::Pulse() : socket_(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  const bool is_open = socket_ >= 0 && ::bind(socket_, general(address), size) == 0 &&
                       getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
                       getrandom(&own_key_, sizeof own_key_, 0) == sizeof own_key_;
  if (is_open) text_ = fmt::format("{} {}{}", own_key_, ntohs(address.sin_port), own_addresses());
}

Pulse::~Pulse() {
  if (socket_ >= 0) close(socket_);
}

void Pulse::connect(std::string_view to, std::string_view from) {
  std::istringstream sender{std::string(from)};
  std::istringstream receiver{std::string(to)};
  sender >> expected_key_;
  std::uint64_t key = 0;
  std::uint16_t port = 0;
  receiver >> key >> port;
  for (std::string name; receiver >> name;) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    if (inet_pton(AF_INET, name.c_str(), &address.sin_addr) == 1) to_.push_back(address);
  }
}

void Pulse::send(std::uint64_t heartbeats) const {
  const Datagram datagram{own_key_, heartbeats};
  for (const sockaddr_in& address : to_)
    (void)::sendto(socket_, &datagram, sizeof datagram, MSG_NOSIGNAL, general(address), sizeof address);
}

std::optional<std::uint64_t> Pulse::receive() const {
  Datagram datagram;
  while (true) {
    const ssize_t bytes = ::recv(socket_, &datagram, sizeof datagram, 0);
    if (bytes < 0) return std::nullopt;
    if (bytes == sizeof datagram && expected_key_ != 0 && datagram.key == expected_key_)
      return datagram.heartbeats;
  }
}

}  // namespace mylos
