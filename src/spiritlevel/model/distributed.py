"""Several processes that measure one network together, each on its own part of the data.

Every process has the whole model. Sums over samples are added up over the processes; everything
else is the same in all of them, so all arrive at the same report. An error in one process is raised
in all of them: otherwise the others would wait for it forever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import SpiritlevelError
from ..records import Cost


class Processes:
    """The default group of `torch.distributed`, or this process alone."""

    def __init__(self, *, join: bool = True) -> None:
        """`join=False` is this process alone, even under torch.distributed."""
        together = join and dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if together else 1
        self.rank = dist.get_rank() if together else 0

    def sum_(self, *tensors: Tensor) -> None:
        """Add up each tensor over the processes, in place."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def gather(self, thing: Any) -> list[Any]:
        """One object from every process, in the order of their ranks."""
        if self.size == 1:
            return [thing]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, thing)
        return gathered

    def total_cost(self, cost: Cost) -> Cost:
        """The counted work, added up over all processes."""
        return sum(self.gather(cost), Cost())

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """If the block fails in one process, raise in all of them with the text of that error."""
        if self.size == 1:
            yield
            return
        error: Exception | None = None
        try:
            yield
        except Exception as raised:  # of any kind: the other processes must be told
            error = raised
        texts = self.gather(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        for rank, text in enumerate(texts):
            if text is not None:
                raise SpiritlevelError(f"Process {rank} could not measure its part. {text}")


def refuse_sharded(model: torch.nn.Module) -> None:
    """Raise SpiritlevelError if each process holds only a part of the model."""
    kinds = {type(module).__name__ for module in model.modules()}
    parameters = {type(parameter).__name__ for parameter in model.parameters()}
    if "FullyShardedDataParallel" in kinds or "DTensor" in parameters:
        raise SpiritlevelError(
            "The model is sharded (FSDP): no process holds a whole weight, so the norms, products "
            "and per-sample gradients of a layer cannot be formed. Gather the weights into an "
            "unwrapped copy first: state = torch.distributed.checkpoint.state_dict."
            "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)), then "
            "load them into the plain model in every process and measure that; its data may stay "
            "split over the processes."
        )


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The user's module inside DataParallel, DistributedDataParallel and torch.compile."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), torch.nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model
