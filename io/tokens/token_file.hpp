// SPDX-License-Identifier: BSD-3-Clause
// Token files of llm.c and nanoGPT.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "io/file_util.hpp"

namespace mylos {

inline constexpr std::int32_t token_file_magic = 20240520;

/// Tokens are uint16, little endian.
enum class TokenFormat : std::uint8_t {
  llmc,     ///< after a header of 256 int32: the magic number, 1, the number of tokens, zeros
  nanogpt,  ///< without a header
};

/// What the pages of a token file show that were looked at.
struct TokenStatistics {
  std::int64_t tokens = 0;
  std::int64_t least = 0, most = 0;  ///< ids
  std::int64_t odd_zeros = 0;        ///< zeros at odd places, as in ids of 32 bits
  std::int64_t controls = 0;         ///< ids that are control characters in ASCII, except white space
};

/// A token file. It is read piece by piece and not mapped, so that a file that is truncated during a run
/// causes an error, not a signal. For one thread at a time.
class TokenFile {
 public:
  static constexpr std::int64_t most_ids = std::int64_t{1} << 16U;
  static constexpr std::int64_t most_pages = 1002;

  /// Opens a file for a vocabulary of `vocab` ids. Reads `pages` (2 or more) pages of it: the first, the last
  /// and evenly spaced ones between them, or all pages of a small file. Throws ExitCode::bad_data naming the
  /// file and, if there is one, the offset of the problem, or what the file is if that is known to be no
  /// token file; ExitCode::io if the file cannot be read.
  explicit TokenFile(const std::filesystem::path& file, std::int64_t vocab = most_ids,
                     TokenFormat format = TokenFormat::llmc, std::int64_t pages = most_pages);

  const std::filesystem::path& path() const { return path_; }
  /// In tokens.
  std::int64_t size() const { return size_; }
  /// The number of tokens, and the digest of the pages that the constructor read.
  const std::string& identity() const { return identity_; }
  /// The same for files whose first and last page and number of tokens are the same.
  const std::string& ends() const { return ends_; }
  const TokenStatistics& statistics() const { return statistics_; }
  TokenFormat format() const { return format_; }
  /// Device and inode: the same for all names of a file.
  std::pair<std::uint64_t, std::uint64_t> id() const { return id_; }

  /// Reads tokens `first`, `first` + 1 ... Throws ExitCode::bad_data for an id outside the vocabulary, with
  /// its offset, or if the size or time of the file and its identity have changed since it was opened;
  /// ExitCode::io if it ends too early.
  void read(std::int64_t first, std::span<std::uint16_t> tokens) const;
  /// Asks the system to prefetch tokens that will be read soon.
  void advise(std::int64_t first, std::int64_t count) const;

 private:
  /// Size and modification time of the file.
  struct Stamp {
    std::int64_t bytes = 0, seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };

  /// The number of tokens, from the header if there is one. Throws like the constructor.
  std::int64_t checked_size(std::size_t bytes) const;
  std::int64_t offset_of(std::int64_t index) const;
  Stamp stamp() const;
  /// Also counts the ids of the pages, and sets `ends` to the digest of the first and the last, if asked to.
  std::string identity_now(TokenStatistics* statistics = nullptr, std::string* ends = nullptr) const;
  void read_tokens(std::int64_t first, std::span<std::uint16_t> tokens) const;

  std::filesystem::path path_;
  std::int64_t vocab_;
  TokenFormat format_;
  std::int64_t pages_;
  FileDescriptor file_;
  std::int64_t size_ = 0;
  std::string identity_, ends_;
  TokenStatistics statistics_;
  std::pair<std::uint64_t, std::uint64_t> id_;
  mutable Stamp stamp_;  // the file's stamp when `identity_` was last checked
};

/// Writes a token file of llm.c's format piece by piece under a temporary name; `finish` gives it its name.
class TokenFileWriter {
 public:
  explicit TokenFileWriter(const std::filesystem::path& file) : file_(file) {}

  void append(std::span<const std::uint16_t> tokens);
  void finish();

 private:
  TemporaryFile file_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace mylos
