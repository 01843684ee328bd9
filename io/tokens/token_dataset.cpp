// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/token_dataset.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/rng.hpp"
#include "io/checkpoint/digest.hpp"

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

/// The image of `index` under a permutation of [0, count) that `key` chooses.
std::int64_t permuted(std::int64_t index, std::int64_t count, std::uint64_t key) {
  constexpr int rounds = 6;
  const unsigned bits = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(count - 1)));
  const unsigned half = std::max(1U, (bits + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  auto x = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = x >> half;
    std::uint64_t right = x & mask;
    for (int round = 0; round < rounds; ++round) {
      const std::uint64_t mixed = mix64(mix64(key + static_cast<std::uint64_t>(round)) ^ right) & mask;
      left = std::exchange(right, left ^ mixed);
    }
    x = (left << half) | right;
  } while (x >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(x);
}

}  // namespace

TokenFile::TokenFile(const fs::path& file, std::int64_t vocab)
    : path_(file),
      vocab_(vocab),
      file_(open_file(file, O_RDONLY | O_NONBLOCK)) {  // a pipe would wait for a writer
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0)
    fail(ExitCode::io, "cannot read {}: {}", file.string(), std::strerror(errno));
  if (!S_ISREG(info.st_mode)) fail(ExitCode::bad_data, "{} is not a regular file", file.string());
  const auto bytes = static_cast<std::size_t>(info.st_size);
  if (bytes < header_bytes) {
    fail(ExitCode::bad_data, "{} has {} bytes; a token file begins with a header of {}", file.string(), bytes,
         header_bytes);
  }
  Header header{};
  read_fully(file_.get(), file, header.data(), header_bytes, 0);
  if (header[0] != token_file_magic) {
    bad_header(file, 0,
               fmt::format("magic number {}; a token file, such as mylos tokenize writes, has {}", header[0],
                           token_file_magic));
  }
  if (header[1] != version)
    bad_header(file, 1, fmt::format("version {}; only {} is known", header[1], version));
  size_ = header[2];
  if (size_ < 0 || bytes != header_bytes + static_cast<std::size_t>(size_) * sizeof(std::uint16_t)) {
    bad_header(file, 2,
               fmt::format("{} tokens; the file's {} bytes do not hold just that many", size_, bytes));
  }
  stamp_ = stamp();
  identity_ = identity_now();
}

TokenFile::Stamp TokenFile::stamp() const {
  struct stat info {};
  if (::fstat(file_.get(), &info) != 0)
    fail(ExitCode::io, "cannot read {}: {}", path_.string(), std::strerror(errno));
  return {.bytes = info.st_size, .seconds = info.st_mtim.tv_sec, .nanoseconds = info.st_mtim.tv_nsec};
}

std::string TokenFile::identity_now() const {
  constexpr std::int64_t page = 4096 / sizeof(std::uint16_t);
  constexpr std::int64_t most_pages = 1002;
  const std::int64_t pages = (size_ + page - 1) / page;
  const std::int64_t read_pages = std::min(pages, most_pages);
  Digester digester;
  std::array<std::uint16_t, page> tokens{};
  for (std::int64_t i = 0; i < read_pages; ++i) {
    const std::int64_t first = page * (read_pages == 1 ? 0 : i * (pages - 1) / (read_pages - 1));
    const auto part = std::span(tokens).first(static_cast<std::size_t>(std::min(page, size_ - first)));
    read_tokens(first, part);
    digester.add(part.data(), part.size_bytes());
  }
  return fmt::format("{} tokens, {}", size_, digester.digest().text());
}

void TokenFile::read(std::int64_t first, std::span<std::uint16_t> tokens) const {
  if (const Stamp now = stamp(); now != stamp_) {  // touched, or overwritten in place
    if (identity_now() != identity_)
      fail(ExitCode::bad_data, "{} has been changed since this run opened it", path_.string());
    stamp_ = now;
  }
  read_tokens(first, tokens);
}

