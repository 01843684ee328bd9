#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""GPT-2 training steps in PyTorch, on random tokens, measured as step_benchmark measures; CSV columns of the same name
have the same meaning.

Run it with .deps/peers/bin/python (benchmarks/peers/setup); benchmarks/step/compare does, with OMP_PROC_BIND=true if
there is one rank. Several ranks communicate over gloo, on a CPU only: DistributedDataParallel, fully_shard, or tensor
parallelism of the blocks by parallelize_module.
"""
import argparse
import contextlib
import ctypes
import os
import resource
import socket
import statistics
import time

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages; PyTorch reads the variable at its first allocation
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

SHAPES = {"gpt2-124m": (12, 12, 768), "gpt2-774m": (36, 20, 1280), "tiny": (2, 2, 64)}  # layers, heads, width
CONTEXT = 1024
VOCAB, PADDED_VOCAB = 50257, 50304  # the head's products have mylos' shape


class Block(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.head_dim = width // heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):  # (B, T, C)
        qkv = self.qkv(self.norm_1(x)).unflatten(2, (-1, 3, self.head_dim))  # (B, T, H, 3, D): whole heads per rank
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(3))  # (B, H, T, D)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(heads.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Returns the loss, so that torch.compile sees the head and the cross entropy together."""

    def __init__(self, layers, heads, width):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(PADDED_VOCAB, width), nn.Embedding(CONTEXT, width)
        self.blocks, self.norm = nn.ModuleList(Block(heads, width) for _ in range(layers)), nn.LayerNorm(width)
        self.head = nn.Linear(width, PADDED_VOCAB, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):  # both (B, T)
        x = self.tokens(inputs) + self.positions.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.loss(x, targets)

    def loss(self, x, targets):
        logits = self.head(self.norm(x)).flatten(0, 1)
        return F.cross_entropy(logits.float(), targets.flatten())  # the cast that autocast makes too


def keep_freed_memory():
    """Keeps glibc from returning large blocks to the system.

    Otherwise the kernel maps and clears the pages of the activations in every step. The constants are M_MMAP_MAX and
    M_TRIM_THRESHOLD of malloc.h.
    """
    libc = ctypes.CDLL(None)
    if not (libc.mallopt(-4, 0) and libc.mallopt(-1, -1)):
        raise RuntimeError("mallopt failed")


def fully_sharded(model, options):
    """FSDP2: each block is a unit; everything else, with the tied embedding and head, belongs to the root."""
    mesh = dist.init_device_mesh(options.device, (options.ranks,))
    dtype = torch.bfloat16 if options.dtype == "bf16" else None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    if options.mode == "compile":  # only the code between the hooks that gather and free a unit's weights
        for block in model.blocks:
            block.forward = torch.compile(block.forward)
        model.loss = torch.compile(model.loss)
    return model


