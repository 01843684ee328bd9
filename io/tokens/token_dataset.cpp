// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/token_dataset.hpp"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/rng.hpp"

namespace mylos {

namespace {

/// The image of `index` under a permutation of [0, count) that `key` chooses.
std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t key) {
  constexpr int rounds = 6;
  const unsigned bits = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
  const unsigned half = std::max(1U, (bits + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto x = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = x >> half;
    std::uint64_t right = x & mask;
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t mixed = mix64(mix64(key + static_cast<std::uint64_t>(round)) ^ right) & mask;
      left = std::exchange(right, left ^ mixed);
    }
    x = (left << half) | right;
  } while (x >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(x);
}

}  // namespace

TokenDataset::TokenDataset(TokenFile file, std::int64_t seq_len, std::uint64_t seed)
    : file_(std::move(file)), seq_len_(seq_len), seed_(seed) {
  require(seq_len > 0, "a window has at least one token");
  const auto num_tokens = file_.size();
  if (num_tokens < seq_len + 1) {
    fail(ExitCode::bad_data, "{} has {} tokens; a context of {} needs {}", file_.path().string(), num_tokens,
         seq_len, seq_len + 1);
  }
  // As many windows as fit at every phase; a file of less than two contexts has one, at the phases that it
  // allows.
  num_windows_ = std::max<std::int64_t>(1, (num_tokens - seq_len) / seq_len);
  num_phases_ = std::min(seq_len, num_tokens - num_windows_ * seq_len);
}

void TokenDataset::sample(std::int64_t running_index, std::int32_t* tokens) const {
  require(running_index >= 0, "samples count from 0");
  const std::int64_t epoch = running_index / num_windows_;
  const PhiloxKey stream = stream_key(seed_, "shuffle");
  const std::uint64_t key =
      mix64(((static_cast<std::uint64_t>(stream.k1) << 32U) | stream.k0) + static_cast<std::uint64_t>(epoch));
  const auto phase = static_cast<std::int64_t>(mix64(~key) % static_cast<std::uint64_t>(num_phases_));
  const std::int64_t window = permuted(running_index % num_windows_, num_windows_, key);
  copy_window(phase + window * seq_len_, tokens);
}

std::int64_t TokenDataset::num_sequential() const {
  return (file_.size() - 1) / seq_len_;
}

void TokenDataset::sequential(std::int64_t index, std::int32_t* tokens) const {
  require(index >= 0 && index < num_sequential(), "window inside the file");
  copy_window(index * seq_len_, tokens);
}

void TokenDataset::copy_window(std::int64_t first, std::int32_t* tokens) const {
  std::vector<std::uint16_t> window(static_cast<std::size_t>(seq_len_ + 1));
  file_.read(first, window);
  std::ranges::copy(window, tokens);
}

}  // namespace mylos
