#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes io/choices/unicode_case.hpp: what Python's str.capitalize needs to know about characters.

usage: make_unicode_case.py > io/choices/unicode_case.hpp; clang-format -i io/choices/unicode_case.hpp
"""

import unicodedata

POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(points):
    result = []
    for point in points:
        if result and result[-1][1] == point - 1:
            result[-1][1] = point
        else:
            result.append([point, point])
    return result


def runs(mapping):
    """(first, last, step, distance): characters at equal steps that move by the same distance."""
    result = []
    for point, image in mapping.items():
        distance = image - point
        if result:
            first, last, step, known = result[-1]
            if known == distance and (point - last == step or (first == last and point - last == 2)):
                result[-1] = (first, point, point - last, distance)
                continue
        result.append((point, point, 1, distance))
    return result


def changes(function):
    """Characters that become one other character, and those that become several."""
    images = {c: function(chr(c)) for c in POINTS if function(chr(c)) != chr(c)}
    return {c: ord(s) for c, s in images.items() if len(s) == 1}, {c: s for c, s in images.items() if len(s) > 1}


def table(kind, name, rows):
    print(f"inline constexpr {kind} {name}[] = {{")
    print(", ".join("{" + ", ".join(row) + "}" for row in rows))
    print("};\n")


def run_rows(mapping):
    return [(f"0x{first:x}", f"0x{last:x}", str(step), str(distance)) for first, last, step, distance in runs(mapping)]


def expansion_rows(mapping):
    return [(f"0x{c:x}", "{" + ", ".join(f"0x{ord(x):x}" for x in s) + "}") for c, s in mapping.items()]


def range_rows(points):
    return [(f"0x{first:x}", f"0x{last:x}") for first, last in ranges(points)]


title, long_title = changes(str.title)
lower, long_lower = changes(str.lower)
assert title == changes(str.capitalize)[0] and long_title == changes(str.capitalize)[1]
# A capital sigma becomes the final one where a letter precedes it and none follows, whatever is passed over between.
letters = [c for c in POINTS if ("a\u03a3" + chr(c)).lower()[1] == "\u03c3"]
passed = [c for c in POINTS if ("a\u03a3" + chr(c)).lower()[1] == "\u03c2" and ("a\u03a3" + chr(c) + "a").lower()[1] == "\u03c3"]
spaces = [c for c in POINTS if chr(c).isspace()]

print(f"""// SPDX-License-Identifier: BSD-3-Clause
// The case of characters as Python's str.title and str.lower see it (Unicode {unicodedata.unidata_version}), and Python's white
// space, in ascending order. Made by tests/reference/make_unicode_case.py.
#pragma once

#include <cstdint>

#include "io/tokens/unicode_ranges.hpp"

namespace mylos {{

/// The characters `first`, `first` + `step` ... `last`, each of which becomes the one `distance` further.
struct CaseRun {{
  char32_t first;
  char32_t last;  ///< inclusive
  char32_t step;
  std::int32_t distance;
}};

/// A character that becomes several.
struct CaseExpansion {{
  char32_t from;
  char32_t to[3];  ///< ends at the first 0
}};
""")
table("CaseRun", "title_runs", run_rows(title))
table("CaseExpansion", "title_expansions", expansion_rows(long_title))
table("CaseRun", "lower_runs", run_rows(lower))
table("CaseExpansion", "lower_expansions", expansion_rows(long_lower))
print("/// Of the characters around a capital sigma: those with case, and those that are passed over.")
table("CodePointRange", "cased_ranges", range_rows(letters))
table("CodePointRange", "case_ignorable_ranges", range_rows(passed))
table("CodePointRange", "python_spaces", range_rows(spaces))
print("}  // namespace mylos")
