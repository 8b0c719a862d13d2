"""Trains with DistributedDataParallel, measuring in between, and writes what came of it."""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import spiritlevel as sl

MEASURES = ["curvature.lambda_max", "relative.kappa", "curvature.trace"]


def main(out: str) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model = nn.parallel.DistributedDataParallel(plain)
    generator = torch.Generator().manual_seed(rank)
    x, y = torch.randn(12, 6, generator=generator), torch.randint(3, (12,), generator=generator)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        sl.measure(model, (x, y), measures=MEASURES, max_passes=8, rtol=0.5)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    half = nn.parallel.DistributedDataParallel(nn.Linear(6, 3).bfloat16())
    try:
        sl.measure(half, (x.bfloat16(), y), measures="head.trace")
        error = ""
    except sl.SpiritlevelError as refused:
        error = str(refused)
    told = {"weights": weights, "error": error}
    pathlib.Path(f"{out}.{rank}").write_text(json.dumps(told), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way


if __name__ == "__main__":
    main(*sys.argv[1:])
