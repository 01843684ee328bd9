#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes expert_reference.json: mixtures of experts and of depths in torch, by plain loops over sequences, tokens and
experts.

usage: make_expert_reference.py >tests/reference/expert_reference.json

Results are those of single precision; the script stops if double precision gives others, or makes other choices.
Weights and tokens follow from 64-bit integers (mix64 is the function of core/base/rng.hpp; all is modulo 2^64):

  bits(n, i)  = mix64(0x9e3779b97f4a7c15 * (n * 2^32 + i + 1)) >> 40             24 bits
  unit(n, i)  = bits(n, i) / 2^23 - 1                                            in [-1, 1), exact in float
  weight      = float(centre + spread * unit(n, i))                              exact in double before it is rounded
  first token = bits(stream + g, 0) mod 131
  next token  = (3 * token + bits(stream + g, t) mod 8) mod 131                  t = 1 ... 16

n is the tensor's place in the configuration's list, from 0, and i the element's, row-major; g = (step * 2 +
micro-batch) * 4 + sequence, from 0; `stream` is in the file: the first of 4096, 4160, ... with which no choice of any
step is nearly a tie, rounding does not grow from step to step, and the two losses of `held_out` differ. The list has
each tensor's shape, centre and spread. Besides its gradient's norm (first step, not clipped) it has `probe`, the sum of
gradient[i] * unit(1000 + n, i), which sees signs and places of elements as well. Both leave out the key's part of
c_attn.bias, whose gradient is zero in exact arithmetic.

Cases with depths also have:

  gradient_norms  of all tensors together, before clipping, of each step
  predictor_loss  of the first step, summed over layers; no part of `losses`
  depths          by routed layer: `tokens`, K; and of the first step's tokens the share with q > 0 (`predicted`), and
                  that of which q > 0 says whether they are chosen (`hits`)
  held_out        after the last step, of the tokens of step 6 (from 0): the cross-entropy with the tokens q > 0 in
                  each routed block (`predicted`), with their number by routed layer (`tokens`, and `empty`, the
                  sequences without any), and with the K of the largest r (`largest`). Experts drop nothing in either.
