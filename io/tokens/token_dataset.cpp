// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/token_dataset.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/rng.hpp"

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

TokenFile::TokenFile(const fs::path& file) : path_(file) {
  const FileDescriptor fd = open_file(file, O_RDONLY);
  std::error_code error;
  bytes_ = fs::file_size(file, error);
  if (error) fail(ExitCode::io, "cannot read {}: {}", file.string(), error.message());
  if (bytes_ < header_bytes) {
    fail(ExitCode::bad_data, "{} has {} bytes; a token file begins with a header of {}", file.string(),
         bytes_, header_bytes);
  }
  Header header{};
  read_fully(fd.get(), file, header.data(), header_bytes, 0);
  if (header[0] != token_file_magic) {
    bad_header(file, 0,
               fmt::format("magic number {}; a token file, such as mylos tokenize writes, has {}", header[0],
                           token_file_magic));
  }
  if (header[1] != version)
    bad_header(file, 1, fmt::format("version {}; only {} is known", header[1], version));
  const std::size_t expected = header_bytes + static_cast<std::uint32_t>(header[2]) * sizeof(std::uint16_t);
  if (header[2] < 0 || bytes_ != expected) {
    bad_header(file, 2,
               fmt::format("{} tokens; the file's {} bytes do not hold just that many", header[2], bytes_));
  }
  memory_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory_ == MAP_FAILED) {
    fail(ExitCode::io, "cannot map {}: {}", file.string(), std::strerror(errno));
  }
  tokens_ = {reinterpret_cast<const std::uint16_t*>(static_cast<const std::byte*>(memory_) + header_bytes),
             static_cast<std::size_t>(header[2])};
}

TokenFile::TokenFile(TokenFile&& other) noexcept
    : path_(std::move(other.path_)),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_),
      tokens_(std::exchange(other.tokens_, {})) {}

TokenFile::~TokenFile() {
  if (memory_ != nullptr) ::munmap(memory_, bytes_);
}

void TokenFile::check_tokens(std::int64_t vocab) const {
  if (vocab > std::numeric_limits<std::uint16_t>::max()) return;
  constexpr std::size_t block = 65536;
  for (std::size_t first = 0; first < tokens_.size(); first += block) {
    const auto part = tokens_.subspan(first, std::min(block, tokens_.size() - first));
    std::uint16_t largest = 0;
    for (const std::uint16_t token : part) largest = std::max(largest, token);
    if (largest < vocab) continue;
    const auto bad =
        std::find_if(part.begin(), part.end(), [&](std::uint16_t token) { return token >= vocab; });
    const std::size_t index = first + static_cast<std::size_t>(bad - part.begin());
    fail(ExitCode::bad_data, "{}: offset {}: token {} is {}, the vocabulary has {}", path_.string(),
         header_bytes + index * sizeof(std::uint16_t), index, *bad, vocab);
  }
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
  std::error_code error;
  fs::rename(temporary_, path_, error);
  if (error) fail(ExitCode::io, "cannot replace {}: {}", path_.string(), error.message());
  file_.reset();
}

TokenDataset::TokenDataset(TokenFile file, std::int64_t seq_len, std::uint64_t seed)
    : file_(std::move(file)), seq_len_(seq_len), seed_(seed) {
  require(seq_len > 0, "a window has at least one token");
  const auto num_tokens = static_cast<std::int64_t>(file_.tokens().size());
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
  return (static_cast<std::int64_t>(file_.tokens().size()) - 1) / seq_len_;
}

void TokenDataset::sequential(std::int64_t index, std::int32_t* tokens) const {
  require(index >= 0 && index < num_sequential(), "window inside the file");
  copy_window(index * seq_len_, tokens);
}

void TokenDataset::copy_window(std::int64_t first, std::int32_t* tokens) const {
  const auto window =
      file_.tokens().subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(seq_len_ + 1));
  std::copy(window.begin(), window.end(), tokens);
}

}  // namespace mylos
