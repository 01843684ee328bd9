#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes model_reference.json: what transformers computes with the models of tests/reference/models, all in double
precision: losses by token, greedy texts with the cache, and steps of torch's AdamW from their weights.

usage: make_model_reference.py >tests/reference/model_reference.json

The models "4 heads" (untied) and "5 heads", of width 17 each, have larger weights, so that attention and texts vary
more. They are not stored: the test writes their folders with the same formula.
"""

import copy
import json
import pathlib
import sys

import numpy as np
import torch
import transformers

import make_model_folders as folders

MODELS = pathlib.Path(__file__).parent / "models"
HEAD_WIDTH = 17
WINDOWS, LENGTH = 4, 16  # of the losses
PROMPTS = [1, 3, 7, 11]  # tokens
STEPS, ROWS, MICRO_BATCHES = 6, 8, 2
OPTIMIZER = dict(beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)
# Some steps have norms above the limit, and some below it.
TRAINING = {"fp32": dict(lr=1e-2, clip_norm=0.22), "bf16_shards": dict(lr=1e-2, clip_norm=0.22),
            "4 heads": dict(lr=1e-3, clip_norm=25.0), "5 heads": dict(lr=1e-3, clip_norm=26.0)}


def new_model(tied=True, **shape):
    sizes = dict(n_layer=folders.LAYERS, n_head=folders.HEADS, n_embd=folders.WIDTH, n_positions=folders.CONTEXT)
    config = transformers.GPT2Config(**(sizes | shape), vocab_size=folders.VOCAB, bos_token_id=0, eos_token_id=0,
                                     tie_word_embeddings=tied)
    return transformers.GPT2LMHeadModel(config)


def shapes_of(model):
    return {name.removeprefix("transformer."): tuple(parameter.shape) for name, parameter in model.named_parameters()}


def of_heads(heads, tied):
    """Twice the values of the folders, and 1 more for the weights of layernorms."""
    shape = dict(n_head=heads, n_embd=heads * HEAD_WIDTH)
    values = folders.values_of(shapes_of(new_model(tied=False, **shape)))
    for name, value in values.items():
        value.mul_(2).add_(1.0 if value.ndim == 1 and name.endswith("weight") else 0.0)
    return folders.fill(new_model(tied, **shape), values)


def llmc(dtype):
    """The model of an llm.c file: the values of the folders, rounded to the file's type."""
    names = shapes_of(new_model(tied=False))
    values = {name: value.to(dtype).float() for name, value in folders.values_of(names).items()}
    return folders.fill(new_model(), values)


def from_folder(name):
    model, found = transformers.GPT2LMHeadModel.from_pretrained(MODELS / name, dtype=torch.float64,
                                                                output_loading_info=True)
    assert not found["missing_keys"] and not found["mismatched_keys"], found
    return model


def models():
    found = {name: from_folder(name) for name in ("fp32", "bf16_shards", "fp16_bare")}
    found |= {"llmc_fp32.bin": llmc(torch.float32), "llmc_bf16.bin": llmc(torch.bfloat16)}
    found |= {"4 heads": of_heads(4, tied=False), "5 heads": of_heads(5, tied=True)}
    return {name: model.double().eval() for name, model in found.items()}


def walks(rows, length, seed, most=folders.VOCAB):
    """Noisy affine walks over the first `most` tokens, so that there is something to learn."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(most, size=(rows, length + 1))
    for t in range(1, length + 1):
        tokens[:, t] = (3 * tokens[:, t - 1] + tokens[:, t] % 4) % most
    return torch.from_numpy(tokens)


def losses(model, tokens):
    """(rows, T), in nats."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")


def greedy(model, prompt):
    """Fills the context after the prompt; returns the new tokens and their log-probabilities."""
    count = model.config.n_positions - len(prompt)
    model.generation_config.eos_token_id = None
    found = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count, use_cache=True,
                           return_dict_in_generate=True, output_logits=True, pad_token_id=0)
    logits = torch.stack(found.logits)[:, 0]
    best = logits.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-4, "rounding must not choose a token"
    tokens = found.sequences[0, len(prompt):]
    assert len(tokens) == count
    return tokens.tolist(), logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0].tolist()


def train(model, tokens, lr, clip_norm):
    """Steps on tokens (steps, rows, T + 1); returns losses and norms before clipping."""
    weights = list(model.parameters())
    decays = [dict(params=[w for w in weights if w.ndim >= 2], weight_decay=OPTIMIZER["weight_decay"]),
              dict(params=[w for w in weights if w.ndim < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(decays, lr=lr, betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
                                  eps=OPTIMIZER["epsilon"])
    step_losses, norms = [], []
    for rows in tokens:
        optimizer.zero_grad()
        mean = 0.0
        for micro_batch in rows.chunk(MICRO_BATCHES):
            loss = losses(model, micro_batch).mean() / MICRO_BATCHES
            loss.backward()
            mean += loss.item()
        norm = torch.sqrt(sum(weight.grad.square().sum() for weight in weights)).item()
        # By hand, because clip_grad_norm_ divides by norm + 1e-6.
        if norm > clip_norm:
            for weight in weights:
                weight.grad.mul_(clip_norm / norm)
        optimizer.step()
        step_losses.append(mean)
        norms.append(norm)
    return step_losses, norms


def main():
    torch.set_num_threads(1)
    found = models()
    windows = walks(WINDOWS, LENGTH, seed=1)
    entries = {"losses": [], "greedy": [], "training": []}
    with torch.no_grad():
        for name, model in found.items():
            entries["losses"].append({"model": name, "losses": losses(model, windows).flatten().tolist()})
        for name in ("fp32", "4 heads", "5 heads"):
            for size in PROMPTS:
                prompt = walks(1, size, seed=10 + size)[0, :size].tolist()
                tokens, logprobs = greedy(found[name], prompt)
                print(name, prompt, tokens, file=sys.stderr)
                entries["greedy"].append({"model": name, "prompt": prompt, "tokens": tokens, "logprobs": logprobs})
    steps = walks(STEPS * ROWS, LENGTH, seed=2, most=23).reshape(STEPS, ROWS, LENGTH + 1)
    for name, settings in TRAINING.items():
        single = train(copy.deepcopy(found[name]).float(), steps, **settings)
        step_losses, norms = train(found[name], steps, **settings)
        errors = [max(abs(a / b - 1) for a, b in zip(*pair)) for pair in zip(single, (step_losses, norms))]
        print(name, "torch in fp32 differs by", errors, file=sys.stderr)
        assert errors[0] < 1e-6 and errors[1] < 1e-5, "the steps must not amplify rounding"
        assert min(norms) < settings["clip_norm"] < max(norms) and step_losses[-1] < step_losses[0] - 0.1
        entries["training"].append({"model": name} | settings | {"losses": step_losses, "norms": norms})
    head = {"transformers": transformers.__version__, "torch": torch.__version__, "optimizer": OPTIMIZER,
            "micro_batches": MICRO_BATCHES, "windows": windows.flatten().tolist(), "steps": steps.flatten().tolist()}
    lists = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
    lists += [f'"{name}": [\n' + ",\n".join(map(json.dumps, values)) + "\n]" for name, values in entries.items()]
    print("{" + ",\n".join(lists) + "}")


if __name__ == "__main__":
    main()
