// SPDX-License-Identifier: BSD-3-Clause
// ShardWriter: the tokens of a split, as one file or as shards of a fixed size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/digest.hpp"
#include "io/tokens/sidecar.hpp"
#include "io/tokens/token_file.hpp"

namespace mylos {

/// Where the tokens of finished shards end.
struct ShardPosition {
  std::int64_t shards = 0;    ///< finished
  std::int64_t document = 0;  ///< that the next token belongs to
  std::int64_t token = 0;     ///< of that document
  bool operator==(const ShardPosition&) const = default;
};

/// Files appear whole, each with its sidecar; what is unfinished when the writer goes is removed.
class ShardWriter {
 public:
  struct Settings {
    TokenizerIdentity tokenizer;
    std::int64_t vocab = 0;
    std::int64_t shard_tokens = 0;  ///< of each file but the last; 0 writes one file
    std::function<std::filesystem::path(std::int64_t shard)> file;
    /// Called when a file is finished.
    std::function<void(const std::filesystem::path& file, std::int64_t tokens)> finished;
  };

  /// Begins at `position`: the tokens before it are in files already.
  ShardWriter(Settings settings, ShardPosition position);

  /// Whether tokens of `document` are still to be written.
  bool wants(std::int64_t document) const { return document >= begin_.document; }
  /// The next tokens of `document`, which `ends` with them; documents come in their order. Throws
  /// ExitCode::bad_data if one file is to hold more tokens than it can count.
  void append(std::int64_t document, std::span<const std::uint16_t> tokens, bool ends);
  /// Finishes the last file, if there is one.
  void finish();

  /// Behind the last finished file.
  const ShardPosition& position() const { return position_; }
  std::int64_t num_tokens() const { return num_tokens_; }  ///< taken, also by files that were there

 private:
  void flush();
  void finish_shard();

  Settings settings_;
  ShardPosition begin_, position_;
  std::int64_t document_ = 0;  // the one being written
  std::int64_t token_ = 0;     // taken of it
  std::unique_ptr<TokenFileWriter> writer_;
  std::vector<std::uint16_t> buffer_;  // of the shard, not yet in the file
  std::int64_t shard_tokens_ = 0;      // taken by the shard
  std::int64_t shard_documents_ = 0;   // that end in it
  std::int64_t num_tokens_ = 0;
  Digester digester_;
};

}  // namespace mylos
