"""Run in two processes by test_sam_processes.py: SAM steps under DDP; writes the final states."""

import contextlib
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

from spiritlevel.training.sam.optimizers import ASAM, SAM, NoiseSAM

MAKE = {
    "sam": lambda base: SAM(base, 0.3),
    "own ascent": lambda base: SAM(base, 0.3),
    "asam": lambda base: ASAM(base, 0.3, adaptive_bias=False),
    "noise": lambda base: NoiseSAM(base, 0.3, draws=2),  # each process draws its own
    "batch norm": lambda base: SAM(base, 0.3),
}


def run(kind: str, rank: int, size: int) -> dict:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(7) if kind == "batch norm" else nn.Identity()
    net = nn.Sequential(nn.Linear(5, 7), norm, nn.Tanh(), nn.Linear(7, 3)).double()
    x, y = torch.randn(16, 5, dtype=torch.float64), torch.randint(3, (16,))
    part = slice(rank * 16 // size, (rank + 1) * 16 // size)
    called = nn.parallel.DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = MAKE[kind](torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    torch.manual_seed(rank)
    for _ in range(4):
        for number, _ in enumerate(optimizer.passes()):
            optimizer.zero_grad()
            alone = kind == "own ascent" and number == 0 and dist.is_initialized()
            with called.no_sync() if alone else contextlib.nullcontext():
                nn.functional.cross_entropy(called(x[part]), y[part]).backward()
        optimizer.step()
    return net.state_dict()


def main(out: str) -> None:
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if size > 1:
        dist.init_process_group("gloo")
    torch.save({kind: run(kind, rank, size) for kind in MAKE}, pathlib.Path(f"{out}.{rank}"))
    if size > 1:
        dist.barrier()
        dist.destroy_process_group()
        os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way


if __name__ == "__main__":
    main(*sys.argv[1:])
