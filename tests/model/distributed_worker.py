"""Run in two processes by test_distributed.py: measures shards and writes what came out.

distributed_worker.py CUTS... OUT      each CUTS as "0:15,15:23", one part a process
"""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import spiritlevel as sl
from spiritlevel.engine import sample_draws
from spiritlevel.model.distributed import Processes

EXACT = ["curvature.trace", "relative.*", "neuron.*", "scaled.trace", "head.*", "softmax.*"]
PRODUCTS = ["curvature.lambda_max", "curvature.lambda_min", "scaled.lambda_max"]


class Bare(nn.Module):
    """Weights that only the graph shows; one of them is used by some samples alone."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.expert = nn.Parameter(torch.randn(6, 8)), nn.Parameter(torch.randn(8, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = (x @ self.first).relu()
        chosen = x[:, 0] > 1
        if chosen.any():
            hidden = torch.where(chosen[:, None], (hidden @ self.expert).relu(), hidden)
        return self.head(hidden)


def network(case: str) -> nn.Module:
    torch.manual_seed(0)
    if case == "bare":
        return Bare().double().eval()
    activation = nn.Tanh() if "smooth" in case or case == "hutch++" else nn.ReLU()
    classes = 24 if case in ("probes", "smooth") else 5
    width = 3 if case == "eigenvalues" else 8  # Lanczos ends when it has seen all directions
    layers = [nn.Linear(6, width), activation, nn.Linear(width, classes)]
    model = nn.Sequential(*layers).double().eval()
    if case == GROUPS:  # sure of some samples and unsure of others
        model[2].weight.data *= 20.0
    return model


OTHERS = [
    "activity.*",
    "decomposition.*",
    "norms.*",
    "pac_bayes.*",
    "relative.kappa_*",
    "sensitivity.*",
    "sharpness.worst",
    "sharpness.adaptive",
    "sharpness.average",
    "softmax.*",
]
GROUPS = "smooth, in groups of samples"
SAMPLED = ["curvature.trace", "relative.kappa", "neuron.rho_sum"]
CASES = {
    GROUPS: {"measures": SAMPLED, "method": "sample_probes", "max_passes": 12, "rtol": 1e-4},
    "exact": {"measures": EXACT},
    "probes": {"measures": EXACT[:4], "rtol": 0.2},
    "smooth": {"measures": ["curvature.*", "relative.*", "neuron.*"], "max_passes": 6},
    "hutch++": {"measures": ["curvature.trace"], "method": "hutch++"},
    "eigenvalues": {"measures": PRODUCTS},
    "others": {
        "measures": OTHERS,
        "max_passes": 4,
        "options": {"target": "loss", "draws": 2, "ascent_steps": 2, "restarts": 0},
    },
    "ddp": {"measures": EXACT},
    "bare": {"measures": ["curvature.trace", "relative.kappa", "neuron.rho_sum"]},
    "bad": {"measures": EXACT},
    "fully_shard": {"measures": EXACT},
    "fully_shard smooth": {"measures": ["curvature.*", "relative.*"], "max_passes": 6},
    "tensor parallel": {"measures": EXACT},
    "FullyShardedDataParallel": {"measures": EXACT},
}


def data(case: str, part: slice) -> list:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(23, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(5, (23,), generator=generator)
    if case == "bad":
        x[20, 0] = float("nan")
    x, y = x[part], y[part]
    return list(zip(x.split(8), y.split(8), strict=True)) if len(x) else []


def run(case: str, part: slice) -> dict:
    model = network(case)
    if dist.is_initialized() and case == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    if dist.is_initialized() and case.startswith("fully_shard"):
        from torch.distributed.fsdp import fully_shard

        for layer in list(model)[:3]:
            if any(True for _ in layer.parameters()):
                fully_shard(layer)
        fully_shard(model)
    if dist.is_initialized() and case == "tensor parallel":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

        parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()})
    if dist.is_initialized() and case == "FullyShardedDataParallel":
        from torch.distributed.fsdp import FullyShardedDataParallel

        # its weights stay plain parameters, so only the wrapper tells
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    # 23 samples would not be divided otherwise
    sample_draws.LEAST_SAMPLES = 1 if case == GROUPS else 32
    try:
        report = sl.measure(model, data(case, part), **CASES[case])
        found = json.loads(report.to_json())
        if case == "eigenvalues":
            found["top"] = sl.eigenvalues(model, data(case, part), num=3, which="both").values
            found["moment"] = sl.density(model, data(case, part), num_vectors=2, steps=5).moment(1)
        if case.startswith("fully_shard") and dist.is_initialized():
            found["afterwards"] = after_a_step(model)
        return found
    except sl.SpiritlevelError as error:
        return {"error": str(error)}


def after_a_step(model: nn.Module) -> dict:
    """What a training step does to a sharded model that was measured."""
    kinds = {type(p).__name__ for p in model.parameters()}
    before = [p.full_tensor().clone() for p in model.parameters()]
    model(torch.ones(2, 6, dtype=torch.float64)).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    changed = [
        float((p.full_tensor() - b).abs().max())
        for p, b in zip(model.parameters(), before, strict=True)
    ]
    return {"kinds": sorted(kinds), "changed": changed}


def main(*arguments: str) -> None:
    *all_cuts, out = arguments
    rank = int(os.environ.get("RANK", 0))
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    found = {}
    for cuts in all_cuts:
        start, end = cuts.split(",")[rank].split(":")
        found[cuts] = {case: run(case, slice(int(start), int(end))) for case in CASES}
        found[cuts]["told"] = Processes().gather(str(rank) * (10 + 5000 * rank))
    pathlib.Path(f"{out}.{rank}").write_text(json.dumps(found))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
        os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way


if __name__ == "__main__":
    main(*sys.argv[1:])
