"""Measuring a network in the middle of its training without changing it."""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import SpiritlevelError
from ...model.batches import map_tensors, num_samples, take
from ...model.exclusive import claimed, process_state
from ...need import need, or_none, whole


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """The model is in eval mode in the block; afterwards it and all random states are as before.

    Modes are set and restored module by module: `model.train()` would also change modules that are
    in eval mode on purpose, and a user's own `train` may do more than set the mode. If no parameter
    is trainable, as in the copies that EMA libraries keep, all of them are trainable in the block.
    """
    modes = [(module, module.training) for module in model.modules()]
    parameters = list(model.parameters())
    frozen = [] if any(p.requires_grad for p in parameters) else parameters
    frozen = [p for p in frozen if p.is_floating_point()]
    # the caller may be inside torch.no_grad()
    with claimed([model]), process_state(), _random_states(model), _differentiable():
        try:
            for module, _ in modes:
                module.training = False
            for parameter in frozen:
                parameter.requires_grad_(True)
            yield
        finally:
            for module, mode in modes:
                module.training = mode
            for parameter in frozen:
                parameter.requires_grad_(False)


@contextlib.contextmanager
def _differentiable() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextlib.contextmanager
def _random_states(model: nn.Module) -> Iterator[None]:
    """Restores the random states of torch (CPU and the model's GPUs), Python and numpy."""
    devices = {p.device for p in itertools.chain(model.parameters(), model.buffers())}
    numpy = sys.modules.get("numpy.random")
    plain = random.getstate()
    legacy = None if numpy is None else numpy.get_state()
    with torch.random.fork_rng(devices=[d for d in devices if d.type == "cuda"]):
        try:
            yield
        finally:
            random.setstate(plain)
            if numpy is not None:
                numpy.set_state(legacy)


def fixed_samples(data: Any, count: int | None) -> list[Any]:
    """The batches of a loader, or one batch, copied once, so that the samples stay the same.

    `count` keeps the first samples only. The loader's generators are restored.
    """
    fits = or_none(whole(least=1))
    then = "Leave it out to measure on all of the data."
    need("num_samples", count, fits, "a whole number of at least 1", then)
    batches: list[Any] = []
    missing = count
    with _generators(data):
        for batch in _batches(data):
            if missing is not None and missing <= 0:
                break
            batch = map_tensors(lambda tensor: tensor.detach().clone(), batch)
            size = num_samples(batch)
            if missing is not None:
                batch = take(batch, slice(missing)) if size > missing else batch
                missing -= size
            if size:
                batches.append(batch)
    if not batches:
        raise SpiritlevelError(
            "The 'data' argument must hold at least one sample. Got an empty loader. Check the "
            "data set's length, drop_last=True with a batch larger than the data, or an exhausted "
            "generator."
        )
    return batches


def _batches(data: Any) -> Iterable[Any]:
    pair = isinstance(data, list | tuple) and len(data) == 2
    if isinstance(data, Mapping) or (pair and all(isinstance(part, Tensor) for part in data)):
        return [data]
    if isinstance(data, Tensor) or not isinstance(data, Iterable):
        raise SpiritlevelError(
            "The 'data' argument must be a loader of batches, or one batch: a pair of tensors "
            f"(x, y) or a dict with labels. Got {type(data).__name__}."
        )
    return data


@contextlib.contextmanager
def _generators(loader: Any) -> Iterator[None]:
    """Restores the loader's generators, which a shuffling loader draws from when it is read."""
    sources = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    sources.append(getattr(sources[-1], "sampler", None))
    generators = [getattr(source, "generator", None) for source in sources]
    states = [(g, g.get_state()) for g in generators if isinstance(g, torch.Generator)]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)
