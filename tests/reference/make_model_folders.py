#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes tests/reference/models: one tiny GPT-2 as transformers and llm.c's train_gpt2.py store it, in several ways.

usage: make_model_folders.py [FOLDER]

  fp32          as save_pretrained writes it
  bf16_shards   bf16 in two shards, with a head of its own
  fp16_bare     fp16 without "transformer.", with the masks and the tied head that older files have; wpe in fp32,
                ln_f in bf16
  llmc_fp32.bin, llmc_bf16.bin   versions 3 and 5, with values that are not zero in the padding of the vocabulary

Element i of tensor t (by sorted names, those of the untied model, without "transformer.") is
((31 i + 17 t) mod 1009 - 504) / 4099 in fp32; tests/io/model_test_util.hpp computes the same.
"""

import json
import pathlib
import shutil
import struct
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 2, 2, 16, 16, 67
PADDED_VOCAB = 128


def new_model(tied):
    config = transformers.GPT2Config(n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, n_positions=CONTEXT, vocab_size=VOCAB,
                                     bos_token_id=VOCAB - 1, eos_token_id=VOCAB - 1, tie_word_embeddings=tied)
    return transformers.GPT2LMHeadModel(config)


def values_of(names_and_shapes):
    values = {}
    for t, (name, shape) in enumerate(sorted(names_and_shapes.items())):
        i = np.arange(int(np.prod(shape)), dtype=np.int64)
        numbers = ((31 * i + 17 * t) % 1009 - 504).astype(np.float32) / np.float32(4099)
        values[name] = torch.from_numpy(numbers.reshape(shape))
    return values


def fill(model, values):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name.removeprefix("transformer.")])
    return model


def write_llmc(path, values, version):
    """As train_gpt2.py's write_model, in the order of its write_tensors."""
    dtype = torch.float32 if version == 3 else torch.bfloat16

    def stored(tensor):
        return tensor.to(dtype).contiguous().view(torch.uint8).numpy().tobytes()

    padding = torch.full((PADDED_VOCAB - VOCAB, WIDTH), 3.0)
    tensors = [torch.cat([values["wte.weight"], padding]), values["wpe.weight"]]
    for name in ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
                 "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias",
                 "mlp.c_proj.weight", "mlp.c_proj.bias"]:
        for layer in range(LAYERS):
            value = values[f"h.{layer}.{name}"]
            tensors.append(value.T if value.ndim == 2 else value)
    tensors += [values["ln_f.weight"], values["ln_f.bias"]]
    header = [20240326, version, CONTEXT, VOCAB, LAYERS, HEADS, WIDTH, PADDED_VOCAB]
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", *header, *[0] * (256 - len(header))))
        for tensor in tensors:
            file.write(stored(tensor))


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "models")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    untied = new_model(tied=False)
    values = values_of({name.removeprefix("transformer."): tuple(parameter.shape)
                        for name, parameter in untied.named_parameters()})
    fill(new_model(tied=True), values).save_pretrained(folder / "fp32")
    fill(untied, values).to(torch.bfloat16).save_pretrained(folder / "bf16_shards", max_shard_size="10KB")

    bare = folder / "fp16_bare"
    fill(new_model(tied=True), values).transformer.half().save_pretrained(bare)
    tensors = load_file(bare / "model.safetensors")
    tensors["wpe.weight"] = values["wpe.weight"]
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    for name in ["ln_f.weight", "ln_f.bias"]:
        tensors[name] = values[name].to(torch.bfloat16)
    for layer in range(LAYERS):
        mask = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).tril().reshape(1, 1, CONTEXT, CONTEXT)
        tensors[f"h.{layer}.attn.bias"] = mask
        tensors[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, bare / "model.safetensors")  # no metadata, as in old files
    config = json.loads((bare / "config.json").read_text())
    config |= {"n_ctx": CONTEXT, "activation_function": "gelu_pytorch_tanh", "attn_pdrop": 0.0, "embd_pdrop": 0.05}
    (bare / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    write_llmc(folder / "llmc_fp32.bin", values, 3)
    write_llmc(folder / "llmc_bf16.bin", values, 5)
    for file in folder.glob("*/*.safetensors"):
        file.chmod(0o644)


if __name__ == "__main__":
    main()
