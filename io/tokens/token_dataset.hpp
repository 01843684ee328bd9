// SPDX-License-Identifier: BSD-3-Clause
// The order in which training and evaluation read token files.
#pragma once

#include <cstdint>

#include "io/tokens/token_file.hpp"

namespace mylos {

/// Windows of T + 1 tokens (T inputs and, shifted by one, T targets) of a token file.
///
/// Training reads in epochs of `num_windows` windows. Window i of an epoch begins at token phase + i T, so
/// that the inputs of an epoch do not overlap; `phase` < T is drawn anew for each epoch, as is the order: a
/// keyed Feistel permutation (Luby and Rackoff, 1988) of the least even number of bits that holds the
/// windows, walked along its cycle until it is inside (Black and Rogaway, 2002). A sample is therefore a
/// function of (seed, running index) alone: no state to save, no list to shuffle.
class TokenDataset {
 public:
  /// Throws ExitCode::bad_data where the file is too short for one window.
  TokenDataset(TokenFile file, std::int64_t seq_len, std::uint64_t seed);

  const TokenFile& file() const { return file_; }
  std::int64_t seq_len() const { return seq_len_; }

  /// Windows of an epoch of training.
  std::int64_t num_windows() const { return num_windows_; }
  /// The window of a running sample index, counted over all epochs, as `tokens` (T + 1).
  void sample(std::int64_t running_index, std::int32_t* tokens) const;

  /// Windows in file order: all that fit.
  std::int64_t num_sequential() const;
  /// Window `index` in file order, from token index T on, as `tokens` (T + 1).
  void sequential(std::int64_t index, std::int32_t* tokens) const;

 private:
  void copy_window(std::int64_t first, std::int32_t* tokens) const;

  TokenFile file_;
  std::int64_t seq_len_;
  std::uint64_t seed_;
  std::int64_t num_windows_ = 0;
  std::int64_t num_phases_ = 0;
};

}  // namespace mylos
