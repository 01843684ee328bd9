# SPDX-License-Identifier: BSD-3-Clause
"""Writes gpt2_reference.h5: Hugging Face's GPT-2 in PyTorch, one forward and backward pass and AdamW steps."""

import copy
import pathlib
import platform
import sys

import h5py
import numpy as np
import torch
import transformers

MODEL = dict(layers=4, heads=3, width=48, context=40, vocab=211, layernorm_epsilon=1e-5)
BATCH = dict(steps=50, micro_batch=3, seq_len=37)
WEIGHTS_AFTER = 10  # steps
OPTIMIZER = dict(lr=1e-3, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, clip_norm=1.0)
SEED = 2019


def make_model():
    """GPT-2 with large weights, and norms and biases far from 1 and 0: only the key bias's gradient is degenerate."""
    config = transformers.GPT2Config(
        n_layer=MODEL["layers"],
        n_head=MODEL["heads"],
        n_embd=MODEL["width"],
        n_positions=MODEL["context"],
        vocab_size=MODEL["vocab"],
        layer_norm_epsilon=MODEL["layernorm_epsilon"],
        activation_function="gelu_new",
        tie_word_embeddings=True,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    rng = np.random.default_rng(SEED)
    with torch.no_grad():
        for name, parameter in weights_of(model).items():
            noise = torch.from_numpy(rng.standard_normal(parameter.shape, dtype=np.float32))
            norm_weight = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1.0 + 0.2 * noise if norm_weight else 0.08 * noise)
    return model


def weights_of(model):
    """Parameters by their names on Hugging Face's hub; the tied head occurs once, as `wte.weight`."""
    return {name.removeprefix("transformer."): parameter for name, parameter in model.named_parameters()}


def make_tokens():
    """(steps, B, T + 1): a noisy affine walk, so that there is something to learn."""
    rng = np.random.default_rng(SEED + 1)
    shape = (BATCH["steps"], BATCH["micro_batch"], BATCH["seq_len"] + 1)
    tokens = rng.integers(MODEL["vocab"], size=shape, dtype=np.int32)
    for t in range(1, shape[-1]):
        tokens[..., t] = (3 * tokens[..., t - 1] + tokens[..., t] % 8) % MODEL["vocab"]
    return tokens


def forward(model, tokens):
    """Logits (B, T, V) in the model's type and the mean loss, in fp32 or wider."""
    tokens = torch.from_numpy(tokens).long()
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return logits, torch.nn.functional.cross_entropy(wide.flatten(0, 1), tokens[:, 1:].flatten())


def first_step(model, tokens):
    """Logits, loss and unclipped gradients of the first step, in fp64; leaves the weights as they were."""
    model.zero_grad()
    logits, loss = forward(model, tokens[0])
    loss.backward()
    gradients = {name: to_numpy(parameter.grad) for name, parameter in weights_of(model).items()}
    model.zero_grad()
    return dict(logits=to_numpy(logits), loss=loss.item(), gradients=gradients)


def train(model, tokens):
    """Trains in place; returns losses, gradient norms before clipping, and the weights after some steps."""
    weights = weights_of(model).values()
    optimizer = torch.optim.AdamW(
        [
            dict(params=[w for w in weights if w.ndim >= 2], weight_decay=OPTIMIZER["weight_decay"]),
            dict(params=[w for w in weights if w.ndim < 2], weight_decay=0.0),
        ],
        lr=OPTIMIZER["lr"],
        betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
        eps=OPTIMIZER["epsilon"],
    )
    losses, norms = [], []
    for step, step_tokens in enumerate(tokens, start=1):
        optimizer.zero_grad()
        _, loss = forward(model, step_tokens)
        loss.backward()
        norm = torch.sqrt(sum(weight.grad.double().square().sum() for weight in weights)).item()
        # By hand, because clip_grad_norm_ divides by norm + 1e-6.
        if norm > OPTIMIZER["clip_norm"]:
            for weight in weights:
                weight.grad.mul_(OPTIMIZER["clip_norm"] / norm)
        optimizer.step()
        losses.append(loss.item())
        norms.append(norm)
        if step == WEIGHTS_AFTER:
            after = {f"weights_after/{name}": to_numpy(weight) for name, weight in weights_of(model).items()}
    return dict(loss=np.array(losses), grad_norm=np.array(norms)) | after


