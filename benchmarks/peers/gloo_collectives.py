#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Three of PyTorch's gloo collectives on fp32 in host memory: the sizes and the CSV are those of collectives_benchmark.

usage: gloo_collectives.py --ranks K --csv FILE [--min-bytes N] [--max-bytes N] [--factor N] [--seconds S]

Run it with .deps/peers/bin/python (benchmarks/peers/setup).
"""
import argparse
import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SMALL = 64 << 10
CALLS_OF_SMALL = 50


def operations(ranks):
    """name -> (call, busbw / algbw). The size is that of the larger buffer, as in nccl-tests."""
    def reduce_scatter(buffer, other):
        dist.reduce_scatter_tensor(other[: buffer.numel() // ranks], buffer)

    def all_gather(buffer, other):
        dist.all_gather_into_tensor(buffer, other[: buffer.numel() // ranks])

    part = (ranks - 1) / ranks
    return {"all_reduce": (lambda buffer, _: dist.all_reduce(buffer), 2 * part),
            "reduce_scatter": (reduce_scatter, part),
            "all_gather": (all_gather, part)}


def measure(rank, options, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    for name, (call, bus) in operations(options.ranks).items():
        size = options.min_bytes
        while size <= options.max_bytes:
            elements = size // 4 // options.ranks * options.ranks
            if elements > 0:
                point(rank, options, name, call, bus, elements)
            size *= options.factor
    dist.destroy_process_group()


def point(rank, options, name, call, bus, elements):
    buffer, other = torch.zeros(elements), torch.zeros(elements)
    calls = CALLS_OF_SMALL if 4 * elements <= SMALL else 1
    slowest = torch.zeros(1, dtype=torch.float64)

    def sample():
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call(buffer, other)
        slowest[0] = (time.perf_counter() - start) / calls
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return slowest.item()

    try:
        sample()
    except (RuntimeError, NotImplementedError) as error:
        if rank == 0:
            print(f"{name}: gloo does not support it: {error}")
        return
    repetitions = int(min(101, max(5, options.seconds / (calls * sample()))))
    seconds = statistics.median(sample() for _ in range(repetitions))
    if rank != 0:
        return
    algbw = 4e-9 * elements / seconds
    print(f"{name:<15} gloo {4 * elements:>11} {1e6 * seconds:>12.2f} us {algbw:>9.3f} {algbw * bus:>9.3f}", flush=True)
    with open(options.csv, "a", encoding="utf-8") as file:
        if file.tell() == 0:
            file.write("operation,backend,algorithm,memory,ranks,dtype,bytes,repetitions,seconds,algbw,busbw\n")
        file.write(f"{name},gloo,native,heap,{options.ranks},fp32,{4 * elements},{repetitions},{seconds:.9g},"
                   f"{algbw:.6g},{algbw * bus:.6g}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--min-bytes", type=int, default=8)
    parser.add_argument("--max-bytes", type=int, default=64 << 20)
    parser.add_argument("--factor", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.3)
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(measure, args=(options, port), nprocs=options.ranks)


if __name__ == "__main__":
    main()
