"""Normalization by the statistics of the batch, and passes that do not record them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, MutableSet
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from ..ground.errors import SpiritlevelError

STATISTICS = {"running_mean", "running_var"}  # buffers by which a normalization is known


@contextlib.contextmanager
def untouched_statistics(models: MutableSet[nn.Module]) -> Iterator[None]:
    """Norm layers in train mode normalize by the batch in the block, without recording it.

    On leaving, the layers are as they were. Those in eval mode use their statistics and keep them.

    If `models` is empty, it is filled with the modules called in the block (not those that they
    call in turn). One called from within a compiled *function* is not seen; a compiled module is.

    >>> import torch
    >>> norm, models = nn.BatchNorm1d(2), set()
    >>> with untouched_statistics(models):
    ...     out = norm(1 + torch.randn(8, 2))
    >>> norm.running_mean, int(norm.num_batches_tracked), models == {norm}
    (tensor([0., 0.]), 0, True)
    """
    batch_norms: set[nn.Module] = set()
    instance_norms: dict[nn.Module, dict[str, Tensor | None]] = {}

    def take(called: nn.Module) -> None:
        for module in called.modules():
            if not (isinstance(module, _NormBase) and module.training):
                continue
            if isinstance(module, _InstanceNorm):  # updates its buffers whatever the flag says
                if module not in instance_norms:
                    instance_norms[module] = dict(module._buffers)
                    module._buffers.update(_copies(module._buffers))
            elif module.track_running_stats:
                batch_norms.add(module)
                module.track_running_stats = False

    def meet(called: nn.Module) -> None:
        models.add(called)
        take(called)

    try:
        for model in models:
            take(model)
        with contextlib.nullcontext() if models else _before_outermost_calls(meet):
            yield
    finally:
        for module in batch_norms:
            module.track_running_stats = True  # type: ignore[assignment]
        for module, buffers in instance_norms.items():
            module._buffers.update(buffers)


def normalizing_by_batch(model: nn.Module) -> list[nn.Module]:
    """The layers in train mode that would use running statistics in eval mode.

    >>> trained, fixed = nn.BatchNorm1d(2), nn.BatchNorm1d(2).eval()
    >>> normalizing_by_batch(nn.Sequential(trained, fixed, nn.ReLU())) == [trained]
    True
    """
    return [m for m in model.modules() if m.training and _held(m) >= STATISTICS]


@contextlib.contextmanager
def batch_statistics(layers: Collection[nn.Module]) -> Iterator[None]:
    """These layers, which are in eval mode, normalize by the batch in the block."""
    try:
        for layer in layers:
            layer.training = True
        with untouched_statistics(set(layers)) if layers else contextlib.nullcontext():
            yield
    except ValueError as error:
        if not layers or "more than 1 value per channel" not in str(error):
            raise
        raise SpiritlevelError(
            "A batch that a network normalizes by must have more than one sample. Got one sample. "
            "Pass a loader with drop_last=True, or other 'num_samples'."
        ) from error
    finally:
        for layer in layers:
            layer.training = False


def _held(module: nn.Module) -> set[str]:
    return {name for name, buffer in module._buffers.items() if buffer is not None}


def _copies(buffers: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if value is None else value.clone() for name, value in buffers.items()}


@contextlib.contextmanager
def _before_outermost_calls(act: Callable[[nn.Module], None]) -> Iterator[None]:
    """Call `act(module)` before a module runs that no other module has called.

    A global hook of torch would be seen by inner and by compiled modules, which would compile
    again. Here nothing is left to be seen during the outermost call. It costs a fraction of a
    millisecond, since it empties Python's method caches of all module classes.
    """
    original = nn.Module.__call__
    active = True

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nn.Module.__call__ = original  # type: ignore[method-assign]
        try:
            act(self)
            return original(self, *args, **kwargs)
        finally:
            if active:  # a call in another thread may outlast the block
                nn.Module.__call__ = call  # type: ignore[method-assign]

    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        yield
    finally:
        active = False
        nn.Module.__call__ = original  # type: ignore[method-assign]
