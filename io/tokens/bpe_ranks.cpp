// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/bpe_ranks.hpp"

#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "core/base/digest.hpp"
#include "core/base/error.hpp"
#include "core/base/join.hpp"
#include "io/file_util.hpp"
#include "io/json.hpp"
#include "io/tokens/byte_characters.hpp"
#include "io/tokens/content_kind.hpp"
#include "io/utf8.hpp"

namespace mylos {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view base64_digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::size_t num_bytes = 256;

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    for (std::size_t j = i; j < i + 3; ++j)
      word = word << 8U | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0U);
    for (std::size_t d = 0; d < 4; ++d)
      text += i + d <= bytes.size() ? base64_digits[word >> (18U - 6U * d) & 63U] : '=';
  }
  return text;
}

/// Empty unless `text` is exactly what `to_base64` writes for some bytes.
std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes;
  std::uint32_t word = 0;
  unsigned bits = 0;
  for (const char c : text.substr(0, text.find('='))) {
    const std::size_t digit = base64_digits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    word = word << 6U | static_cast<std::uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(word >> bits & 0xffU);
  }
  if (to_base64(bytes) != text) return std::nullopt;
  return bytes;
}

/// Calls work(line, number) for each line, numbered from 1.
template <class Work>
void for_each_line(std::string_view text, const Work& work) {
  for (std::size_t number = 1; std::string_view line : lines_of(text)) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    work(line, number++);
  }
}

/// The bytes that `characters`, UTF-8, stand for; empty if a character does not stand for a byte.
std::optional<std::string> bytes_of(std::string_view characters) {
  static const auto byte_of = [] {
    std::array<std::int16_t, 2 * num_bytes> table{};
    table.fill(-1);
    for (std::size_t byte = 0; byte < num_bytes; ++byte)
      table[characters_of_bytes[byte]] = static_cast<std::int16_t>(byte);
    return table;
  }();
  std::string bytes;
  while (!characters.empty()) {
    const auto [point, size] = decode_utf8(characters.data(), characters.data() + characters.size());
    if (size == 0 || point >= byte_of.size() || byte_of[point] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_of[point]);
    characters.remove_prefix(size);
  }
  return bytes;
}

BpeMerges merges_of_bytes(const std::vector<std::string>& tokens) {
  std::array<std::uint16_t, num_bytes> byte_tokens{};
  for (std::size_t id = 0; id < num_bytes && id < tokens.size(); ++id) {
    if (tokens[id].size() == 1)
      byte_tokens[static_cast<unsigned char>(tokens[id][0])] = static_cast<std::uint16_t>(id);
  }
  return BpeMerges(byte_tokens);
}

}  // namespace

template <class Place>
BpeRanks::BpeRanks(std::vector<std::string> tokens, const Place& place,
                   std::span<const std::size_t> left_sizes)
    : tokens_(std::move(tokens)), merges_(merges_of_bytes(tokens_)) {
  std::unordered_map<std::string_view, std::size_t> known;
  std::vector<std::uint16_t> parts;
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    const std::string& token = tokens_[id];
    if (const auto [entry, is_new] = known.try_emplace(token, id); !is_new)
      fail(ExitCode::bad_data, "{}: rank {} has the bytes of rank {}", place(id), id, entry->second);
    if (id < num_bytes) {
      if (token.size() != 1)
        fail(ExitCode::bad_data, "{}: rank {} has {} bytes; the first 256 are the single bytes", place(id),
             id, token.size());
      continue;
    }
    // The merges of lower ranks must reduce the token's bytes to exactly two tokens: those are the pair that
    // merges into it. No other pair with these bytes ever occurs in a text, because the bytes that a pair
    // covers go through the same merges there.
    parts.resize(token.size());
    parts.resize(static_cast<std::size_t>(merges_.merge(token, parts.data()) - parts.data()));
    if (parts.size() != 2)
      fail(ExitCode::bad_data, "{}: rank {} is not the merge of two tokens of lower rank", place(id), id);
    if (!left_sizes.empty() && tokens_[parts[0]].size() != left_sizes[id - num_bytes])
      fail(ExitCode::bad_data, "{}: the merges of lower ranks turn the bytes of rank {} into other tokens",
           place(id), id);
    merges_.add(parts[0], parts[1], static_cast<std::uint16_t>(id));
  }
  if (tokens_.size() < num_bytes)
    fail(ExitCode::bad_data, "{}: {} ranks; a vocabulary has at least the 256 single bytes",
         place(tokens_.size()), tokens_.size());
}

