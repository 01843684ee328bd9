#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes sampling.json: what `generate` of transformers leaves of logits before it draws.

usage: make_sampling_reference.py > tests/reference/sampling.json

Each case has the index of its logits, the options, `allowed` (ids from there on are excluded first), and the scores
that the processors leave, in fp32; null stands for ids that they drop. `generate` itself makes the list of processors.
The logprobs are log softmax in double precision of all logits.
"""

import json

import torch
import transformers

VOCABULARY = 30
SEEN = [3, 17, 17, 22, 0, 3, 29]


def logits():
    """Rows of logits that are short decimals in fp32: ordinary ones; many equal; all equal; one far above the rest."""
    generator = torch.Generator().manual_seed(44)
    normal = torch.randn(3, VOCABULARY, generator=generator)
    peak = normal[2].clone()
    peak[21] = 25
    rows = [normal[0] * 3 - 1, (normal[1] * 1.5).round(), torch.full((VOCABULARY,), -0.5), peak]
    return [[round(float(value), 3) for value in row] for row in rows]


def options():
    yield from ({"temperature": 0.7}, {"temperature": 1.9, "repetition_penalty": 1.3}, {"repetition_penalty": 0.6})
    yield from ({"top_k": 1}, {"top_k": 7}, {"top_k": 200}, {"top_p": 0.0}, {"top_p": 0.31}, {"top_p": 0.77}, {"top_p": 0.95})
    yield {"top_k": 12, "temperature": 0.3, "repetition_penalty": 1.7}
    yield {"top_p": 0.83, "temperature": 1.4}
    yield {"top_p": 0.61, "top_k": 9, "temperature": 0.8, "repetition_penalty": 1.2}
    yield from ({"top_p": 0.53, "top_k": 20, "allowed": 23}, {"top_p": 0.97, "allowed": 13, "repetition_penalty": 2.0})


def main():
    shape = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=4, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(shape)
    rows = logits()
    cases = []
    for index, row in enumerate(rows):
        for option in options():
            allowed = option.get("allowed", VOCABULARY)
            settings = {key: value for key, value in option.items() if key != "allowed"}
            config = transformers.GenerationConfig(do_sample=True, **({"top_k": 0} | settings))
            config.eos_token_id = None
            processors = model._get_logits_processor(config, input_ids_seq_length=len(SEEN))
            scores = torch.tensor([row])
            scores[:, allowed:] = -torch.inf
            seen = torch.tensor([SEEN])
            for processor in processors:
                if isinstance(processor, transformers.TopPLogitsWarper):
                    # No probability may be so near to the limit that rounding decides, except on purpose.
                    sums = scores[0].double().sort().values.softmax(-1).cumsum(-1)
                    distance = (sums - (1 - processor.top_p)).abs().min()
                    assert distance > 1e-6 or processor.top_p == 0, (index, option, distance)
                scores = processor(seen, scores)
            left = [None if score == -torch.inf else float(f"{score:.9g}") for score in scores[0].tolist()]
            cases.append({"logits": index, **option, "scores": left})
    logprobs = [[float(f"{value:.10g}") for value in torch.tensor(row).double().log_softmax(-1).tolist()] for row in rows]
    print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__, "seen": SEEN})[:-1] + ",")
    lists = {"logits": rows, "logprobs": logprobs, "cases": cases}
    texts = {name: ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries) for name, entries in lists.items()}
    print(",\n".join(f'"{name}": [\n{text}\n]' for name, text in texts.items()) + "}")


main()
