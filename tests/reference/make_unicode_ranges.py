#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes io/tokens/unicode_ranges.hpp: the letters, numbers and white space of Unicode as tiktoken's patterns see them.

usage: make_unicode_ranges.py > io/tokens/unicode_ranges.hpp; clang-format -i io/tokens/unicode_ranges.hpp
"""

import tiktoken


def members(pattern):
    """The code points that a one-character pattern matches: text between matches gives no tokens."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    encoding = tiktoken.Encoding("probe", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    text = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    return [ord(c) for c in bytes(encoding.encode_ordinary(text)).decode()]


def ranges(points):
    result = []
    for point in points:
        if result and result[-1][1] == point - 1:
            result[-1][1] = point
        else:
            result.append([point, point])
    return result


print(f"""// SPDX-License-Identifier: BSD-3-Clause
// The code points of Unicode 16 that GPT-2's pre-tokenizer distinguishes, in ascending ranges: letters
// (\\p{{L}}), numbers (\\p{{N}}) and white space (\\s). Made by tests/reference/make_unicode_ranges.py from tiktoken
// {tiktoken.__version__}.
#pragma once

namespace mylos {{

struct CodePointRange {{
  char32_t first;
  char32_t last;  ///< inclusive
}};
""")
for name, pattern in [("letters", r"\p{L}"), ("numbers", r"\p{N}"), ("spaces", r"\s")]:
    print(f"inline constexpr CodePointRange unicode_{name}[] = {{")
    print(", ".join(f"{{0x{first:x}, 0x{last:x}}}" for first, last in ranges(members(pattern))))
    print("};\n")
print("}  // namespace mylos")
