// SPDX-License-Identifier: BSD-3-Clause
// RandomTokens: samples of steps that are only timed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/rng.hpp"
#include "parallel/engine/training_step.hpp"

namespace mylos {

/// Random tokens, which differ from step to step and are the same on every machine.
class RandomTokens : public StepDriver {
 public:
  RandomTokens(std::int64_t vocab, std::int64_t seq_len)
      : vocab_(static_cast<std::uint32_t>(vocab)), row_(seq_len + 1) {}

  void read_samples(std::int64_t step, std::int64_t first, std::span<std::int32_t> tokens) override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto sample = static_cast<std::uint32_t>(first + static_cast<std::int64_t>(i) / row_);
      const auto position = static_cast<std::uint32_t>(static_cast<std::int64_t>(i) % row_);
      const PhiloxBlock noise = philox(key_, position, sample, static_cast<std::uint32_t>(step), 0);
      tokens[i] = static_cast<std::int32_t>(noise.x[0] % vocab_);
    }
  }

 private:
  PhiloxKey key_ = stream_key(1, "benchmark tokens");
  std::uint32_t vocab_;
  std::int64_t row_;
};

}  // namespace mylos
