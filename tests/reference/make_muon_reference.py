#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes muon_reference.json: losses of models that Muon trains, in torch and single precision.

usage: make_muon_reference.py >tests/reference/muon_reference.json

Weights, tokens and the model are those of make_expert_reference.py; formulas.hpp repeats the formulas. A head of
its own is the last tensor of the list. The script stops if double precision gives other losses.

One step of Muon on a matrix W of (I, O), input times output, with its gradient g after clipping:

  B <- mu B + g;   U <- g + mu B;   X <- U / max(|U|_F, 1e-7), transposed if I > O
  five times:  A = X X^T;  X <- a X + (b A + c A^2) X
  W <- (1 - lr decay) W - lr s X,   with s = 0.2 sqrt(max(I, O)) (adamw) or sqrt(max(1, O / I)) (original)

c_attn is three matrices, an expert's weight is one. AdamW trains embeddings, the head, routers, norms and biases.
`muon_lr` of 0 stands for `lr`. Both rates follow one schedule, in which steps count from 1.

Cases have:

  losses          of each step; with experts without the loss that balances them
  gradient_norms  before clipping
  tensors         shape, centre and spread of the first weights; of those that Muon trains the `norm` of the change
                  in the first step, and its `probe`, the sum of (after - before)[i] * unit(1000 + n, i)