"""
import json
import math
import sys

import torch

HEADS, WIDTH, CONTEXT, VOCAB = 2, 32, 16, 131
STEPS, MICRO_BATCHES, BATCH = 6, 2, 4
RATE, BETAS, EPSILON, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1
SMALLEST_GAP = 1e-4  # between the scores that decide a choice, and of q from 0, in all steps
TOLERANCE = 1e-5     # of single precision against double
CHOICES = ("largest", "predicted")  # of the tokens that go through a routed block
MASK = 2**64 - 1

# Keys of a deck; the experts' capacity and order and the losses' factors belong to [train], clip_norm to [optim], the
# others to [model].
DEFAULTS = {"layers": 2, "feed_forward": 0, "experts": 0, "experts_per_token": 2, "expert_width": 0, "expert_every": 1,
            "shared_expert": False, "router": "auto", "expert_capacity": 0.0, "expert_order": "token",
            "balance_loss": 0.01, "router_z_loss": 0.0, "depth_capacity": 0.0, "depth_every": 1, "clip_norm": 0.0}
CASES = {
    "switch": {"experts": 4, "experts_per_token": 1, "router": "softmax_topk", "expert_capacity": 1.0,
               "router_z_loss": 0.001},
    "top2": {"experts": 4, "experts_per_token": 2, "router": "topk_softmax"},
    "gshard": {"experts": 4, "experts_per_token": 2, "router": "topk_softmax", "expert_capacity": 1.0,
               "expert_order": "choice"},
    "shared": {"experts": 4, "experts_per_token": 1, "router": "softmax_topk", "expert_capacity": 1.25,
               "shared_expert": True},
    "every_second": {"experts": 3, "experts_per_token": 2, "router": "topk_softmax", "expert_every": 2},
    "narrow": {"experts": 4, "experts_per_token": 2, "router": "softmax_topk", "expert_width": 24,
               "expert_capacity": 1.0, "router_z_loss": 0.001},
    "inner": {"feed_forward": 72, "experts": 3, "experts_per_token": 2, "router": "topk_softmax", "expert_every": 2},
    "one": {"experts": 1, "experts_per_token": 1, "router": "softmax_topk"},
    "depths": {"layers": 4, "depth_capacity": 0.25, "depth_every": 2, "clip_norm": 1.0},
    "depths_half": {"layers": 3, "depth_capacity": 0.5, "clip_norm": 0.5},
    "depths_experts": {"layers": 3, "experts": 4, "experts_per_token": 2, "router": "topk_softmax",
                       "expert_capacity": 1.0, "router_z_loss": 0.001, "depth_capacity": 0.3, "depth_every": 2},
    "depths_all": {"depth_capacity": 1.0},
}


# ---- Weights and tokens

def mix64(x):
    x ^= x >> 30
    x = (x * 0xbf58476d1ce4e5b9) & MASK
    x ^= x >> 27
    x = (x * 0x94d049bb133111eb) & MASK
    return x ^ (x >> 31)


def bits(n, i):
    return mix64((0x9e3779b97f4a7c15 * (n * 2**32 + i + 1)) & MASK) >> 40


def units(n, shape):
    count = math.prod(shape)
    return torch.tensor([bits(n, i) / 2**23 - 1.0 for i in range(count)], dtype=torch.float64).reshape(shape)


def has_experts(config, layer):
    return config["experts"] > 0 and (layer + 1) % config["expert_every"] == 0


def has_depth(config, layer):
    return config["depth_capacity"] > 0 and (layer + 1) % config["depth_every"] == 0


def dense_width(config):
    return config["feed_forward"] or 4 * WIDTH


def inner_width(config):
    return config["expert_width"] or dense_width(config)


def shapes(config):
    """Shapes by name, in the order that numbers the tensors."""
    result = {"wte.weight": (VOCAB, WIDTH), "wpe.weight": (CONTEXT, WIDTH)}
    for layer in range(config["layers"]):
        h = f"h.{layer}."
        result |= {h + "ln_1.weight": (WIDTH,), h + "ln_1.bias": (WIDTH,),
                   h + "attn.c_attn.weight": (WIDTH, 3 * WIDTH), h + "attn.c_attn.bias": (3 * WIDTH,),
                   h + "attn.c_proj.weight": (WIDTH, WIDTH), h + "attn.c_proj.bias": (WIDTH,),
                   h + "ln_2.weight": (WIDTH,), h + "ln_2.bias": (WIDTH,)}
        routed = has_experts(config, layer)
        if not routed or config["shared_expert"]:
            inner = inner_width(config) if routed else dense_width(config)
            result |= {h + "mlp.c_fc.weight": (WIDTH, inner), h + "mlp.c_fc.bias": (inner,),
                       h + "mlp.c_proj.weight": (inner, WIDTH), h + "mlp.c_proj.bias": (WIDTH,)}
        if routed:
            count, inner = config["experts"], inner_width(config)
            result |= {h + "moe.router.weight": (WIDTH, count),
                       h + "moe.experts.c_fc.weight": (count, WIDTH, inner),
                       h + "moe.experts.c_fc.bias": (count, inner),
                       h + "moe.experts.c_proj.weight": (count, inner, WIDTH),
                       h + "moe.experts.c_proj.bias": (count, WIDTH)}
        if has_depth(config, layer):
            result |= {h + "depth.router.weight": (WIDTH, 1),
                       h + "depth.predictor.c_fc.weight": (WIDTH, WIDTH // 8),
                       h + "depth.predictor.c_fc.bias": (WIDTH // 8,),
                       h + "depth.predictor.c_proj.weight": (WIDTH // 8, 1),
                       h + "depth.predictor.c_proj.bias": (1,)}
    return result | {"ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}


def centre_and_spread(name):
    """Powers of two, so that nothing is rounded before the last conversion."""
    if ".ln_" in f".{name}" and name.endswith("weight"):
        return 1.0, 0.25
    if name.endswith("router.weight"):
        return 0.0, 0.5
    if ".predictor." in name:  # some sequences have no q > 0
        return (0.0, 1.0) if name.endswith("weight") else (-0.25 if "c_proj" in name else 0.0, 0.0625)
    return 0.0, 0.0625 if name.endswith("bias") else 0.125


def first_weights(config):
    weights = {}
    for n, (name, shape) in enumerate(shapes(config).items()):
        centre, spread = centre_and_spread(name)
        weights[name] = (centre + spread * units(n, shape)).float()
    return weights


def tokens_of(stream, step, micro_batch):
    """(B, T + 1); a sequence predicts its tokens from the second on."""
    rows = []
    for sequence in range(BATCH):
        number = stream + (step * MICRO_BATCHES + micro_batch) * BATCH + sequence
        row = [bits(number, 0) % VOCAB]
        for t in range(1, CONTEXT + 1):
            row.append((3 * row[-1] + bits(number, t) % 8) % VOCAB)
        rows.append(row)
    return torch.tensor(rows)


# ---- The model

def gelu(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


def layernorm(x, w, name):
    return torch.nn.functional.layer_norm(x, (WIDTH,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)


def attention(x, w, h):
    qkv = x @ w[h + "attn.c_attn.weight"] + w[h + "attn.c_attn.bias"]
    head_width = WIDTH // HEADS
    sequences = []
    for b in range(x.shape[0]):
        heads = []
        for head in range(HEADS):
            place = slice(head * head_width, (head + 1) * head_width)
            query, key, value = (qkv[b, :, part * WIDTH:(part + 1) * WIDTH][:, place] for part in range(3))
            scores = query @ key.T / math.sqrt(head_width)
            later = torch.ones(scores.shape, dtype=torch.bool).triu(1)
            heads.append(torch.softmax(scores.masked_fill(later, -math.inf), 1) @ value)
        sequences.append(torch.cat(heads, 1))
    return torch.stack(sequences) @ w[h + "attn.c_proj.weight"] + w[h + "attn.c_proj.bias"]


def dense(x, w, h):
    return (gelu(x @ w[h + "mlp.c_fc.weight"] + w[h + "mlp.c_fc.bias"]) @ w[h + "mlp.c_proj.weight"]
            + w[h + "mlp.c_proj.bias"])


def expert(x, w, h, e):
    name = h + "moe.experts."
    return (gelu(x @ w[name + "c_fc.weight"][e] + w[name + "c_fc.bias"][e]) @ w[name + "c_proj.weight"][e]
            + w[name + "c_proj.bias"][e])


class Routing:
    """What the routers of a pass decided and what it costs: sums over layers."""

    def __init__(self):
        self.balance = 0.0
        self.z = 0.0
        self.predictor = 0.0
        self.layers = {}  # of a layer: choices of all tokens, pairs of each expert before dropping, dropped pairs
        self.depths = {}  # of a layer, by sequence: the tokens of the largest r, those with q > 0
        self.gap = math.inf  # the smallest one


def chosen_experts(scores, config, routing):
    """The k experts of a token, largest score first; of equal ones the lower expert."""
    values = scores.tolist()
    order = sorted(range(len(values)), key=lambda e: (-values[e], e))
    k = config["experts_per_token"]
    for place in range(min(k, len(values) - 1)):
        # The order among the chosen matters too: it says which pairs are dropped.
        if place == k - 1 or config["expert_capacity"] > 0:
            routing.gap = min(routing.gap, values[order[place]] - values[order[place + 1]])
    return order[:k]


def kept_pairs(choices, config):
    """The pairs (token, choice) of a sequence that find room."""
    k, count, tokens = config["experts_per_token"], config["experts"], len(choices)
    if config["expert_order"] == "token":
        pairs = [(t, c) for t in range(tokens) for c in range(k)]
    else:
        pairs = [(t, c) for c in range(k) for t in range(tokens)]
    if config["expert_capacity"] == 0:
        return set(pairs)
    room = min(math.ceil(config["expert_capacity"] * k * tokens / count), tokens)
    taken, kept = [0] * count, set()
    for t, c in pairs:
        if taken[choices[t][c]] < room:
            taken[choices[t][c]] += 1
            kept.add((t, c))
    return kept


def mixture(x, w, layer, config, routing):
    """The feed-forward layer of (B, T, C), with experts."""
    h, k, count = f"h.{layer}.", config["experts_per_token"], config["experts"]
    outputs, balances, squares = [], [], []
    all_choices, loads, dropped = [], [0] * count, 0
    for sequence in x:
        tokens = len(sequence)
        scores = [row @ w[h + "moe.router.weight"] for row in sequence]
        probabilities = [torch.softmax(score, 0) for score in scores]
        choices = [chosen_experts(score.detach(), config, routing) for score in scores]
        kept = kept_pairs(choices, config)
        for t in range(tokens):
            if config["router"] == "topk_softmax":
                gates = torch.softmax(torch.stack([scores[t][e] for e in choices[t]]), 0)
            else:
                gates = [probabilities[t][e] for e in choices[t]]
            y = torch.zeros_like(sequence[t])
            for c in range(k):
                if (t, c) in kept:
                    y = y + gates[c] * expert(sequence[t], w, h, choices[t][c])
            if config["shared_expert"]:
                y = y + dense(sequence[t], w, h)
            outputs.append(y)
            squares.append(torch.logsumexp(scores[t], 0) ** 2)
        own = [sum(row.count(e) for row in choices) for e in range(count)]
        balances.append(count * sum(own[e] / (k * tokens) * sum(p[e] for p in probabilities) / tokens
                                    for e in range(count)))
        loads = [a + b for a, b in zip(loads, own)]
        dropped += k * tokens - len(kept)
        all_choices.append(choices)
    routing.balance = routing.balance + sum(balances) / len(balances)
    routing.z = routing.z + sum(squares) / len(squares)
    routing.layers[layer] = {"choices": all_choices, "loads": loads, "dropped": dropped}
    return torch.stack(outputs).reshape(x.shape)


def block(x, w, layer, config, routing):
    """A block of (B, T, C), its residual connections included."""
    h = f"h.{layer}."
    x = x + attention(layernorm(x, w, h + "ln_1"), w, h)
    y = layernorm(x, w, h + "ln_2")
    return x + (mixture(y, w, layer, config, routing) if has_experts(config, layer) else dense(y, w, h))


def largest_tokens(scores, config, routing):
    """The K tokens of a sequence with the largest r, in order; of equal ones the earlier."""
    values = scores.tolist()
    order = sorted(range(len(values)), key=lambda t: (-values[t], t))
    room = math.ceil(config["depth_capacity"] * len(values))
    if room < len(values):
        routing.gap = min(routing.gap, values[order[room - 1]] - values[order[room]])
    return sorted(order[:room])


def predictor(x, w, h):
    """q of a token's x, to which it gives no gradient."""
    name = h + "depth.predictor."
    inner = gelu(x.detach() @ w[name + "c_fc.weight"] + w[name + "c_fc.bias"])
    return (inner @ w[name + "c_proj.weight"] + w[name + "c_proj.bias"])[0]


