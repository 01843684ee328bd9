// SPDX-License-Identifier: BSD-3-Clause
// SampleStream: the micro-batches of a rank, read by a thread of its own while the rank computes.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "io/tokens/token_dataset.hpp"

namespace mylos {

/// Reads up to `depth` micro-batches ahead of the one that is asked for, and sleeps otherwise. What cannot be
/// read is an error only of who asks for it.
class SampleStream {
 public:
  static constexpr std::size_t depth = 4;

  /// Micro-batches of `batch` samples; the one behind that at running index i begins at i + `stride`.
  SampleStream(TokenDataset dataset, std::int64_t batch, std::int64_t stride);
  ~SampleStream();
  SampleStream(const SampleStream&) = delete;
  SampleStream& operator=(const SampleStream&) = delete;

  /// Not to be read from: the thread does.
  const TokenDataset& dataset() const { return dataset_; }

  /// Samples `first`, `first` + 1 ... as `tokens` (batch, T + 1); any `first`, but another one than the
  /// stream's next waits for all of its reading. Throws as TokenFile::read.
  void read(std::int64_t first, std::span<std::int32_t> tokens);

 private:
  struct Batch {
    std::int64_t first = 0;
    std::vector<std::int32_t> tokens;
    std::exception_ptr error;
  };

  void loop();
  void fill(Batch& batch) const;
  bool is_ready(std::int64_t first) const { return num_ready_ > 0 && batches_[head_].first == first; }

  TokenDataset dataset_;
  std::int64_t batch_;
  std::int64_t stride_;

  std::mutex mutex_;  // of all that follows, but batches that are not ready, which are the thread's
  std::condition_variable wanted_;
  std::condition_variable ready_;
  std::array<Batch, depth> batches_;
  std::size_t head_ = 0;
  std::size_t num_ready_ = 0;         // from `head_` on
  std::optional<std::int64_t> next_;  // what the thread reads, or reads next
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace mylos
