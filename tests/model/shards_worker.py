"""Run in two processes by test_shards.py: products of a network that FSDP2 divides.

shards_worker.py OUT
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
from spiritlevel.model.distributed import Processes
from spiritlevel.model.shards import may_stay_divided


def network(dtype: torch.dtype, width: int = 5, hidden: int = 1) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(6, width), nn.Tanh()]
    for _ in range(hidden):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 5)).to(dtype).eval()


def data(part: slice, dtype: torch.dtype) -> list:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(23, 6, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randint(5, (23,), generator=generator)
    return list(zip(x[part].split(8), y[part].split(8), strict=True))


def direction(size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def mine(dtype: torch.dtype) -> list:
    """The second process has one batch less than the first."""
    return data([slice(0, 15), slice(15, 23)][dist.get_rank()], dtype)


def divided(model: nn.Module, **policy: object) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, **policy)
    return fully_shard(model, **policy)


class Largest(TorchDispatchMode):
    """How many numbers the largest plain tensor has that any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, list | tuple) else [made]:
            if type(each) in (torch.Tensor, nn.Parameter):
                self.numbers = max(self.numbers, each.numel())
        return made


def my_part(model: nn.Module, vector: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import distribute_tensor

    parameters = list(model.parameters())
    pieces = vector.split([p.numel() for p in parameters])
    parts = [
        distribute_tensor(piece.view(p.shape).to(p.dtype), p.device_mesh, p.placements)
        for piece, p in zip(pieces, parameters, strict=True)
    ]
    return torch.cat([part.to_local().flatten() for part in parts])


def joined(model: nn.Module, parts: dict[str, torch.Tensor]) -> list[float]:
    """A vector of parts as a whole, in the order of the parameters."""
    from torch.distributed.tensor import DTensor

    whole = []
    for name, p in model.named_parameters():
        how = {"shape": p.shape, "stride": p.stride()}
        part = DTensor.from_local(parts[name], p.device_mesh, p.placements, **how)
        whole += part.full_tensor().flatten().tolist()
    return whole


def run(dtype: torch.dtype) -> dict:
    model = divided(network(dtype))
    before = {name: p.detach().to_local().clone() for name, p in model.named_parameters()}
    samples = mine(dtype)
    pairs = sl.eigenvalues(model, samples, residual_rtol=1e-6 if dtype is torch.float64 else None)
    found = {name: getattr(pairs, name) for name in ("values", "residuals", "converged")}
    found |= {"by": pairs.settings["products_by"], "samples": pairs.settings["num_samples"]}
    operator = sl.operator(model, samples)
    v = my_part(model, direction(sum(p.numel() for p in model.parameters())))
    found["product"] = joined(model, operator.split(operator @ v))
    found["error"] = operator.errors
    if dtype is torch.float64:
        density = sl.density(model, samples, num_vectors=12, steps=1)
        found["trace"] = [density.size * each for each in density.moment(1)]
        solved = operator.solve(v, damping=1.0, rtol=1e-4)
        found["solved"] = joined(model, operator.split(solved.vectors))
    parameters = dict(model.named_parameters())
    found["same"] = [torch.equal(p.to_local(), before[name]) for name, p in parameters.items()]
    found["kinds"] = sorted({type(p).__name__ for p in parameters.values()})
    return found


def after_an_error() -> dict:
    """A forward that fails while the weights are moved: they are as before, and train on."""
    model = divided(network(torch.float64))
    for p in model.parameters():
        p.grad = p.detach().clone()
    before = [p.detach().to_local().clone() for p in model.parameters()]
    calls = []

    def failing(model, batch):
        calls.append(batch)
        if len(calls) == 4:
            raise ValueError("mine")
        return model(batch[0]), batch[1]

    operator = sl.operator(model, mine(torch.float64)[:1], forward=failing)
    found = {}
    try:
        operator @ my_part(model, direction(sum(p.numel() for p in model.parameters())))
    except ValueError as error:
        found["raised"] = str(error)
    same = zip(model.parameters(), before, strict=True)
    found["same"] = [
        torch.equal(p.to_local(), b) and torch.equal(p.grad.to_local(), b) for p, b in same
    ]
    expected = network(torch.float64)(torch.ones(2, 6, dtype=torch.float64))
    outputs = model(torch.ones(2, 6, dtype=torch.float64))
    found["outputs"] = torch.equal(outputs, expected)
    outputs.square().mean().backward()
    return found


def largest() -> dict:
    """Of four hidden layers of one size FSDP gathers one at a time."""
    model = divided(network(torch.float32, width=32, hidden=4))
    operator = sl.operator(model, mine(torch.float32))
    whole = sum(p.numel() for p in model.parameters())
    v = my_part(model, direction(whole))
    with Largest() as seen:
        operator @ v
    return {"largest": seen.numbers, "share": v.numel(), "whole": whole}


def refused() -> str:
    model = divided(network(torch.float32))
    try:
        sl.eigenvalues(model, mine(torch.float32), matrix="ggn")
    except sl.SpiritlevelError as error:
        return str(error)
    return ""


def stay() -> dict:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    models = {
        "plain": network(torch.float32),
        "divided": divided(network(torch.float32)),
        "half inside": divided(network(torch.float32), mp_policy=half),
        "half": divided(network(torch.bfloat16)),
    }
    return {name: may_stay_divided(model, Processes()) for name, model in models.items()}


def main(out: str) -> None:
    dist.init_process_group("gloo")
    found = {str(dtype): run(dtype) for dtype in (torch.float64, torch.float32)}
    found |= {"error": after_an_error(), "refused": refused(), "stay": stay()} | largest()
    pathlib.Path(f"{out}.{dist.get_rank()}").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way


if __name__ == "__main__":
    main(*sys.argv[1:])
