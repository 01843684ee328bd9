// SPDX-License-Identifier: BSD-3-Clause
// SampleStream: the micro-batches of a rank, prefetched by a separate thread while the rank computes.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "io/tokens/token_dataset.hpp"

namespace mylos {

/// Prefetches up to `depth` micro-batches after the last one read, and sleeps otherwise. An error in
/// prefetching a micro-batch is thrown only by the `read` that requests it.
class SampleStream {
 public:
  static constexpr std::size_t depth = 4;

  /// Micro-batches of `batch` samples. The micro-batch after the one that begins at sample i begins at sample
  /// i + `stride`.
  SampleStream(TokenDataset dataset, std::int64_t batch, std::int64_t stride);

  /// The caller must not read samples from this dataset: the thread does.
  const TokenDataset& dataset() const { return dataset_; }

  /// Reads samples `first`, `first` + 1 ... into `tokens` (batch, T + 1). Any `first` is allowed; the
  /// micro-batch is prefetched only if it follows the one read before. Throws like TokenFile::read.
  void read(std::int64_t first, std::span<std::int32_t> tokens);

 private:
  struct Batch {
    std::int64_t first = 0;
    std::vector<std::int32_t> tokens;
    std::exception_ptr error;
  };

  void loop(const std::stop_token& stop);
  void fill(Batch& batch) const;
  bool is_ready(std::int64_t first) const { return num_ready_ > 0 && batches_[head_].first == first; }

  TokenDataset dataset_;
  std::int64_t batch_;
  std::int64_t stride_;

  std::mutex mutex_;  // for the members below, except batches that are not ready: they belong to the thread
  std::condition_variable_any wanted_;
  std::condition_variable ready_;
  std::array<Batch, depth> batches_;
  std::size_t head_ = 0;
  std::size_t num_ready_ = 0;         // batches, starting at `head_`
  std::optional<std::int64_t> next_;  // first sample of the batch that the thread reads now or next
  std::jthread thread_;               // its destructor stops it, before the other members are destroyed
};

}  // namespace mylos