"""
import json
import math
import sys

import torch

import make_expert_reference as base
from make_expert_reference import VOCAB, WIDTH, relative_error, short, units

STEPS, BETAS, EPSILON, MOMENTUM = 20, (0.9, 0.95), 1e-8, 0.95
COEFFICIENTS, ITERATIONS, SMALLEST_NORM = (3.4445, -4.7750, 2.0315), 5, 1e-7
TOLERANCE = 2e-6         # of losses in single precision against double
CHANGE_TOLERANCE = 1e-4  # of the first step's changes
SMALLEST_GAP = 1e-4      # between routers' scores that decide a choice

# Keys of a deck's sections [model] and [optim].
DEFAULTS = base.DEFAULTS | {"tied": True, "scale": "adamw", "lr": 5e-3, "muon_lr": 0.0, "weight_decay": 0.0,
                            "schedule": "constant", "warmup": 0, "min_lr": 0.0}
CASES = {
    "tied": {"clip_norm": 1.0},
    "untied": {"tied": False, "scale": "original", "muon_lr": 0.02, "feed_forward": 24, "clip_norm": 0.9},
    "decay": {"weight_decay": 0.1, "lr": 1e-2, "schedule": "cosine", "warmup": 5, "min_lr": 1e-3},
    "experts": {"experts": 4, "experts_per_token": 2, "router": "topk_softmax", "expert_width": 24, "muon_lr": 1e-2,
                "weight_decay": 0.1, "clip_norm": 0.9},
}


# ---- The optimizer

def orthogonalised(update):
    """Near an orthogonal matrix: singular values of `update` become about 1, singular vectors stay."""
    a, b, c = COEFFICIENTS
    rows, columns = update.shape
    x = update / max(update.square().sum().sqrt().item(), SMALLEST_NORM)
    if rows > columns:
        x = x.T
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if rows > columns else x


def scale_of(kind, rows, columns):
    return 0.2 * math.sqrt(max(rows, columns)) if kind == "adamw" else math.sqrt(max(1.0, columns / rows))


def is_of_muon(name):
    return name.endswith(".weight") and any(part in name for part in (".attn.", ".mlp.", ".moe.experts."))


def matrices_in(name, tensor, divides):
    """Views of the matrices that Muon updates one by one."""
    if name.endswith("c_attn.weight") and divides:
        return list(tensor.split(WIDTH, 1))
    return list(tensor) if ".experts." in name else [tensor]


def rate_at(config, step):
    """lr of a step; the first one is 1."""
    if step < config["warmup"]:
        return config["lr"] * step / config["warmup"]
    if config["schedule"] == "constant":
        return config["lr"]
    progress = (step - config["warmup"]) / (STEPS - config["warmup"])
    return config["min_lr"] + 0.5 * (config["lr"] - config["min_lr"]) * (1 + math.cos(math.pi * progress))


class Muon:
    def __init__(self, w, config, divides=True):
        self.config = config
        self.matrices = [matrix for name in w if is_of_muon(name)
                         for matrix in zip(matrices_in(name, w[name].data, divides),
                                           matrices_in(name, w[name].grad, divides))]
        self.momenta = [torch.zeros_like(weight) for weight, _ in self.matrices]
        others = {name: value for name, value in w.items() if not is_of_muon(name)}
        decays = {name: value.ndim > 1 and not name.endswith("bias") for name, value in others.items()}
        self.others = torch.optim.AdamW(
            [{"params": [others[name] for name in others if decays[name]], "weight_decay": config["weight_decay"]},
             {"params": [others[name] for name in others if not decays[name]], "weight_decay": 0.0}],
            lr=config["lr"], betas=BETAS, eps=EPSILON, foreach=False)

    def step(self, number):
        config = self.config
        rate = rate_at(config, number)
        for group in self.others.param_groups:
            group["lr"] = rate
        self.others.step()
        own_rate = rate * ((config["muon_lr"] or config["lr"]) / config["lr"])
        for (weight, gradient), momentum in zip(self.matrices, self.momenta):
            momentum.copy_(MOMENTUM * momentum + gradient)
            x = orthogonalised(gradient + MOMENTUM * momentum)
            weight.copy_((1 - own_rate * config["weight_decay"]) * weight
                         - own_rate * scale_of(config["scale"], *weight.shape) * x)


# ---- Training

def shapes(config):
    return base.shapes(config) | ({} if config["tied"] else {"lm_head.weight": (VOCAB, WIDTH)})


def first_weights(config):
    weights = {}
    for n, (name, shape) in enumerate(shapes(config).items()):
        centre, spread = base.centre_and_spread(name)
        weights[name] = (centre + spread * units(n, shape)).float()
    return weights


def forward(w, tokens, config):
    """The mean cross-entropy, and what the routers did."""
    routing = base.Routing()
    x = w["wte.weight"][tokens[:, :-1]] + w["wpe.weight"]
    for layer in range(config["layers"]):
        x = base.block(x, w, layer, config, routing)
    logits = base.layernorm(x, w, "ln_f") @ w["wte.weight" if config["tied"] else "lm_head.weight"].T
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), routing


def train(config, stream, dtype, divides=True):
    """Losses of all steps, and the changes that Muon made in the first one."""
    w = {name: value.to(dtype, copy=True).requires_grad_() for name, value in first_weights(config).items()}
    for value in w.values():
        value.grad = torch.zeros_like(value)
    optimizer = Muon(w, config, divides)
    result = {"losses": [], "gradient_norms": [], "choices": [], "gap": math.inf}
    for step in range(STEPS):
        for value in w.values():
            value.grad.zero_()
        loss = 0.0
        for micro_batch in range(base.MICRO_BATCHES):
            cross_entropy, routing = forward(w, base.tokens_of(stream, step, micro_batch), config)
            total = cross_entropy + config["balance_loss"] * routing.balance
            (total / base.MICRO_BATCHES).backward()
            loss += cross_entropy.item() / base.MICRO_BATCHES
            result["choices"].append([of["choices"] for of in routing.layers.values()])
            result["gap"] = min(result["gap"], routing.gap)
        result["losses"].append(loss)
        result["gradient_norms"].append(base.clip(w, config["clip_norm"]))
        before = {name: value.detach().clone() for name, value in w.items()}
        with torch.no_grad():
            optimizer.step(step + 1)
        if step == 0:
            result["changes"] = {name: (w[name].detach() - before[name]).double() for name in w if is_of_muon(name)}
    return result


def error_of_changes(single, double):
    return max(((single[name] - double[name]).norm() / double[name].norm()).item() for name in double)


def case(name, keys):
    config = DEFAULTS | keys
    for stream in range(4096, 16384, 256):
        single, double = (train(config, stream, dtype) for dtype in (torch.float32, torch.float64))
        if min(single["gap"], double["gap"]) > SMALLEST_GAP:
            break
    errors = {what: [relative_error(a, b) for a, b in zip(single[what], double[what])]
              for what in ("losses", "gradient_norms")}
    changes = error_of_changes(single["changes"], double["changes"])
    clipped = sum(0 < config["clip_norm"] < norm for norm in single["gradient_norms"])
    print(f"{name}: stream {stream}, {clipped} of {STEPS} steps clipped, smallest gap {single['gap']:.1e};",
          f"errors: losses {max(errors['losses']):.1e}, norms {max(errors['gradient_norms']):.1e},",
          f"changes {changes:.1e}", file=sys.stderr)
    base.check(single["choices"] == double["choices"], f"{name}: precision changes a choice")
    base.check(min(single["gap"], double["gap"]) > SMALLEST_GAP, f"{name}: a choice is nearly a tie")
    base.check(max(errors["losses"]) < TOLERANCE, f"{name}: single precision against double: {errors['losses']}")
    base.check(changes < CHANGE_TOLERANCE, f"{name}: single precision against double: changes {changes}")
    base.check(config["clip_norm"] == 0 or 0 < clipped < STEPS, f"{name}: {clipped} steps are clipped")
    tensors = []
    for n, (tensor, shape) in enumerate(shapes(config).items()):
        centre, spread = base.centre_and_spread(tensor)
        tensors.append({"name": tensor, "shape": list(shape), "centre": centre, "spread": spread})
        if is_of_muon(tensor):
            change = single["changes"][tensor]
            tensors[-1] |= {"norm": short(change.norm().item()),
                            "probe": short((change * units(1000 + n, shape)).sum().item())}
    return {"name": name, "config": config, "stream": stream,
            "first_tokens": base.tokens_of(stream, 0, 0)[0].tolist(),
            "losses": [short(loss) for loss in single["losses"]],
            "gradient_norms": [short(norm) for norm in single["gradient_norms"]], "tensors": tensors}


def print_examples():
    """Of given matrices: the norm and some elements of what is orthogonalised, in single and double precision."""
    for number, shape in enumerate([(8, 16), (16, 8), (8, 8)]):
        matrix = units(2000 + number, shape)
        for dtype in (torch.float32, torch.float64):
            x = orthogonalised(matrix.to(dtype))
            print(f"{shape[0]}x{shape[1]}, {dtype}: norm {x.double().norm().item():.9g}, first row",
                  [short(value) for value in x[0, :4].tolist()], "last element", short(x[-1, -1].item()),
                  file=sys.stderr)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    print_examples()
    head = {"heads": base.HEADS, "width": WIDTH, "context": base.CONTEXT, "vocab": VOCAB, "steps": STEPS,
            "micro_batches": base.MICRO_BATCHES, "batch": base.BATCH, "momentum": MOMENTUM, "beta1": BETAS[0],
            "beta2": BETAS[1], "epsilon": EPSILON}
    cases = []
    for name, keys in CASES.items():
        result = case(name, keys)
        tensors = ",\n".join("  " + json.dumps(tensor) for tensor in result.pop("tensors"))
        cases.append(json.dumps(result)[:-1] + f', "tensors": [\n{tensors}]}}')
    print(json.dumps(head)[:-1] + ', "cases": [\n' + ",\n".join(cases) + "\n]}")


if __name__ == "__main__":
    main()
