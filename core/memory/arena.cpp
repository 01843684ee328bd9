// SPDX-License-Identifier: BSD-3-Clause
#include "core/memory/arena.hpp"

#include <algorithm>
#include <numeric>

namespace mylos {

namespace {
constexpr std::size_t arena_alignment = 256;
}

int ArenaPlan::add(std::size_t bytes, std::vector<LiveInterval> live) {
  const std::size_t rounded = (bytes + arena_alignment - 1) / arena_alignment * arena_alignment;
  buffers_.push_back({.bytes = rounded, .live = std::move(live), .offset = 0});
  return static_cast<int>(buffers_.size()) - 1;
}

bool ArenaPlan::overlap(const Buffer& a, const Buffer& b) {
  if ((a.eras & b.eras) == 0) return false;
  auto i = a.live.begin();
  auto j = b.live.begin();
  while (i != a.live.end() && j != b.live.end()) {
    if (i->last < j->first) {
      ++i;
    } else if (j->last < i->first) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

void ArenaPlan::find_eras() {
  constexpr std::int64_t num_eras = 64;
  std::int64_t last = 0;
  for (const Buffer& buffer : buffers_) {
    if (!buffer.live.empty()) last = std::max(last, buffer.live.back().last);
  }
  const auto era_of = [&](std::int64_t tick) { return tick * num_eras / (last + 1); };
  for (Buffer& buffer : buffers_) {
    buffer.eras = 0;
    for (const LiveInterval& live : buffer.live) {
      for (std::int64_t era = era_of(live.first); era <= era_of(live.last); ++era)
        buffer.eras |= std::uint64_t{1} << era;
    }
  }
}

void ArenaPlan::solve() {
  find_eras();
  std::vector<std::size_t> order(buffers_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t i) { return buffers_[i].bytes; });
  std::vector<const Buffer*> placed;  // ascending by offset
  bytes_ = 0;
  for (const std::size_t index : order) {
    Buffer& buffer = buffers_[index];
    std::size_t offset = 0;
    // Buffers that end at or below `offset` or begin at or above the end of this buffer need not be compared.
    for (const Buffer* other : placed) {
      if (other->offset >= offset + buffer.bytes) break;
      const std::size_t end = other->offset + other->bytes;
      if (end > offset && overlap(buffer, *other)) offset = end;
    }
    buffer.offset = offset;
    bytes_ = std::max(bytes_, offset + buffer.bytes);
    placed.insert(std::ranges::upper_bound(placed, offset, {}, &Buffer::offset), &buffer);
  }
}

}  // namespace mylos
