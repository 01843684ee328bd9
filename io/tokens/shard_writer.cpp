// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/shard_writer.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/error.hpp"

namespace mylos {

ShardWriter::ShardWriter(Settings settings, ShardPosition position)
    : settings_(std::move(settings)),
      begin_(position),
      position_(position),
      document_(position.document),
      num_tokens_(position.shards * settings_.shard_tokens) {}

void ShardWriter::append(std::int64_t document, std::span<const std::uint16_t> tokens, bool ends) {
  constexpr std::int64_t most_tokens = std::numeric_limits<std::int32_t>::max();
  constexpr std::size_t most_buffered = 65536;
  if (document != document_) {
    document_ = document;
    token_ = 0;
  }
  if (document_ == begin_.document && token_ < begin_.token) {
    const auto written = std::min(std::ssize(tokens), begin_.token - token_);
    token_ += written;
    tokens = tokens.subspan(static_cast<std::size_t>(written));
    if (tokens.empty()) return;
  }
  for (;;) {
    const std::int64_t room =
        (settings_.shard_tokens > 0 ? settings_.shard_tokens : most_tokens) - shard_tokens_;
    const auto part = tokens.first(static_cast<std::size_t>(std::min(room, std::ssize(tokens))));
    if (!writer_ && !part.empty())
      writer_ = std::make_unique<TokenFileWriter>(settings_.file(position_.shards));
    buffer_.insert(buffer_.end(), part.begin(), part.end());
    if (buffer_.size() >= most_buffered) flush();
    shard_tokens_ += std::ssize(part);
    num_tokens_ += std::ssize(part);
    token_ += std::ssize(part);
    tokens = tokens.subspan(part.size());
    if (tokens.empty() && ends) ++shard_documents_;
    if (settings_.shard_tokens > 0 && shard_tokens_ == settings_.shard_tokens) finish_shard();
    if (tokens.empty()) return;
    if (settings_.shard_tokens == 0) {
      fail(ExitCode::bad_data,
           "{}: more than {} tokens, which a token file cannot count; write shards with --shard-tokens",
           settings_.file(0).string(), most_tokens);
    }
  }
}

void ShardWriter::finish() {
  if (writer_) finish_shard();
}

void ShardWriter::flush() {
  digester_.add(buffer_.data(), buffer_.size() * sizeof(buffer_[0]));
  writer_->append(buffer_);
  buffer_.clear();
}

void ShardWriter::finish_shard() {
  flush();
  const std::filesystem::path file = settings_.file(position_.shards);
  remove_file(sidecar_path(file));  // the sidecar of the file that is replaced
  std::exchange(writer_, nullptr)->finish();
  write_sidecar(file, {.tokenizer = settings_.tokenizer,
                       .vocab = settings_.vocab,
                       .tokens = shard_tokens_,
                       .content = digester_.digest().text(),
                       .documents = shard_documents_});
  position_ = {.shards = position_.shards + 1, .document = document_, .token = token_};
  settings_.finished(file, shard_tokens_);
  digester_ = Digester();
  shard_tokens_ = shard_documents_ = 0;
}

}  // namespace mylos
