// SPDX-License-Identifier: BSD-3-Clause
#include "core/memory/arena.hpp"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

namespace mylos {
namespace {

constexpr std::size_t alignment = 256;

struct Buffer {
  std::size_t bytes = 0;
  std::vector<LiveInterval> live;
};

bool alive_at(const Buffer& buffer, std::int64_t tick) {
  return std::ranges::any_of(buffer.live,
                             [&](const LiveInterval& i) { return i.first <= tick && tick <= i.last; });
}

/// Checks that buffers that are alive together do not overlap. Returns the ratio of the arena's size to its
/// lower bound, the largest total size of buffers that are alive together.
double check(const std::vector<Buffer>& buffers, std::int64_t ticks) {
  ArenaPlan plan;
  for (const Buffer& buffer : buffers) plan.add(buffer.bytes, buffer.live);
  plan.solve();
  std::size_t most = 0;
  for (std::int64_t tick = 0; tick < ticks; ++tick) {
    std::size_t living = 0;
    std::vector<std::pair<std::size_t, std::size_t>> places;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (!alive_at(buffers[i], tick) || buffers[i].bytes == 0) continue;
      const std::size_t begin = plan.offset(static_cast<int>(i));
      EXPECT_EQ(begin % alignment, 0U);
      places.emplace_back(begin, begin + buffers[i].bytes);
      living += buffers[i].bytes;
    }
    std::ranges::sort(places);
    for (std::size_t i = 1; i < places.size(); ++i) {
      EXPECT_LE(places[i - 1].second, places[i].first) << "tick " << tick;
    }
    for (const auto& [begin, end] : places) EXPECT_LE(end, plan.bytes());
    most = std::max(most, living);
  }
  EXPECT_GE(plan.bytes(), most);
  return most == 0 ? 1.0 : static_cast<double>(plan.bytes()) / static_cast<double>(most);
}

TEST(Arena, IsEmptyWithoutBuffers) {
  ArenaPlan plan;
  plan.solve();
  EXPECT_EQ(plan.bytes(), 0U);
}

TEST(Arena, SharesMemoryOfBuffersThatAreNeverAliveTogether) {
  EXPECT_EQ(check({{1024, {{0, 1}}}, {1024, {{2, 3}}}, {512, {{4, 4}}}}, 5), 1.0);
}

TEST(Arena, UsesTheGapsOfABufferThatReturns) {
  EXPECT_EQ(check({{4096, {{0, 0}, {4, 4}}}, {4096, {{1, 3}}}}, 5), 1.0);
}

TEST(Arena, TakesBuffersThatAreNeverAlive) {
  EXPECT_EQ(check({{256, {{0, 9}}}, {4096, {}}, {0, {{0, 9}}}}, 10), 16.0);
}

TEST(Arena, KeepsRandomBuffersApart) {
  constexpr std::int64_t ticks = 40;
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Buffer> buffers(1 + random() % 40);
    for (Buffer& buffer : buffers) {
      buffer.bytes = random() % 5000;
      std::int64_t tick = random() % 10;
      while (tick < ticks && buffer.live.size() < 3) {
        const std::int64_t last = std::min<std::int64_t>(tick + random() % 15, ticks - 1);
        buffer.live.push_back({tick, last});
        tick = last + 1 + random() % 10;
      }
    }
    check(buffers, ticks);
  }
}

/// Activations of `layers` layers: some live until the backward pass of their layer, others only for single
/// ticks.
std::vector<Buffer> layer_buffers(std::int64_t layers, std::size_t stream, bool keeps) {
  std::vector<Buffer> buffers;
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::int64_t back = 2 * layers - 1 - i;
    const std::vector<LiveInterval> kept = {{i, back}};
    const std::vector<LiveInterval> both = {{i, i}, {back, back}};
    buffers.push_back({stream, kept});
    for (const std::size_t factor : {1, 3, 1, 1, 1, 4, 4}) {
      buffers.push_back({factor * stream, keeps ? kept : both});
    }
    buffers.push_back({4 * stream, {{back, back}}});
    buffers.push_back({stream, {{back, back}}});
  }
  return buffers;
}

TEST(Arena, WastesLittleOnATransformer) {
  for (const bool keeps : {true, false}) {
    std::vector<Buffer> buffers = layer_buffers(12, 256 * 96, keeps);
    buffers.push_back({256 * 1000, {{11, 12}}});  // logits
    EXPECT_LE(check(buffers, 24), 1.2);
  }
}

}  // namespace
}  // namespace mylos