def routed_block(x, w, layer, config, routing, predicts):
    """A block of (B, T, C) that some tokens go through: those with q > 0 if `predicts`, else the K of the largest r."""
    h = f"h.{layer}."
    r = [[(row @ w[h + "depth.router.weight"])[0] for row in sequence] for sequence in x]
    q = [[predictor(row, w, h) for row in sequence] for sequence in x]
    largest = [largest_tokens(torch.stack(scores).detach(), config, routing) for scores in r]
    positive = [[t for t, logit in enumerate(logits) if logit.item() > 0] for logits in q]
    routing.gap = min(routing.gap, min(abs(logit.item()) for logits in q for logit in logits))
    routing.depths[layer] = {"largest": largest, "positive": positive}
    entropies = []
    for b, logits in enumerate(q):
        for t, logit in enumerate(logits):
            probability = torch.sigmoid(logit if t in largest[b] else -logit)
            entropies.append(-torch.log(probability))
    routing.predictor = routing.predictor + sum(entropies) / len(entropies)

    chosen = positive if predicts else largest
    inputs = [torch.stack([x[b, t] for t in tokens]) if tokens else None for b, tokens in enumerate(chosen)]
    if predicts:  # sequences of different lengths
        outputs = []
        for b, rows in enumerate(inputs):
            own = Routing()
            outputs.append(None if rows is None else block(rows[None], w, layer, config, own)[0])
            routing.gap = min(routing.gap, own.gap)
            routing.depths[layer, b] = own.layers
    else:
        outputs = block(torch.stack(inputs), w, layer, config, routing)
    result = []
    for b, sequence in enumerate(x):
        rows = list(sequence)
        for place, t in enumerate(chosen[b]):
            rows[t] = rows[t] + r[b][t] * (outputs[b][place] - inputs[b][place])
        result.append(torch.stack(rows))
    return torch.stack(result)


