// SPDX-License-Identifier: BSD-3-Clause
// The code points of Unicode 16 that GPT-2's pre-tokenizer distinguishes, in ascending ranges.
#pragma once

#include <span>

namespace mylos {

struct CodePointRange {
  char32_t first;
  char32_t last;  ///< inclusive
};

std::span<const CodePointRange> unicode_letters();  ///< \p{L}
std::span<const CodePointRange> unicode_numbers();  ///< \p{N}
std::span<const CodePointRange> unicode_spaces();   ///< \s: White_Space

}  // namespace mylos
