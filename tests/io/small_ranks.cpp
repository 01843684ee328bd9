// SPDX-License-Identifier: BSD-3-Clause
#include "tests/io/small_ranks.hpp"

#include <array>

#include "io/json.hpp"

namespace mylos::test {

std::string shown(const std::string& bytes) {
  static const auto characters = [] {
    std::array<int, 256> table{};
    int next = 256;
    for (int b = 0; b < 256; ++b)
      table[static_cast<std::size_t>(b)] = (b > ' ' && b < 127) || (b > 160 && b != 173) ? b : next++;
    return table;
  }();
  std::string text;
  for (const char c : bytes) {
    const int point = characters[static_cast<unsigned char>(c)];
    if (point < 128) {
      text += static_cast<char>(point);
    } else {
      text += static_cast<char>(0xc0 | point >> 6);
      text += static_cast<char>(0x80 | (point & 63));
    }
  }
  return text;
}

MergesFiles files_of(const Merges& merges) {
  std::vector<std::string> tokens;
  for (const bool hidden : {false, true}) {
    for (int b = 0; b < 256; ++b) {
      const std::string token(1, static_cast<char>(b));
      const std::string name = shown(token);
      // Bytes that are not shown as themselves have characters of U+0100 and above.
      if ((name.size() == 2 && static_cast<unsigned char>(name[0]) >= 0xc4) == hidden)
        tokens.push_back(token);
    }
  }
  MergesFiles files{.vocab = "", .merges = "#version: 0.2\n"};
  for (const auto& [left, right] : merges) {
    files.merges += shown(left) + " " + shown(right) + "\n";
    tokens.push_back(left + right);
  }
  std::vector<Json::Member> vocab;
  for (std::size_t id = 0; id < tokens.size(); ++id)
    vocab.emplace_back(shown(tokens[id]), static_cast<std::int64_t>(id));
  vocab.emplace_back("<|endoftext|>", static_cast<std::int64_t>(tokens.size()));
  files.vocab = Json::object(vocab).dump();
  return files;
}

BpeRanks ranks_of(const Merges& merges) {
  const MergesFiles files = files_of(merges);
  return BpeRanks::parse_merges(files.vocab, "vocab.json", files.merges, "merges.txt");
}

std::vector<std::string> merge_simply(const std::string& bytes, const std::map<std::string, int>& ranks,
                                      int limit) {
  std::vector<std::string> parts;
  for (const char c : bytes) parts.emplace_back(1, c);
  for (;;) {
    int best = limit;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find(parts[i] + parts[i + 1]);
      if (found == ranks.end() || found->second >= best) continue;
      best = found->second;
      at = i;
    }
    if (best == limit) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

}  // namespace mylos::test
