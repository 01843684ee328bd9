// SPDX-License-Identifier: BSD-3-Clause
// ShardWriter: the tokens of a split, as one file or as shards of a fixed size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/base/digest.hpp"
#include "io/tokens/sidecar.hpp"
#include "io/tokens/token_file.hpp"

namespace mylos {

/// Where the tokens of finished shards end.
struct ShardPosition {
  std::int64_t shards = 0;    ///< number of finished shards
  std::int64_t document = 0;  ///< the document in which they end
  std::int64_t token = 0;     ///< number of that document's tokens in finished shards
  bool operator==(const ShardPosition&) const = default;
};

/// Files appear under their names only when they are complete; the sidecar of each is written next. The
/// destructor removes an unfinished file.
class ShardWriter {
 public:
  struct Settings {
    TokenizerIdentity tokenizer;
    std::int64_t vocab = 0;
    std::int64_t shard_tokens = 0;  ///< of each file except the last; 0 writes one file
    std::function<std::filesystem::path(std::int64_t shard)> file;
    /// Called when a file is finished.
    std::function<void(const std::filesystem::path& file, std::int64_t tokens)> finished;
  };

  /// Begins at `position`: the tokens before it are already in files.
  ShardWriter(Settings settings, ShardPosition position);

  /// Whether `document` may have tokens that are still to be written.
  bool wants(std::int64_t document) const { return document >= begin_.document; }
  /// Appends the next tokens of `document`; `ends` if they are its last. Documents come in order. Throws
  /// ExitCode::bad_data if a single file would hold more tokens than its header can count.
  void append(std::int64_t document, std::span<const std::uint16_t> tokens, bool ends);
  /// Finishes the last file, if there is one.
  void finish();

  /// The position after the last finished file.
  const ShardPosition& position() const { return position_; }
  /// Tokens taken, including those of files that already existed.
  std::int64_t num_tokens() const { return num_tokens_; }

 private:
  void flush();
  void finish_shard();

  Settings settings_;
  ShardPosition begin_, position_;
  std::int64_t document_ = 0;  // the document being written
  std::int64_t token_ = 0;     // number of its tokens taken
  std::unique_ptr<TokenFileWriter> writer_;
  std::vector<std::uint16_t> buffer_;  // tokens of the shard that are not yet in the file
  std::int64_t shard_tokens_ = 0;      // tokens taken by the shard
  std::int64_t shard_documents_ = 0;   // documents that end in the shard
  std::int64_t num_tokens_ = 0;
  Digester digester_;
};

}  // namespace mylos
