// SPDX-License-Identifier: BSD-3-Clause
#include "io/tokens/char_class.hpp"

#include <map>
#include <span>

#include "io/tokens/unicode_ranges.hpp"

namespace mylos {

const CharClasses& CharClasses::table() {
  static const CharClasses classes;
  return classes;
}

CharClasses::CharClasses() {
  std::vector<CharClass> all(0x110000, CharClass::other);
  const auto enter = [&](std::span<const CodePointRange> ranges, CharClass kind) {
    for (const CodePointRange& range : ranges)
      std::fill(all.begin() + range.first, all.begin() + range.last + 1, kind);
  };
  enter(unicode_letters, CharClass::letter);
  enter(unicode_numbers, CharClass::number);
  enter(unicode_spaces, CharClass::space);
  for (std::size_t c = 0; c < ascii_.size(); ++c) ascii_[c] = c < 0x80 ? all[c] : CharClass::malformed;
  std::map<std::vector<CharClass>, std::uint16_t> known;
  for (std::size_t b = 0; b < block_of_.size(); ++b) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(b * block_size);
    const std::vector<CharClass> block(first, first + block_size);
    const auto [entry, is_new] = known.try_emplace(block, static_cast<std::uint16_t>(known.size()));
    if (is_new) blocks_.insert(blocks_.end(), block.begin(), block.end());
    block_of_[b] = entry->second;
  }
}

}  // namespace mylos