def tensor_parallel(model, options):
    """As in "Megatron-LM": heads and feed-forward layers are divided; everything else is on every rank."""
    mesh = dist.init_device_mesh(options.device, (options.ranks,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"qkv": ColwiseParallel(), "projection": RowwiseParallel(),
                                         "up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def clip(parameters, most):
    """clip_grad_norm_ for divided and whole parameters together: PyTorch's own function takes only one kind."""
    kinds = [[p for p in parameters if isinstance(p, DTensor) == divided] for divided in (True, False)]
    norms = [nn.utils.get_total_norm([p.grad for p in kind]) for kind in kinds if kind]
    total = torch.stack([norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]).norm()
    for kind in kinds:
        if kind:
            nn.utils.clip_grads_with_norm_(kind, most, total)
    return total


def make_step(rank, options):
    """A function that runs one step, and returns the rank's loss and the norm of the gradient."""
    is_sharded = options.ranks > 1 and options.exchange == "fully_shard"
    is_tensor = options.ranks > 1 and options.exchange == "tensor"
    is_ddp = options.ranks > 1 and not is_sharded and not is_tensor
    torch.manual_seed(1)
    model = Gpt2(*SHAPES[options.preset]).to(options.device)
    if is_sharded:
        model = fully_sharded(model, options)
    if is_tensor:
        model = tensor_parallel(model, options)
    parameters = list(model.parameters())
    groups = [{"params": kind} for divided in (True, False)
              if (kind := [p for p in parameters if isinstance(p, DTensor) == divided])]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if is_ddp:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        if options.dtype == "bf16":
            model.register_comm_hook(None, bf16_compress_hook)
    if options.mode == "compile" and not is_sharded:
        model = torch.compile(model)
    has_autocast = options.dtype == "bf16" and not is_sharded  # fully_shard's policy casts
    accumulation = options.global_batch // (samples_ranks(options) * options.micro_batch)
    # Tensor-parallel ranks share a batch: each draws all the samples that data-parallel ranks draw separately.
    generators = [torch.Generator(options.device).manual_seed(1 + sampler)
                  for sampler in (range(options.ranks) if is_tensor else [rank])]
    shape = (options.micro_batch // len(generators), options.seq_len)

    def random_tokens():
        return torch.cat([torch.randint(VOCAB, shape, device=options.device, generator=generator)
                          for generator in generators])

    def step():
        losses = []
        for micro_batch in range(1, accumulation + 1):
            inputs, targets = random_tokens(), random_tokens()
            is_last = micro_batch == accumulation
            if is_sharded:
                model.set_requires_gradient_sync(is_last)
                model.set_is_last_backward(is_last)
            with model.no_sync() if is_ddp and not is_last else contextlib.nullcontext():
                with torch.autocast(options.device, torch.bfloat16, enabled=has_autocast):
                    loss = model(inputs, targets) / accumulation
                loss.backward()
            losses.append(loss.detach())
        norm = clip(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if options.device == "cuda":
            torch.cuda.synchronize()
        return sum(losses), norm

    return step


def samples_ranks(options):
    """The number of ranks that read different samples."""
    return 1 if options.exchange == "tensor" else options.ranks


def measure(rank, options, port):
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    step = make_step(rank, options)

    def seconds_of_slowest():
        start = time.perf_counter()
        loss, norm = step()
        seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        if options.print_losses:
            print_loss(rank, options, loss, norm)
        return seconds.item()

    for _ in range(options.warm_up):
        seconds_of_slowest()
    dist.barrier()
    seconds = [seconds_of_slowest() for _ in range(options.steps)]
    peak = torch.tensor(torch.cuda.max_memory_reserved() if options.device == "cuda" else
                        1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    if rank == 0:
        report(options, seconds, peak.item())
    dist.destroy_process_group()


def print_loss(rank, options, loss, norm):
    """Prints the mean loss and the gradient's norm, whose last digits are unreliable: a CPU adds squares in fp32."""
    loss = loss.double().cpu()
    dist.all_reduce(loss)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    if rank == 0:
        print(f"loss {loss.item() / options.ranks:.7f}, gradient norm {norm.item():.5f}", flush=True)


def report(options, seconds, peak):
    lower, median, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    tokens = options.global_batch * options.seq_len
    cells = {"compute": f"pytorch-{torch.__version__}-{options.mode}", "device": options.device,
             "model": options.preset, "comm": "gloo", "dtype": options.dtype,
             "exchange": options.exchange if options.ranks > 1 else "",
             "ranks": options.ranks, "threads": options.threads, "tokens_per_step": tokens, "steps": len(seconds),
             "tokens_per_second": f"{tokens / median:.2f}", "step_ms": f"{1e3 * median:.3f}",
             "step_ms_lower_quartile": f"{1e3 * lower:.3f}", "step_ms_upper_quartile": f"{1e3 * upper:.3f}",
             "peak_device_bytes" if options.device == "cuda" else "peak_resident_bytes": peak}
    print(", ".join(f"{name} {value}" for name, value in cells.items()))
    with open(options.csv, "w", encoding="utf-8") as file:
        file.write(",".join(cells) + "\n" + ",".join(map(str, cells.values())) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--mode", choices=("compile", "eager"), default="compile")
    parser.add_argument("--exchange", choices=("ddp", "fully_shard", "tensor"), default="ddp", help="of several ranks")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--preset", choices=SHAPES, default="gpt2-124m")
    parser.add_argument("--dtype", choices=("bf16", "fp32"), default="bf16",
                        help="bf16: autocast, or fully_shard's mixed precision")
    parser.add_argument("--global-batch", type=int, default=4, help="sequences per step, over all ranks")
    parser.add_argument("--micro-batch", type=int, default=4, help="sequences that a rank takes at once")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="of one rank")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2, help="steps before the measured ones")
    parser.add_argument("--print-losses", action="store_true", help="of each step, the warm-up's too")
    options = parser.parse_args()
    if options.global_batch % (samples_ranks(options) * options.micro_batch) != 0:
        parser.error("--global-batch must be a multiple of --micro-batch times the number of ranks that read different "
                     "samples")
    if options.steps < 2:
        parser.error("--steps must be at least 2: quartiles are printed")
    if options.device == "cuda" and options.ranks > 1:
        parser.error("several ranks are for a CPU")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if options.ranks == 1:
        measure(0, options, port)
    else:
        mp.spawn(measure, args=(options, port), nprocs=options.ranks)


if __name__ == "__main__":
    main()
