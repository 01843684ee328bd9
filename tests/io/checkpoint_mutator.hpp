// SPDX-License-Identifier: BSD-3-Clause
// CheckpointMutator: damages a checkpoint as disks and attackers do.
#pragma once

#include <cstddef>
#include <random>
#include <string>

#include "tests/io/io_test_util.hpp"

namespace mylos::test {

/// What was changed.
struct Mutation {
  std::string file;          ///< of the checkpoint; empty if the change had no effect
  bool vouched_for = false;  ///< whether digests were recomputed, unless the manifest is no longer JSON
};

class CheckpointMutator {
 public:
  explicit CheckpointMutator(unsigned seed) : random_(seed) {}

  /// Changes one file of a whole checkpoint: flips a bit, overwrites some bytes, inserts zeros, or cuts the
  /// file short. Every second time, it also recomputes the manifest's digests, as an attacker would.
  Mutation mutate(const fs::path& checkpoint);

 private:
  std::size_t below(std::size_t n) { return random_() % std::max<std::size_t>(n, 1); }
  std::string changed(std::string content);

  std::mt19937_64 random_;
  bool vouches_ = true;
};

}  // namespace mylos::test
