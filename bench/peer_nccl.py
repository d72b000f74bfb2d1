#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""NCCL through PyTorch, a process a GPU, beside tests/cuda/bench_comm.cc: microseconds of an all-gather of parts of
so many bytes and of an all-reduce of as many, in CUDA graphs of 100 calls; median over the replays, of the slower rank.

    peer_nccl.py [RANKS]
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

CALLS, REPLAYS = 100, 15
SIZES = [4 << 10, 8 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20]


def measure(call):
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    times = []
    for i in range(REPLAYS + 3):
        dist.barrier()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        call()  # ranks meet
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i >= 3:
            times.append(begin.elapsed_time(end) * 1e3 / CALLS)
    slowest = torch.tensor([sorted(times)[REPLAYS // 2]], device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return slowest.item()


def rank_main(rank, n_ranks):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=n_ranks, device_id=torch.device("cuda", rank))
    if rank == 0:
        version = ".".join(str(v) for v in torch.cuda.nccl.version())
        print(f"{n_ranks} x {torch.cuda.get_device_name()}, NCCL {version}, NVLink multicast off")
        print(f"{'bytes':>8} {'NCCL ag':>8} {'NCCL ar':>8}")
    for size in SIZES:
        part = torch.zeros(size // 4, device="cuda")
        out = torch.zeros(size // 4 * n_ranks, device="cuda")
        gather = measure(lambda: dist.all_gather_into_tensor(out, part))
        reduce = measure(lambda: dist.all_reduce(part))
        if rank == 0:
            print(f"{size:8} {gather:8.2f} {reduce:8.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    os.environ["NCCL_NVLS_ENABLE"] = "0"
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    mp.spawn(rank_main, args=(ranks,), nprocs=ranks)
