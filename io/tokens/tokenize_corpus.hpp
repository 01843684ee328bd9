// SPDX-License-Identifier: BSD-3-Clause
// Tokenizes documents into token files, with several threads.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "io/tokens/corpus_reader.hpp"
#include "io/tokens/shard_writer.hpp"
#include "io/tokens/tokenizer.hpp"

namespace mylos {

enum class Split : std::uint8_t { train, valid };

/// Assigns documents to training or validation.
struct SplitRule {
  std::uint64_t seed = 0;
  double valid_fraction = 0.0;
  /// The inputs are parts of one text: the first is for training, a second one for validation.
  bool has_two_parts = false;

  /// Without `has_two_parts`, a function of (seed, document) alone: validation if their 53-bit hash, as a
  /// fraction in [0, 1), is less than `valid_fraction`.
  Split of(std::int64_t document) const;
};

struct TokenizeSettings {
  std::string key = "text";         ///< of JSON lines
  bool end_of_text_begins = false;  ///< <|endoftext|> before each document instead of after it
  SplitRule split;
  int threads = 1;
  /// Called when the first bytes of an input decide its format, by the thread that reads it; may throw.
  CorpusReader::Guessed guessed = {};
};

/// Bytes of text files that are NUL or not UTF-8. They have tokens like all others.
struct MalformedBytes {
  std::int64_t count = 0;
  std::int64_t files = 0;
  std::string first;  ///< file and offset
};

/// Progress to be displayed.
struct TokenizeProgress {
  std::int64_t bytes_read = 0;
  std::int64_t documents = 0;  ///< complete documents
  std::int64_t tokens = 0;
  MalformedBytes malformed;
};

/// Writes the tokens of all documents of `inputs`, in order, to `writers` (training, validation). The files
/// are the same for any number of threads. Calls `seen` after each block, from one thread at a time; it may
/// throw to stop. Returns the totals. If several errors occur, throws the first in the order of the inputs.
TokenizeProgress tokenize_corpus(const std::vector<CorpusInput>& inputs, const Tokenizer& tokenizer,
                                 const TokenizeSettings& settings, std::array<ShardWriter*, 2> writers,
                                 const std::function<void(const TokenizeProgress&)>& seen);

}  // namespace mylos