def forward(w, tokens, config, predicts=False):
    """The mean cross-entropy, and what the routers did."""
    routing = Routing()
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    x = w["wte.weight"][inputs] + w["wpe.weight"]
    for layer in range(config["layers"]):
        if has_depth(config, layer):
            x = routed_block(x, w, layer, config, routing, predicts)
        else:
            x = block(x, w, layer, config, routing)
    logits = layernorm(x, w, "ln_f") @ w["wte.weight"].T
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), routing


# ---- Training

def clip(w, limit):
    """Clips the gradients if there is a limit; their norm before."""
    gradients = [value.grad for value in w.values() if value.grad is not None]
    norm = math.sqrt(sum(gradient.double().square().sum().item() for gradient in gradients))
    if 0 < limit < norm:
        for gradient in gradients:
            gradient *= limit / norm
    return norm


def shares(routings):
    """By layer: K, and the shares of a step's tokens with q > 0, and of those of which q > 0 says what they are."""
    result, count = [], MICRO_BATCHES * BATCH * CONTEXT
    for layer in routings[0].depths:
        largest, positive = ([set(tokens) for routing in routings for tokens in routing.depths[layer][what]]
                             for what in ("largest", "positive"))
        misses = sum(len(a ^ b) for a, b in zip(largest, positive))
        result.append({"layer": layer, "tokens": len(largest[0]), "predicted": sum(map(len, positive)) / count,
                       "hits": (count - misses) / count})
    return result


