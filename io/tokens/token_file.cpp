// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/token_file.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <fcntl.h>
#include <limits>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/digest.hpp"
#include "core/base/error.hpp"
#include "core/base/watched_call.hpp"
#include "io/tokens/content_kind.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t header_bytes = 1024;
constexpr std::int32_t version = 1;

using Header = std::array<std::int32_t, header_bytes / sizeof(std::int32_t)>;

static_assert(std::endian::native == std::endian::little,
              "token files are little endian and used as they are");

[[noreturn]] void bad_header(const fs::path& file, std::size_t word, const std::string& problem) {
  fail(ExitCode::bad_data, "{}: offset {}: {}", file.string(), word * sizeof(std::int32_t), problem);
}

/// Adds the ids of `tokens`, of which the first has an even place.
void count(std::span<const std::uint16_t> tokens, TokenStatistics& statistics) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::uint16_t id = tokens[i];
    statistics.least = statistics.tokens == 0 && i == 0 ? id : std::min<std::int64_t>(statistics.least, id);
    statistics.most = std::max<std::int64_t>(statistics.most, id);
    if (i % 2 == 1 && id == 0) ++statistics.odd_zeros;
    if (id < 0x20 && id != '\t' && id != '\n' && id != '\r' && id != '\f') ++statistics.controls;
  }
  statistics.tokens += std::ssize(tokens);
}

/// Throws ExitCode::bad_data if `file`, which has no header, is known to hold something else than tokens.
void refuse_other_content(const fs::path& file, std::size_t bytes) {
  constexpr std::size_t least = 3;  // bytes of a magic number: an id has two
  if (bytes == 0) return;
  const std::string head = content_head(file);
  if (const std::string_view own = own_kind(file); !own.empty() && own != "token file") {
    fail(ExitCode::bad_data,
         "{} is a {} that mylos has written, not a token file; name the token file itself", file.string(),
         own);
  }
  if (const ContentKind kind = known_format(head, least); !kind.name.empty()) {
    const std::string word = shell_word(file.string());
    std::string way;
    if (kind.command.find("cat ") != std::string_view::npos)
      way = fmt::format(": {} > NAME.bin", fmt::format(fmt::runtime(kind.command), word));
    if (kind.name == numpy_kind)
      way = fmt::format(
          ": python3 -c 'import numpy, sys; numpy.load(sys.argv[1]).astype(\"<u2\").tofile(sys.argv[2])' {} "
          "NAME.bin makes a file for nanogpt=",
          word);
    fail(ExitCode::bad_data, "{}: offset 0: this is {}, not a token file{}", file.string(), kind.name, way);
  }
  if (is_surely_text(head)) {
    fail(ExitCode::bad_data,
         "{}: offset 0: a text, not a token file; mylos tokenize {} --output NAME.bin makes one",
         file.string(), shell_word(file.string()));
  }
}

}  // namespace

TokenFile::TokenFile(const fs::path& file, std::int64_t vocab, TokenFormat format, std::int64_t pages)
    : path_(file),
      vocab_(vocab),
      format_(format),
      pages_(pages),
      file_(open_file(file, O_RDONLY | O_NONBLOCK)) {  // does not wait for a pipe's writer
  stamp_ = stamp();
  struct stat info {};
  check_call(::fstat(file_.get(), &info), "read", path_);
  id_ = {info.st_dev, info.st_ino};
  size_ = checked_size(static_cast<std::size_t>(stamp_.bytes));
  identity_ = identity_now(&statistics_, &ends_);
}

std::int64_t TokenFile::checked_size(std::size_t bytes) const {
  Header header{};
  const bool has_header = format_ == TokenFormat::llmc;
  std::int32_t magic = 0;
  if (bytes >= sizeof magic) read_fully(file_.get(), path_, &magic, sizeof magic, 0);
  if (magic != token_file_magic) refuse_other_content(path_, bytes);
  if (has_header && bytes < header_bytes) {
    fail(ExitCode::bad_data, "{} has {} bytes; a token file begins with a header of {}", path_.string(),
         bytes, header_bytes);
  }
  read_fully(file_.get(), path_, header.data(), std::min(bytes, header_bytes), 0);
  if (!has_header) {
    if (header[0] == token_file_magic && header[1] == version)
      bad_header(path_, 0, "the header of llm.c's format, which nanogpt= says that the file lacks");
    if (bytes % sizeof(std::uint16_t) != 0) {
      fail(ExitCode::bad_data, "{}: offset {}: half a token; {} bytes are not a whole number of tokens",
           path_.string(), bytes - 1, bytes);
    }
    return static_cast<std::int64_t>(bytes / sizeof(std::uint16_t));
  }
  if (header[0] != token_file_magic) {
    bad_header(path_, 0,
               fmt::format("magic number {}; a token file, such as mylos tokenize writes, has {}. Name a "
                           "file without a header, such as nanoGPT's, as nanogpt=NAME",
                           header[0], token_file_magic));
  }
  if (header[1] != version)
    bad_header(path_, 1, fmt::format("version {}; only {} is known", header[1], version));
  const std::int64_t size = header[2];
  if (size < 0 || bytes != header_bytes + static_cast<std::size_t>(size) * sizeof(std::uint16_t)) {
    bad_header(path_, 2,
               fmt::format("{} tokens; the file's {} bytes do not hold exactly that many", size, bytes));
  }
  return size;
}

