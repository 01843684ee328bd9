#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""tiktoken's speed on a text in memory, with one thread: median MB/s of two of its functions, as CSV.

usage: tiktoken_encode.py RANKS TEXT ROUNDS

Run it with .deps/peers/bin/python (benchmarks/peers/setup).
"""
import base64
import statistics
import sys
import time

import tiktoken
from tiktoken_ext.openai_public import r50k_pat_str


def main():
    ranks_file, text_file, rounds = sys.argv[1:]
    with open(ranks_file, encoding="ascii") as lines:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    encoding = tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
    with open(text_file, encoding="utf-8", newline="") as file:
        text = file.read()
    size = len(text.encode())
    calls = {"encode_ordinary": lambda: encoding.encode_ordinary(text),
             "encode_to_numpy": lambda: encoding.encode_to_numpy(text, disallowed_special=())}
    seconds = {name: [] for name in calls}
    for _ in range(int(rounds)):
        for name, call in calls.items():
            start = time.perf_counter()
            tokens = call()
            seconds[name].append(time.perf_counter() - start)
    print("call,bytes,tokens,MB/s")
    for name, all_seconds in seconds.items():
        print(f"{name},{size},{len(tokens)},{size / statistics.median(all_seconds) / 1e6:.2f}")


main()
