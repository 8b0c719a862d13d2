"""Measure one network with several processes, each on its own part of the data.

    torchrun --nproc_per_node=2 examples/measure_in_processes.py

prints the numbers that a single process (`python` instead of torchrun) gets on all of the data.
"""

import os

import torch
import torch.distributed as dist
from torch import nn

import spiritlevel as sl
from spiritlevel.inputs import load

if "RANK" in os.environ:  # set by torchrun
    dist.init_process_group("gloo")  # "nccl" with one GPU per process
rank = dist.get_rank() if dist.is_initialized() else 0
world = dist.get_world_size() if dist.is_initialized() else 1

torch.manual_seed(0)  # the same network in every process
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)).double()
x, y = load("digits", "train")
x, y = x[:300].double(), y[:300]
start, end = rank * len(x) // world, (rank + 1) * len(x) // world  # consecutive parts, in order
mine = [(x[i : i + 64][: end - i], y[i : i + 64][: end - i]) for i in range(start, end, 64)]

report = sl.measure(
    model.eval(),
    mine,
    measures=["curvature.trace", "relative.kappa", "head.lambda_max", "curvature.lambda_max"],
    rtol=0.2,
)
if rank == 0:  # every process has the same report
    print(report)
    assert report.settings["num_samples"] == len(x)
if dist.is_initialized():
    dist.barrier()  # a process that exits while others still need it may crash them
    dist.destroy_process_group()
