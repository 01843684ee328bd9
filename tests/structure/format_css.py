#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Formats style sheets: one selector and one declaration a line, two spaces for each level, single blank lines.

usage: format_css.py [--check] FILE...
  --check  changes nothing, and ends with 1 if a file would change
"""
import pathlib
import re
import sys

# A comment, a mark, or text up to one of these, with its strings and addresses.
TOKEN = re.compile(r"""/\*.*?\*/|[{};]|(?:"[^"]*"|'[^']*'|url\([^)]*\)|[^{};"'/]|/(?!\*))+""", re.DOTALL)
STRING = re.compile(r"""("[^"]*"|'[^']*'|url\([^)]*\))""")


def even(text):
    """With single spaces, none before commas, and one after them."""
    parts = STRING.split(text)
    for i in range(0, len(parts), 2):  # between the strings
        parts[i] = re.sub(r"\s*,\s*", ", ", re.sub(r"\s+", " ", parts[i]))
    return "".join(parts).strip()


def heads(text):
    """The lines before a {: selectors, or an at-rule with its conditions."""
    if text.startswith("@"):
        return [re.sub(r"\s*:\s*", ": ", even(text))]
    selectors = [even(selector) for selector in re.split(r",(?![^(]*\))", text)]
    return [selector + "," for selector in selectors[:-1]] + selectors[-1:]


def formatted(text):
    """Throws ValueError with what is wrong."""
    lines, level, pending = [], 0, ""

    def add(words):
        lines.append("  " * level + words)

    def end_declaration():
        nonlocal pending
        if not pending:
            return
        name, colon, value = pending.partition(":")
        if not colon or not level:
            raise ValueError(f"no declaration: {pending}")
        add(f"{name.strip()}: {even(value)};")
        pending = ""

    if "".join(TOKEN.findall(text)) != text:
        raise ValueError("a string or a comment does not end")
    for token in TOKEN.findall(text):
        if re.match(r"\s*\n\s*\n", token) and lines and not lines[-1].endswith("{"):
            lines.append("")
        if token.startswith("/*"):
            add(token)
        elif token == "{":
            *first, last = heads(pending)
            for line in first:
                add(line)
            add(last + " {")
            pending, level = "", level + 1
        elif token == "}":
            end_declaration()
            level -= 1
            if level < 0:
                raise ValueError("a } too many")
            while lines[-1] == "":
                lines.pop()
            add("}")
        elif token == ";":
            end_declaration()
        else:
            pending = token.strip()
    if level or pending:
        raise ValueError("the last rule does not end")
    return "\n".join(lines) + "\n"


def main():
    check = sys.argv[1:2] == ["--check"]
    files = sys.argv[1 + check:]
    if not files:
        sys.exit(__doc__)
    code = 0
    for file in map(pathlib.Path, files):
        text = file.read_text()
        try:
            new = formatted(text)
        except ValueError as error:
            sys.exit(f"{file}: {error}")
        if new == text:
            continue
        code = code or int(check)
        if check:
            line = next((n for n, (a, b) in enumerate(zip(text.splitlines(), new.splitlines()), 1) if a != b), "last")
            print(f"{file}:{line}: not formatted: tests/structure/format_css.py {file}")
        else:
            file.write_text(new)
    sys.exit(code)


main()
