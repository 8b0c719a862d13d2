"""Run in one process or in two by test_shards.py: products of a network that FSDP2 divides.

shards_worker.py OUT [CASE]
"""

import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import spiritlevel as sl

TOGETHER = dist.is_available() and "RANK" in os.environ


def network(*, wide: bool = False) -> nn.Module:
    torch.manual_seed(0)
    width = 64 if wide else 7
    layers = [nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    if wide:
        layers += [nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 5)).eval()


def divided(model: nn.Module) -> nn.Module:
    if TOGETHER:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if any(True for _ in layer.parameters()):
                fully_shard(layer)
        fully_shard(model)
    return model


def data(dtype: torch.dtype) -> list:
    """23 samples; the second process has one batch less than the first."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(23, 6, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randint(5, (23,), generator=generator)
    part = slice(None) if not TOGETHER else [slice(0, 15), slice(15, 23)][dist.get_rank()]
    return list(zip(x[part].split(8), y[part].split(8), strict=True))


class Largest(TorchDispatchMode):
    """How many numbers the largest plain tensor has that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, list | tuple) else [made]:
            if type(each) in (torch.Tensor, nn.Parameter):
                self.numbers = max(self.numbers, each.numel())
        return made


def whole(model: nn.Module, operator: sl.results.CurvatureOperator, vector: torch.Tensor) -> list:
    """A vector of parts, put together again in the order of the parameters."""
    from torch.distributed.tensor import DTensor

    joined = []
    for (name, part), p in zip(operator.split(vector).items(), model.parameters(), strict=True):
        assert name
        joined.append(
            DTensor.from_local(
                part, p.device_mesh, p.placements, shape=p.shape, stride=p.stride()
            ).full_tensor().flatten()
        )
    return torch.cat(joined).tolist()


def run(dtype: torch.dtype) -> dict:
    model = divided(network().to(dtype))
    before = [p.detach().clone() for p in model.parameters()]
    pairs = sl.eigenvalues(model, data(dtype), num=2)
    found = {
        "values": pairs.values,
        "residuals": pairs.residuals,
        "converged": pairs.converged,
        "by": pairs.settings.get("products_by", ""),
        "samples": pairs.settings["num_samples"],
    }
    density = sl.density(model, data(dtype), num_vectors=48, steps=1)
    found["trace"] = [density.size * each for each in density.moment(1)]
    operator = sl.operator(model, data(dtype))
    torch.manual_seed(3)
    v = torch.randn(sum(p.numel() for p in model.parameters()), dtype=torch.float64).to(dtype)
    if TOGETHER:
        from torch.distributed.tensor import distribute_tensor

        parts = []
        for piece, p in zip(v.split([p.numel() for p in model.parameters()]), before, strict=True):
            parts.append(distribute_tensor(piece.view(p.shape), p.device_mesh, p.placements))
        mine = torch.cat([part.to_local().flatten() for part in parts])
        found["product"] = whole(model, operator, operator @ mine)
    else:
        found["product"] = (operator @ v).tolist()
    found["error"] = operator.errors
    found["same"] = all(
        torch.equal(as_local(p), as_local(b))
        for p, b in zip(model.parameters(), before, strict=True)
    )
    found["kinds"] = sorted({type(p).__name__ for p in model.parameters()})
    return found


def as_local(p: torch.Tensor) -> torch.Tensor:
    return p.detach().to_local() if TOGETHER else p.detach()


def refused(model: nn.Module) -> str:
    try:
        sl.operator(model, data(torch.float32), kind="ggn") @ torch.ones(3)
    except sl.SpiritlevelError as error:
        return str(error)
    return ""


def largest() -> dict:
    """Of four layers of one size, no process ever holds more than one, or its part of all."""
    model = divided(network(wide=True))
    with Largest() as seen:
        sl.eigenvalues(model, data(torch.float32), max_passes=3)
    return {"largest": seen.numbers, "whole": sum(p.numel() for p in model.parameters())}


def main(out: str) -> None:
    if TOGETHER:
        dist.init_process_group("gloo")
    found = {"float64": run(torch.float64), "float32": run(torch.float32)} | largest()
    rank = int(os.environ.get("RANK", 0))
    pathlib.Path(f"{out}.{rank}").write_text(json.dumps(found))
    if TOGETHER:
        dist.barrier()
        dist.destroy_process_group()
        os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way


if __name__ == "__main__":
    main(*sys.argv[1:])