BpeRanks BpeRanks::parse_tiktoken(const std::string& text, const std::string& name) {
  std::vector<std::string> tokens;
  std::vector<std::size_t> lines;
  for_each_line(text, [&](std::string_view line, std::size_t number) {
    const auto refuse = [&](const std::string& problem) {
      fail(ExitCode::bad_data, "{}:{}: {}", name, number, problem);
    };
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) refuse("a line is base64(bytes), a space and the rank");
    const auto bytes = from_base64(line.substr(0, space));
    if (!bytes || bytes->empty()) refuse("the bytes are not in base64");
    const std::string_view digits = line.substr(space + 1);
    std::size_t rank = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    if (error != std::errc() || end != digits.data() + digits.size()) refuse("the rank is not a number");
    if (rank >= most_tokens) refuse(fmt::format("rank {}; ids have 16 bits", rank));
    if (rank >= tokens.size()) {
      tokens.resize(rank + 1);
      lines.resize(rank + 1);
    }
    if (lines[rank] != 0) refuse(fmt::format("rank {} is also the rank of line {}", rank, lines[rank]));
    tokens[rank] = *bytes;
    lines[rank] = number;
  });
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    if (lines[rank] == 0) fail(ExitCode::bad_data, "{}: there is no rank {}", name, rank);
  }
  return {
      std::move(tokens),
      [&](std::size_t rank) { return rank < lines.size() ? fmt::format("{}:{}", name, lines[rank]) : name; },
      {}};
}

BpeRanks BpeRanks::parse_merges(const std::string& vocab_text, const std::string& vocab_name,
                                const std::string& merges_text, const std::string& merges_name) {
  std::vector<std::string> tokens;
  std::vector<std::size_t> lines;
  std::vector<std::size_t> left_sizes;
  const auto refuse = [&](std::size_t line, const std::string& problem) {
    fail(ExitCode::bad_data, "{}:{}: {}", merges_name, line, problem);
  };
  for (const unsigned char byte : bytes_by_character) tokens.emplace_back(1, static_cast<char>(byte));
  for_each_line(merges_text, [&](std::string_view line, std::size_t number) {
    if (line.empty() || (number == 1 && line.starts_with("#version"))) return;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      refuse(number, "a line is two tokens with a space between");
    const auto left = bytes_of(line.substr(0, space));
    const auto right = bytes_of(line.substr(space + 1));
    if (!left || !right || left->empty() || right->empty())
      refuse(number, "a character that does not stand for a byte");
    if (tokens.size() == most_tokens) refuse(number, "too many merges; ids have 16 bits");
    tokens.push_back(*left + *right);
    left_sizes.push_back(left->size());
    lines.push_back(number);
  });
  const auto place = [&](std::size_t rank) {
    const std::size_t merge = rank - num_bytes;
    return rank >= num_bytes && merge < lines.size() ? fmt::format("{}:{}", merges_name, lines[merge])
                                                     : merges_name;
  };
  BpeRanks ranks(std::move(tokens), place, left_sizes);
  ranks.check_vocab(vocab_text, vocab_name);
  return ranks;
}

void BpeRanks::check_vocab(const std::string& text, const std::string& name) const {
  const auto refuse = [](const std::string& key, const std::string& problem) {
    fail(ExitCode::bad_data, "\"{}\" {}", key, problem);
  };
  at_place(name, [&] {
    const Json json = Json::parse(text);
    const std::vector<Json::Member> entries = json.members();
    const std::int64_t size = std::ssize(tokens_);
    for (const auto& [key, value] : entries) {
      const std::int64_t id = json.integer(key);
      if (key == "<|endoftext|>") {
        if (id != size) refuse(key, fmt::format("has the id {}; the id after the merges is {}", id, size));
      } else if (id < 0 || id >= size) {
        refuse(key, fmt::format("has the id {}; the bytes and merges have only {} ids", id, size));
      } else if (bytes_of(key) != tokens_[static_cast<std::size_t>(id)]) {
        refuse(key, fmt::format("has the id {}, to which the merges give other bytes", id));
      }
    }
    if (std::ssize(entries) != size + 1)
      fail(ExitCode::bad_data, "{} entries; the bytes, the merges and <|endoftext|> are {}", entries.size(),
           size + 1);
  });
}

BpeRanks BpeRanks::read(const fs::path& path) {
  fs::path folder = path;
  fs::path vocab = folder / "vocab.json";
  fs::path merges = folder / "merges.txt";
  if (!fs::is_directory(path)) {
    const std::string text = read_text_file(path);
    const std::string_view head = std::string_view(text).substr(0, content_head_bytes);
    const bool is_vocab = looks_like_json_lines(head);
    if (const ContentKind kind = content_kind(head); !kind.name.empty() && kind.name != merge_ranks_kind)
      fail(ExitCode::bad_data, "{} is {}, not merge ranks", path.string(), kind.name);
    if (!is_vocab && !head.starts_with("#version")) return parse_tiktoken(text, path.string());
    if (is_vocab && text.find("\"merges\"") != std::string::npos &&
        text.find("\"model\"") != std::string::npos) {
      fail(ExitCode::bad_data,
           "{} is a tokenizer.json of Hugging Face; name the vocab.json of the same tokenizer, which needs "
           "merges.txt next to it",
           path.string());
    }
    folder = path.parent_path();
    (is_vocab ? vocab : merges) = path;
    (is_vocab ? merges : vocab) = folder / (is_vocab ? "merges.txt" : "vocab.json");
  }
  return parse_merges(read_text_file(vocab), vocab.string(), read_text_file(merges), merges.string());
}

std::string BpeRanks::text() const {
  std::string text;
  for (std::size_t rank = 0; rank < tokens_.size(); ++rank)
    text += fmt::format("{} {}\n", to_base64(tokens_[rank]), rank);
  return text;
}

std::string BpeRanks::digest() const {
  return digest_of(text()).text();
}

}  // namespace mylos
