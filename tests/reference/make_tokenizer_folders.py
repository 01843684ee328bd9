#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the tokenizers that tests/io/hugging_face_tokenizer_test.cpp reads, as transformers saves them.

tokenizers/bytes: one id per byte, equal to its value, and <|endoftext|> = 256.
tokenizers/small: GPT-2's order of ids with six merges.

usage: make_tokenizer_folders.py
"""
import json
import pathlib
import tempfile

from transformers import GPT2Tokenizer

SMALL_MERGES = [(b"t", b"h"), (b"th", b"e"), (b" ", b"the"), (b"a", b"a"), (b"aa", b"aa"), (b"\xc3", b"\xa9")]


def byte_characters():
    """GPT-2's characters for the bytes, in the order of the bytes."""
    shown = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    hidden = [b for b in range(256) if b not in shown]
    characters = {b: chr(b) for b in shown} | {b: chr(256 + i) for i, b in enumerate(hidden)}
    return [characters[b] for b in range(256)]


def save(folder, byte_order, merges):
    characters = byte_characters()

    def text(token):
        return "".join(characters[b] for b in token)

    tokens = [characters[b] for b in byte_order] + [text(a + b) for a, b in merges] + ["<|endoftext|>"]
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        (scratch / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
        lines = ["#version: 0.2"] + [f"{text(a)} {text(b)}" for a, b in merges]
        (scratch / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        tokenizer = GPT2Tokenizer(str(scratch / "vocab.json"), str(scratch / "merges.txt"), model_max_length=16)
        tokenizer.save_pretrained(folder)


def main():
    here = pathlib.Path(__file__).parent / "tokenizers"
    save(here / "bytes", range(256), [])
    characters = byte_characters()
    save(here / "small", sorted(range(256), key=lambda b: characters[b]), SMALL_MERGES)


if __name__ == "__main__":
    main()