def run(model, tokens):
    """All datasets of one run, as fp64 arrays by name."""
    first = first_step(model, tokens)
    result = {"logits": first["logits"]}
    result |= {f"gradients/{name}": gradient for name, gradient in first["gradients"].items()}
    return result | train(model, tokens)


def to_numpy(tensor):
    return tensor.detach().double().numpy().copy()  # a copy, because training changes the tensor


def relative_error(a, b):
    return float(np.linalg.norm(np.ravel(a) - np.ravel(b)) / np.linalg.norm(np.ravel(b)))


def without_key_bias(name, array):
    """The key bias has gradient zero in exact arithmetic, so Adam updates it by rounding noise."""
    if not name.endswith("attn.c_attn.bias"):
        return array
    query, _, value = np.split(array, 3)
    return np.concatenate([query, value])


def report(title, errors):
    worst = max(errors, key=errors.get)
    print(f"{title:40s} {errors[worst]:.2e}  {worst}")


def main(path):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokens = make_tokens()
    model = make_model()
    bf16_model = copy.deepcopy(model).to(torch.bfloat16)
    fp64_model = copy.deepcopy(model).double()

    initial = {f"weights/{name}": to_numpy(weight) for name, weight in weights_of(model).items()}
    fp32 = run(model, tokens)
    fp64 = run(fp64_model, tokens)
    bf16 = first_step(bf16_model, tokens)
    fp64_error = {
        name: relative_error(without_key_bias(name, fp32[name]), without_key_bias(name, fp64[name]))
        for name in fp32
    }

    # HDF5 1.10 reads this format.
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file.attrs.update(MODEL | BATCH | OPTIMIZER)
        file.attrs["weights_after"] = WEIGHTS_AFTER
        file.attrs["torch"] = str(torch.__version__)
        file.attrs["transformers"] = str(transformers.__version__)
        file.attrs["python"] = platform.python_version()
        file.attrs["attention"] = model.config._attn_implementation
        file["tokens"] = tokens
        for name, array in (initial | fp32).items():
            # Losses and norms keep all digits: they are few, and were summed in fp32 or wider.
            file[name] = array if name in ("loss", "grad_norm") else array.astype(np.float32)
            if name in fp64_error:
                file[name].attrs["error_against_fp64"] = fp64_error[name]
        file["bf16/logits"] = bf16["logits"].astype(np.float32)
        file["bf16/logits"].attrs["error_against_fp32"] = relative_error(bf16["logits"], fp32["logits"])
        file["bf16/loss"] = bf16["loss"]
        for name, gradient in bf16["gradients"].items():
            file[f"bf16/gradient_error/{name}"] = relative_error(gradient, fp32[f"gradients/{name}"])

    def errors(group):
        return {name: error for name, error in fp64_error.items() if name.startswith(group)}

    print("losses", fp32["loss"].round(4), "norms", fp32["grad_norm"].round(3))
    print("largest relative error of fp32 against fp64, the key bias aside")
    for group in ("logits", "loss", "grad_norm", "gradients/", "weights_after/"):
        report(group, errors(group))
    print("PyTorch's bf16 against its fp32")
    report("logits", {"logits": relative_error(bf16["logits"], fp32["logits"])})
    report("loss", {"loss": abs(bf16["loss"] / fp32["loss"][0] - 1.0)})
    report("gradients", {n: relative_error(g, fp32[f"gradients/{n}"]) for n, g in bf16["gradients"].items()})
    key_bias = max(
        np.linalg.norm(np.split(gradient, 3)[1]) / np.linalg.norm(gradient)
        for name, gradient in fp64.items()
        if name.startswith("gradients/") and name.endswith("c_attn.bias")
    )
    print(f"gradient of the key bias over that of the QKV bias, fp64: {key_bias:.2e}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("gpt2_reference.h5"))
