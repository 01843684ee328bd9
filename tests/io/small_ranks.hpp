// SPDX-License-Identifier: BSD-3-Clause
// Small byte-pair vocabularies for tests, and a slow, simple reference merger.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "io/tokens/bpe_ranks.hpp"

namespace mylos::test {

using Merges = std::vector<std::pair<std::string, std::string>>;

/// GPT-2's characters for bytes.
std::string shown(const std::string& bytes);

struct MergesFiles {
  std::string vocab;   // vocab.json
  std::string merges;  // merges.txt
};
MergesFiles files_of(const Merges& merges);
BpeRanks ranks_of(const Merges& merges);

/// The parts of `bytes` after merging neighbours that form a token of a rank below `limit`.
std::vector<std::string> merge_simply(const std::string& bytes, const std::map<std::string, int>& ranks,
                                      int limit);

}  // namespace mylos::test
