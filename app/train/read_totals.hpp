// SPDX-License-Identifier: BSD-3-Clause
// ReadTotals: how much training data a run has read so far, over all its launches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/tokens/token_dataset.hpp"

namespace mylos {

struct ReadTotals {
  /// How often a source of [data] train has been read.
  struct Source {
    std::string content;  ///< TokenDataset::identity(source)
    double epochs = 0.0;
  };

  std::int64_t tokens = 0;
  std::vector<Source> sources;
};

/// Adds up what a run reads. A restart may change the length of samples, the data and their weights, so the
/// number of samples alone does not tell.
class ReadCounter {
 public:
  /// Counts from the beginning of a run.
  explicit ReadCounter(const TokenDataset& data) : data_(data), epochs_before_(data.num_sources(), 0.0) {}

  /// Continues at the running index `sample`, by which `before` has been read. A source whose content was
  /// read before continues its epochs, any other has not been read yet. If `before` has no sources, the
  /// samples before `sample` count as read from the present ones.
  void continue_at(std::int64_t sample, const ReadTotals& before);
  /// Returns the totals when all samples below the running index `sample` have been read: of the present
  /// sources in their order, then of those that were read earlier.
  ReadTotals at(std::int64_t sample) const;

 private:
  const TokenDataset& data_;
  // Offsets from what the present data and settings would give for all samples; 0 if nothing has changed.
  std::int64_t tokens_before_ = 0;
  std::vector<double> epochs_before_;
  std::vector<ReadTotals::Source> paused_;  // read earlier, not among the present data
};

}  // namespace mylos