void TokenFile::read_tokens(std::int64_t first, std::span<std::uint16_t> tokens) const {
  require(first >= 0 && first + std::ssize(tokens) <= size_, "tokens inside the file");
  const auto offset_of = [](std::int64_t index) {
    return static_cast<std::int64_t>(header_bytes) + index * std::int64_t{sizeof(std::uint16_t)};
  };
  read_fully(file_.get(), path_, tokens.data(), tokens.size_bytes(), offset_of(first));
  const auto bad = std::ranges::find_if(tokens, [&](std::uint16_t token) { return token >= vocab_; });
  if (bad == tokens.end()) return;
  const std::int64_t index = first + (bad - tokens.begin());
  fail(ExitCode::bad_data, "{}: offset {}: token {} is {}, the vocabulary has {}", path_.string(),
       offset_of(index), index, *bad, vocab_);
}

TokenFileWriter::TokenFileWriter(fs::path file)
    : path_(std::move(file)),
      temporary_(path_.string() + ".tmp"),
      file_(open_file(temporary_, O_RDWR | O_CREAT | O_TRUNC)) {}

TokenFileWriter::~TokenFileWriter() {
  if (file_) ::unlink(temporary_.c_str());
}

void TokenFileWriter::append(std::span<const std::uint16_t> tokens) {
  const auto offset =
      static_cast<std::int64_t>(header_bytes) + num_tokens_ * std::int64_t{sizeof(std::uint16_t)};
  write_fully(file_.get(), temporary_, tokens.data(), tokens.size_bytes(), offset);
  num_tokens_ += static_cast<std::int64_t>(tokens.size());
}

void TokenFileWriter::finish() {
  if (num_tokens_ > std::numeric_limits<std::int32_t>::max()) {
    fail(ExitCode::bad_data, "{}: {} tokens are more than a token file can count; split the text",
         path_.string(), num_tokens_);
  }
  Header header{};
  header[0] = token_file_magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(num_tokens_);
  write_fully(file_.get(), temporary_, header.data(), header_bytes, 0);
  sync_path(temporary_);
  rename_file(temporary_, path_);
  file_.reset();
}

TokenDataset::TokenDataset(TokenFile file, std::int64_t seq_len, std::uint64_t seed)
    : file_(std::move(file)), seq_len_(seq_len), seed_(seed) {
  require(seq_len > 0, "a window has at least one token");
  const auto num_tokens = file_.size();
  if (num_tokens < seq_len + 1) {
    fail(ExitCode::bad_data, "{} has {} tokens; a context of {} needs {}", file_.path().string(), num_tokens,
         seq_len, seq_len + 1);
  }
  // As many windows as fit at every phase; a file of less than two contexts has one, at the phases that it
  // allows.
  num_windows_ = std::max<std::int64_t>(1, (num_tokens - seq_len) / seq_len);
  num_phases_ = std::min(seq_len, num_tokens - num_windows_ * seq_len);
}

void TokenDataset::sample(std::int64_t running_index, std::int32_t* tokens) const {
  require(running_index >= 0, "samples count from 0");
  const std::int64_t epoch = running_index / num_windows_;
  const PhiloxKey stream = stream_key(seed_, "shuffle");
  const std::uint64_t key =
      mix64(((static_cast<std::uint64_t>(stream.k1) << 32U) | stream.k0) + static_cast<std::uint64_t>(epoch));
  const auto phase = static_cast<std::int64_t>(mix64(~key) % static_cast<std::uint64_t>(num_phases_));
  const std::int64_t window = permuted(running_index % num_windows_, num_windows_, key);
  copy_window(phase + window * seq_len_, tokens);
}

std::int64_t TokenDataset::num_sequential() const {
  return (file_.size() - 1) / seq_len_;
}

void TokenDataset::sequential(std::int64_t index, std::int32_t* tokens) const {
  require(index >= 0 && index < num_sequential(), "window inside the file");
  copy_window(index * seq_len_, tokens);
}

void TokenDataset::copy_window(std::int64_t first, std::int32_t* tokens) const {
  std::vector<std::uint16_t> window(static_cast<std::size_t>(seq_len_ + 1));
  file_.read(first, window);
  std::ranges::copy(window, tokens);
}

}  // namespace mylos
