#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes gpt2_tokens.json: tiktoken's tokens of hard strings and generated text, and where transformers differs.

usage: make_token_reference.py DATA > tests/reference/gpt2_tokens.json

DATA is the folder with gpt2.tiktoken and tinyshakespeare.txt. tests/io/gpt2_reference_test.cpp makes the same generated
texts (`Generator`) and compares digests.
"""

import base64
import json
import pathlib
import sys
import tempfile

import tiktoken
import transformers
import xxhash

SPACES = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
SCRIPTS = [0x61, 0xC0, 0x370, 0x400, 0x5D0, 0x620, 0x905, 0xE01, 0x10A0, 0x1100, 0x3041, 0x4E00, 0xAC00, 0x1F300, 0x20000]
NUMBERS = [0x30, 0x660, 0x966, 0x2160, 0x2460, 0xFF10, 0x1D7CE]
WORDS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "don't", "we'll've", "''", "' s", "the", " of", " Token",
         "\r\n", "<|endoftext|>", "for (int i = 0;", "-----", "...", "http://", "\u2019s", "e\u0301", "\ufeff", "\u200b"]
MASK = (1 << 64) - 1


class Generator:
    """Text from SplitMix64 (Steele, Lea and Flood, 2014)."""

    def __init__(self, seed):
        self.state = seed

    def below(self, count):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        x = self.state
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
        return (x ^ (x >> 31)) % count

    def point(self):
        """Any code point, with U+FFFD for surrogates; all planes are equally likely."""
        point = self.below(17) << 16 | self.below(0x10000)
        return 0xFFFD if 0xD800 <= point < 0xE000 else point

    def part(self):
        kind = self.below(8)
        length = 1 + self.below(12)
        if kind == 0:
            return chr(self.point()) * (length * length)
        if kind == 1:
            return "".join(chr(self.point()) for _ in range(length))
        if kind == 2:
            return "".join(chr(self.below(32)) for _ in range(length))
        if kind == 3:
            return WORDS[self.below(len(WORDS))]
        if kind == 4:
            return " " + "".join(chr(97 + self.below(26)) for _ in range(length))
        if kind == 5:
            first = SCRIPTS[self.below(len(SCRIPTS))]
            return " " * self.below(2) + "".join(chr(first + self.below(26)) for _ in range(length))
        if kind == 6:
            return "".join(chr(SPACES[self.below(len(SPACES))]) for _ in range(1 + length // 3))
        first = NUMBERS[self.below(len(NUMBERS))]
        return " " * self.below(2) + "".join(chr(first + self.below(10)) for _ in range(length))

    def text(self, size):
        parts = []
        while size > 0:
            parts.append(self.part())
            size -= len(parts[-1].encode())
        return "".join(parts)


def points():
    return (chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)


def texts():
    """The name and content of each generated text."""
    yield "every code point", "".join(points())
    yield "every code point between letters", "".join("a" + c + " " + c for c in points())
    for seed in range(1, 5):
        yield f"seed {seed}", Generator(seed).text(1 << 20)


def digest(tokens):
    return xxhash.xxh3_128_hexdigest(b"".join(token.to_bytes(2, "little") for token in tokens))


def gpt2_files(ranks, folder):
    """Writes vocab.json and merges.txt of the ranks: a token's merge is the pair to which lower ranks merge it."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in shown]
    character = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    name = lambda token: "".join(character[b] for b in token)

    def parts(token, rank):
        symbols = [token[i:i + 1] for i in range(len(token))]
        while True:
            best = min(range(len(symbols) - 1), key=lambda i: ranks.get(symbols[i] + symbols[i + 1], rank))
            if ranks.get(symbols[best] + symbols[best + 1], rank) >= rank:
                return symbols
            symbols[best:best + 2] = [symbols[best] + symbols[best + 1]]

    merges = [parts(token, rank) for token, rank in sorted(ranks.items(), key=lambda item: item[1]) if rank >= 256]
    vocab = {name(token): rank for token, rank in ranks.items()} | {"<|endoftext|>": len(ranks)}
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{name(a)} {name(b)}\n" for a, b in merges))


def main():
    data = pathlib.Path(sys.argv[1])
    lines = (data / "gpt2.tiktoken").read_text().splitlines()
    ranks = {base64.b64decode(line.split()[0]): int(line.split()[1]) for line in lines}
    pattern = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
    encoding = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
    with tempfile.TemporaryDirectory() as folder:
        gpt2_files(ranks, pathlib.Path(folder))
        other = transformers.GPT2Tokenizer.from_pretrained(folder)
        backend = other.backend_tokenizer
        backend.encode_special_tokens = True

    def kinds_differ():
        """The code points that the two tokenizers put into different classes."""
        probes = ((c, f"a{c}1{c} ") for c in points())
        return [ord(c) for c, probe in probes
                if encoding.encode_ordinary(probe) != backend.encode(probe, add_special_tokens=False).ids]

    differing = kinds_differ()
    skip = {chr(c) for c in differing}
    result = {"tiktoken": tiktoken.__version__, "transformers": transformers.__version__, "strings": [], "texts": []}
    hard = Generator(100)
    strings = ["", " ", "  ", "\n", " \n a", "a  b", "'", "it's", "IT'S", "  'll x", "\u3000\u3000x", "x \u3000", "\ufffd", "a" * 300,
               "\u00e9" * 200, " " * 100, "\u4e00" * 100, "-" * 70 + "\n", *WORDS]
    strings += ["".join(hard.part() for _ in range(1 + hard.below(4))) for _ in range(300)]
    for string in strings:
        tokens = encoding.encode_ordinary(string)
        result["strings"].append({"text": string, "tokens": tokens})
        if not skip & set(string):
            assert backend.encode(string, add_special_tokens=False).ids == tokens, repr(string)
    shakespeare = (data / "tinyshakespeare.txt").read_text()
    for name, text in [*texts(), ("tinyshakespeare.txt", shakespeare)]:
        tokens = encoding.encode_ordinary(text)
        kept = "".join(c for c in text if c not in skip)
        same = backend.encode(kept, add_special_tokens=False).ids == (tokens if kept == text else encoding.encode_ordinary(kept))
        print(name, len(text.encode()), len(tokens), "transformers:", same, file=sys.stderr)
        assert same
        result["texts"].append({"name": name, "bytes": len(text.encode()), "tokens": len(tokens), "digest": digest(tokens)})
    ranges = []
    for c in differing:
        if ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    result["transformers_differs"] = [f"U+{a:04X}" if a == b else f"U+{a:04X}-{b:04X}" for a, b in ranges]
    lists = {name: ",\n".join(json.dumps(entry) for entry in result.pop(name)) for name in ("strings", "texts")}
    print(json.dumps(result)[:-1] + "".join(f', "{name}": [\n{text}\n]' for name, text in lists.items()) + "}")


main()