std::int64_t TokenFile::offset_of(std::int64_t index) const {
  const std::size_t begin = format_ == TokenFormat::llmc ? header_bytes : 0;
  return static_cast<std::int64_t>(begin) + index * std::int64_t{sizeof(std::uint16_t)};
}

TokenFile::Stamp TokenFile::stamp() const {
  struct stat info {};
  check_call(::fstat(file_.get(), &info), "read", path_);
  if (!S_ISREG(info.st_mode)) fail(ExitCode::bad_data, "{} is not a regular file", path_.string());
  return {.bytes = info.st_size, .seconds = info.st_mtim.tv_sec, .nanoseconds = info.st_mtim.tv_nsec};
}

std::string TokenFile::identity_now(TokenStatistics* statistics, std::string* ends) const {
  constexpr std::int64_t page = 4096 / sizeof(std::uint16_t);
  const std::int64_t pages = (size_ + page - 1) / page;
  const std::int64_t read_pages = std::min(pages, pages_);
  const auto first_of = [&](std::int64_t i) {
    return page * (read_pages == 1 ? 0 : i * (pages - 1) / (read_pages - 1));
  };
  for (std::int64_t i = 0; i < read_pages; ++i) advise(first_of(i), page);
  Digester digester;
  Digester of_ends;
  std::array<std::uint16_t, page> tokens{};
  for (std::int64_t i = 0; i < read_pages; ++i) {
    const std::int64_t first = first_of(i);
    const auto part = std::span(tokens).first(static_cast<std::size_t>(std::min(page, size_ - first)));
    read_tokens(first, part);
    digester.add(part.data(), part.size_bytes());
    if (i == 0 || i + 1 == read_pages) of_ends.add(part.data(), part.size_bytes());
    if (statistics != nullptr) count(part, *statistics);  // a page begins at an even place
  }
  if (ends != nullptr) *ends = fmt::format("{} tokens, {}", size_, of_ends.digest().text());
  return fmt::format("{} tokens, {}", size_, digester.digest().text());
}

void TokenFile::read(std::int64_t first, std::span<std::uint16_t> tokens) const {
  if (const Stamp now = stamp(); now != stamp_) {  // touched or overwritten in place
    if (identity_now() != identity_)
      fail(ExitCode::bad_data, "{} has been changed since this run opened it", path_.string());
    stamp_ = now;
  }
  read_tokens(first, tokens);
}

void TokenFile::read_tokens(std::int64_t first, std::span<std::uint16_t> tokens) const {
  require(first >= 0 && first + std::ssize(tokens) <= size_, "tokens inside the file");
  read_fully(file_.get(), path_, tokens.data(), tokens.size_bytes(), offset_of(first));
  const auto bad = std::ranges::find_if(tokens, [&](std::uint16_t token) { return token >= vocab_; });
  if (bad == tokens.end()) return;
  const std::int64_t index = first + (bad - tokens.begin());
  fail(ExitCode::bad_data, "{}: offset {}: token {} is {}; the vocabulary has {}", path_.string(),
       offset_of(index), index, *bad, vocab_);
}

void TokenFile::advise(std::int64_t first, std::int64_t count) const {
  const WatchedCall call(CallKind::io, "fadvise", path_.native());
  ::posix_fadvise(file_.get(), offset_of(first), count * std::int64_t{sizeof(std::uint16_t)},
                  POSIX_FADV_WILLNEED);
}

void TokenFileWriter::append(std::span<const std::uint16_t> tokens) {
  const auto offset =
      static_cast<std::int64_t>(header_bytes) + num_tokens_ * std::int64_t{sizeof(std::uint16_t)};
  write_fully(file_.fd(), file_.path(), tokens.data(), tokens.size_bytes(), offset);
  num_tokens_ += static_cast<std::int64_t>(tokens.size());
}

void TokenFileWriter::finish() {
  require(num_tokens_ <= std::numeric_limits<std::int32_t>::max(), "the header can count the tokens");
  Header header{};
  header[0] = token_file_magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(num_tokens_);
  write_fully(file_.fd(), file_.path(), header.data(), header_bytes, 0);
  file_.commit();
}

}  // namespace mylos
