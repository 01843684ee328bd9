#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes io/tokens/unicode_ranges.cpp: the letters, numbers and white space of Unicode as tiktoken's patterns see them.

usage: make_unicode_ranges.py > io/tokens/unicode_ranges.cpp; clang-format -i io/tokens/unicode_ranges.cpp
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
// Made by tests/reference/make_unicode_ranges.py from tiktoken {tiktoken.__version__} (Unicode 16).
#include "io/tokens/unicode_ranges.hpp"

namespace mylos {{

namespace {{
""")
CLASSES = [("letters", r"\p{L}"), ("numbers", r"\p{N}"), ("spaces", r"\s")]
for name, pattern in CLASSES:
    print(f"constexpr CodePointRange {name}[] = {{")
    print(", ".join(f"{{0x{first:x}, 0x{last:x}}}" for first, last in ranges(members(pattern))))
    print("};\n")
print("}  // namespace\n")
for name, _ in CLASSES:
    print(f"std::span<const CodePointRange> unicode_{name}() {{\n  return {name};\n}}\n")
print("}  // namespace mylos")
