#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes pipedream_reference.json: losses of asynchronous pipelines, by a loop in torch and double precision that keeps
all versions of each stage's weights and takes for micro-batch k the one that the rule names.

usage: make_pipedream_reference.py >tests/reference/pipedream_reference.json

Weights and tokens follow from a formula, which pipedream_reference_test.cpp repeats.
"""
import itertools
import json

import torch

torch.set_default_dtype(torch.float64)
LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 6, 2, 16, 12, 61
STEPS, BATCH = 12, 2  # sequences per micro-batch
CUTS = {2: [4], 3: [2, 5], 4: [2, 4, 6]}  # first units of stages 1, 2, ...: embedding, blocks, head
RATES = {"adamw": 5e-3, "sgd": 5e-2}
CLIP = 0.5
MASK = 2**32 - 1


def mixed(a, b):
    """32 bits that look random."""
    x = (a * 2654435761 + b * 40503 + 12345) & MASK
    x ^= x >> 15
    x = (x * 2246822519) & MASK
    x ^= x >> 13
    x = (x * 3266489917) & MASK
    return x ^ (x >> 16)


def names():
    """The names of the weights, by unit."""
    block = [f"{part}.{kind}" for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
             for kind in ("weight", "bias")]
    return ([["wte.weight", "wpe.weight"]] + [[f"h.{layer}.{name}" for name in block] for layer in range(LAYERS)] +
            [["ln_f.weight", "ln_f.bias", "lm_head.weight"]])


def shape_of(name):
    if name in ("wte.weight", "lm_head.weight"):
        return VOCAB, WIDTH
    if name == "wpe.weight":
        return CONTEXT, WIDTH
    if "ln_" in name:
        return (WIDTH,)
    rows, columns = {"c_attn": (WIDTH, 3 * WIDTH), "c_fc": (WIDTH, 4 * WIDTH),
                     "c_proj": (4 * WIDTH if "mlp" in name else WIDTH, WIDTH)}[name.split(".")[-2]]
    return (columns,) if name.endswith("bias") else (rows, columns)


def first_weights():
    weights = {}
    for number, name in enumerate(itertools.chain(*names())):
        shape = shape_of(name)
        count = torch.Size(shape).numel()
        values = torch.tensor([mixed(number, i) / 2**32 - 0.5 for i in range(count)]).reshape(shape)
        weights[name] = 1.0 + 0.4 * values if name.endswith("weight") and len(shape) == 1 else 0.4 * values
    return {name: value.float().double() for name, value in weights.items()}


def tokens_of(k):
    """(B, T + 1) of micro-batch k: an affine walk with noise."""
    rows = []
    for b in range(BATCH):
        token, row = 0, []
        for t in range(CONTEXT + 1):
            noise = mixed(1000 + k * BATCH + b, t)
            token = (noise if t == 0 else 3 * token + noise % 8) % VOCAB
            row.append(token)
        rows.append(row)
    return torch.tensor(rows)


def layernorm(x, w, name):
    return torch.nn.functional.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)


def loss_of(w, tokens):
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = w["wte.weight"][inputs] + w["wpe.weight"]
    for layer in range(LAYERS):
        def product(y, name):
            return y @ w[f"h.{layer}.{name}.weight"] + w[f"h.{layer}.{name}.bias"]
        qkv = product(layernorm(x, w, f"h.{layer}.ln_1"), "attn.c_attn")
        q, key, v = (part.view(BATCH, CONTEXT, HEADS, -1).transpose(1, 2) for part in qkv.split(WIDTH, 2))
        y = torch.nn.functional.scaled_dot_product_attention(q, key, v, is_causal=True)
        x = x + product(y.transpose(1, 2).reshape(BATCH, CONTEXT, WIDTH), "attn.c_proj")
        y = product(layernorm(x, w, f"h.{layer}.ln_2"), "mlp.c_fc")
        x = x + product(torch.nn.functional.gelu(y, approximate="tanh"), "mlp.c_proj")
    logits = layernorm(x, w, "ln_f") @ w["lm_head.weight"].T
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train(rule, stages, step, optimizer, clip):
    """The losses of the steps; `step` micro-batches each."""
    units = names()
    stage_of = {name: sum(unit >= cut for cut in CUTS[stages]) for unit, own in enumerate(units) for name in own}
    newest = {name: value.clone().requires_grad_() for name, value in first_weights().items()}
    versions = [{name: value.detach().clone() for name, value in newest.items()}]
    groups = [{"params": [v for v in newest.values() if v.ndim > 1], "weight_decay": 0.1},
              {"params": [v for v in newest.values() if v.ndim < 2], "weight_decay": 0.0}]
    steps = (torch.optim.AdamW(groups, lr=RATES[optimizer], betas=(0.9, 0.95), eps=1e-8) if optimizer == "adamw"
             else torch.optim.SGD(groups, lr=RATES[optimizer], momentum=0.9))

    def version(k, stage):
        if rule == "synchronous":
            return k // step
        if rule == "pipedream_2bw":
            return max(0, k // step - 1)
        delay = stages - 1 - (0 if rule == "vertical" else stage)
        return max(0, k - delay) // step

    losses = []
    for number in range(STEPS):
        total = 0.0
        gradients = {name: torch.zeros_like(value) for name, value in newest.items()}
        for k in range(number * step, (number + 1) * step):
            used = {name: versions[version(k, stage_of[name])][name].clone().requires_grad_() for name in newest}
            loss = loss_of(used, tokens_of(k))
            loss.backward()
            total += loss.item() / step
            for name, value in used.items():
                gradients[name] += value.grad / step
        for name, value in newest.items():
            value.grad = gradients[name]
        for stage in range(stages):
            own = [value for name, value in newest.items() if stage_of[name] == stage]
            norm = torch.sqrt(sum((value.grad**2).sum() for value in own))
            for value in own:
                if clip and norm > CLIP:
                    value.grad *= CLIP / norm
        steps.step()
        versions.append({name: value.detach().clone() for name, value in newest.items()})
        losses.append(round(total, 12))
    return losses


CASES = [("synchronous", 4, 4), ("pipedream", 2, 1), ("pipedream", 4, 1), ("pipedream", 4, 4), ("pipedream", 3, 2),
         ("vertical", 4, 3), ("pipedream_2bw", 4, 4)]
print(json.dumps({"cases": [{"rule": rule, "stages": stages, "step": step, "optimizer": optimizer, "clips": clip,
                             "losses": train(rule, stages, step, optimizer, clip)}
                            for rule, stages, step in CASES for optimizer in RATES
                            for clip in (False, True)]}, indent=1))