def held_out(w, stream, config):
    """Losses of tokens after the last step's, and choices and gaps."""
    config = config | {"expert_capacity": 0.0}
    result = {"choices": [], "gap": math.inf}
    for name in CHOICES:
        with torch.no_grad():
            passes = [forward(w, tokens_of(stream, STEPS, micro_batch), config, name == "predicted")
                      for micro_batch in range(MICRO_BATCHES)]
        result[name] = sum(loss.item() for loss, _ in passes) / MICRO_BATCHES
        result["choices"] += [(routing.layers, routing.depths) for _, routing in passes]
        result["gap"] = min(result["gap"], *(routing.gap for _, routing in passes))
    positive = {layer: [len(tokens) for _, routing in passes for tokens in routing.depths[layer]["positive"]]
                for layer in range(config["layers"]) if has_depth(config, layer)}
    result["tokens"] = [sum(counts) for counts in positive.values()]
    result["empty"] = [counts.count(0) for counts in positive.values()]
    return result


def train(config, stream, weights, dtype):
    """Losses of all steps, and more of the first one."""
    w = {name: value.detach().to(dtype, copy=True).requires_grad_() for name, value in weights.items()}
    decays = {name: value.ndim > 1 and not name.endswith("bias") for name, value in w.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [w[name] for name in w if decays[name]], "weight_decay": DECAY},
         {"params": [w[name] for name in w if not decays[name]], "weight_decay": 0.0}],
        lr=RATE, betas=BETAS, eps=EPSILON, foreach=False)
    result = {"losses": [], "choices": [], "gaps": [], "gradient_norms": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss, balance, z, predicting, routings = 0.0, 0.0, 0.0, 0.0, []
        for micro_batch in range(MICRO_BATCHES):
            cross_entropy, routing = forward(w, tokens_of(stream, step, micro_batch), config)
            total = cross_entropy + config["balance_loss"] * routing.balance + config["router_z_loss"] * routing.z
            total = total + routing.predictor
            (total / MICRO_BATCHES).backward()
            loss += cross_entropy.item() / MICRO_BATCHES
            balance += torch.as_tensor(routing.balance).item() / MICRO_BATCHES
            z += torch.as_tensor(routing.z).item() / MICRO_BATCHES
            predicting += torch.as_tensor(routing.predictor).item() / MICRO_BATCHES
            routings.append(routing)
        if step == 0:
            result |= {"balance_loss": balance, "z_loss": z, "predictor_loss": predicting,
                       "depths": shares(routings),
                       "gradients": {name: (torch.zeros_like(value) if value.grad is None else value.grad)
                                     .to(torch.float64, copy=True)
                                     for name, value in w.items()},
                       "routed": [{"layer": layer,
                                   "dropped": sum(routing.layers[layer]["dropped"] for routing in routings),
                                   "loads": [sum(pairs) for pairs in zip(*(routing.layers[layer]["loads"]
                                                                           for routing in routings))]}
                                  for layer in routings[0].layers]}
        result["losses"].append(loss)
        result["choices"].append([({layer: of["choices"] for layer, of in routing.layers.items()}, routing.depths)
                                  for routing in routings])
        result["gaps"].append(min(routing.gap for routing in routings))
        result["gradient_norms"].append(clip(w, config["clip_norm"]))
        optimizer.step()
    if config["depth_capacity"] > 0:
        result["held_out"] = held_out(w, stream, config)
        result["choices"].append(result["held_out"].pop("choices"))
        result["gaps"].append(result["held_out"].pop("gap"))
    return result


def without_key_bias(name, gradient):
    """The gradient of the key's bias is zero in exact arithmetic."""
    return torch.cat([gradient[:WIDTH], gradient[2 * WIDTH:]]) if name.endswith("c_attn.bias") else gradient


def relative_error(a, b):
    return abs(a - b) / abs(b) if b else abs(a)


def gradient_error(a, b):
    """Of tensors by name, the largest one."""
    worst = 0.0
    for name in b:
        x, y = without_key_bias(name, a[name]), without_key_bias(name, b[name])
        # What is zero in exact arithmetic (the router's gradient of one expert) is compared as it is.
        norm = y.norm().item()
        worst = max(worst, (x - y).norm().item() / (norm if norm > 1e-10 else 1.0))
    return worst


def check(holds, what):
    if not holds:
        sys.exit(f"make_expert_reference.py: {what}")


def check_one_expert(stream, weights, result):
    """One expert that takes all tokens is the dense layer."""
    plain = {name.replace("moe.experts.", "mlp."): value[0] if ".experts." in name else value
             for name, value in weights.items() if ".router." not in name}
    other = train(DEFAULTS, stream, plain, torch.float64)
    check(all(relative_error(a, b) < 1e-12 for a, b in zip(result["losses"], other["losses"])), "one: not dense")
    gradients = {name.replace("moe.experts.", "mlp."): value[0] if ".experts." in name else value
                 for name, value in result["gradients"].items() if ".router." not in name}
    check(gradient_error(gradients, other["gradients"]) < 1e-12, "one: not dense")


def short(x):
    return float(f"{x:.9g}")


def case(name, keys):
    config = DEFAULTS | keys
    weights = first_weights(config)
    for stream in range(4096, 8192, 64):
        single, double = (train(config, stream, weights, dtype) for dtype in (torch.float32, torch.float64))
        norm_error = max(relative_error(a, b) for a, b in zip(single["gradient_norms"], double["gradient_norms"]))
        losses = [double["held_out"][what] for what in CHOICES] if config["depth_capacity"] > 0 else None
        # Else a comparison would not see which of the two an evaluation computes.
        differs = losses is None or relative_error(*losses) > 2e-3
        if min(single["gaps"] + double["gaps"]) > SMALLEST_GAP and norm_error < TOLERANCE and differs:
            break
    if config["experts"] == 1:
        check_one_expert(stream, weights, double)
    check(double["choices"] == single["choices"], f"{name}: precision changes a choice")
    check(min(single["gaps"] + double["gaps"]) > SMALLEST_GAP, f"{name}: a choice is nearly a tie")
    check(differs, f"{name}: both choices have nearly the same loss")
    errors = {
        "losses": max(relative_error(a, b) for a, b in zip(single["losses"], double["losses"])),
        "balance_loss": relative_error(single["balance_loss"], double["balance_loss"]),
        "z_loss": relative_error(single["z_loss"], double["z_loss"]),
        "gradients": gradient_error(single["gradients"], double["gradients"]),
        "gradient_norms": norm_error,
    }
    if config["depth_capacity"] > 0:
        errors |= {
            "predictor_loss": relative_error(single["predictor_loss"], double["predictor_loss"]),
            "held_out": max(relative_error(single["held_out"][what], double["held_out"][what])
                            for what in CHOICES),
        }
    check(max(errors.values()) < TOLERANCE, f"{name}: single precision against double: {errors}")
    print(f"{name:13s} stream {stream}, gaps {[float(f'{gap:.1e}') for gap in single['gaps']]}, errors",
          {what: float(f"{error:.1e}") for what, error in errors.items()}, file=sys.stderr)
    tensors = []
    for n, (tensor, shape) in enumerate(shapes(config).items()):
        centre, spread = centre_and_spread(tensor)
        gradient, pattern = (without_key_bias(tensor, values) for values in
                             (single["gradients"][tensor], units(1000 + n, shape)))
        tensors.append({"name": tensor, "shape": list(shape), "centre": centre, "spread": spread,
                        "norm": short(gradient.norm().item()), "probe": short((gradient * pattern).sum().item())})
    depths = {}
    if config["depth_capacity"] > 0:
        depths = {"gradient_norms": [short(norm) for norm in single["gradient_norms"]],
                  "predictor_loss": short(single["predictor_loss"]), "depths": single["depths"],
                  "held_out": single["held_out"] | {what: short(single["held_out"][what]) for what in CHOICES}}
    return {"name": name, "config": config, "stream": stream, "first_tokens": tokens_of(stream, 0, 0)[0].tolist(),
            "losses": [short(loss) for loss in single["losses"]],
            "balance_loss": short(single["balance_loss"]), "z_loss": short(single["z_loss"]),
            "dropped": sum(of["dropped"] for of in single["routed"]), "routed": single["routed"],
            "smallest_gaps": None if config["experts"] == 1 else [short(gap) for gap in single["gaps"]],
            **depths, "tensors": tensors}


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    head = {"heads": HEADS, "width": WIDTH, "context": CONTEXT, "vocab": VOCAB, "steps": STEPS,
            "micro_batches": MICRO_BATCHES, "batch": BATCH, "lr": RATE, "beta1": BETAS[0], "beta2": BETAS[1],
            "epsilon": EPSILON, "weight_decay": DECAY}
    cases = []
    for name, keys in CASES.items():
        result = case(name, keys)
        tensors = ",\n".join("  " + json.dumps(tensor) for tensor in result.pop("tensors"))
        cases.append(json.dumps(result)[:-1] + f', "tensors": [\n{tensors}]}}')
    print(json.dumps(head)[:-1] + ', "cases": [\n' + ",\n".join(cases) + "\n]}")


if __name__ == "__main__":
    main()
