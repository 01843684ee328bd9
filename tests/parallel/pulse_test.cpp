// SPDX-License-Identifier: BSD-3-Clause
// Heartbeats as datagrams, among sockets of this process.
#include "parallel/health/pulse.hpp"

#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/waiting.hpp"

namespace mylos {
namespace {

/// The socket's text with the loopback address instead of the host's, which may have no others.
std::string here(const Pulse& pulse) {
  std::istringstream words(pulse.text());
  std::string key;
  std::string port;
  words >> key >> port;
  return key + " " + port + " 127.0.0.1";
}

TEST(Pulse, ReceivesFromTheExpectedRankOnly) {
  Pulse receiver;
  Pulse sender;
  Pulse stranger;
  receiver.connect("", here(sender));
  sender.connect(here(receiver), "");
  stranger.connect(here(receiver), "");
  EXPECT_FALSE(receiver.receive());
  stranger.send(5);
  sender.send(7);
  sender.send(8);
  std::optional<std::uint64_t> heartbeats;
  const auto arrives = [&] { return (heartbeats = receiver.receive()).has_value(); };
  ASSERT_TRUE(test::wait_until(arrives));
  EXPECT_EQ(heartbeats, 7);
  ASSERT_TRUE(test::wait_until(arrives));
  EXPECT_EQ(heartbeats, 8);
  EXPECT_FALSE(receiver.receive());
}

TEST(Pulse, HearsNobodyIfTheOtherHasNoSocket) {
  Pulse receiver;
  Pulse sender;
  receiver.connect("", "");
  sender.connect(here(receiver), "");
  sender.send(7);
  receiver.send(7);  // to nobody
  EXPECT_FALSE(receiver.receive());
}

}  // namespace
}  // namespace mylos
