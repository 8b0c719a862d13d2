"""Weights that FSDP2 has divided among processes, moved and differentiated as they are divided."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .distributed import Processes, is_sharded

WIDE = (torch.float32, torch.float64)


def is_divided(model: nn.Module) -> bool:
    """Whether a process holds only parts of the model's weights now."""
    return any(type(p).__name__ == "DTensor" for p in model.parameters())


def may_stay_divided(model: nn.Module, processes: Processes) -> bool:
    """Whether FSDP2 has divided all weights among all processes, without another number type.

    Then a model is measured in parts where differences of gradients will do. Others are gathered:
    those that are replicated or divided further besides, or wait on the host, and those that
    compute in half precision, of which differences would show the rounding.
    """
    parameters: list[Any] = list(model.parameters())
    groups = [group for m in model.modules() if is_sharded(m) for group in _groups(m)]
    return (
        processes.size > 1
        and bool(groups)
        and all(type(p).__name__ == "DTensor" and _in_parts(p, processes) for p in parameters)
        and all(_is_plain(group) for group in groups)
    )


def _in_parts(parameter: Any, processes: Processes) -> bool:
    mesh, (placement, *others) = parameter.device_mesh, parameter.placements
    whole = mesh.size() == processes.size and not others and placement.is_shard()
    return bool(whole and parameter.dtype in WIDE)


def _groups(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)  # of later versions of torch
    one = [state._fsdp_param_group] if several is None else several
    return [group for group in one if group is not None]


def _is_plain(group: Any) -> bool:
    policy = group.mp_policy
    return (
        policy.param_dtype in (None, *WIDE)
        and policy.reduce_dtype in (None, *WIDE)
        and group.gradient_divide_factor is None
        and group.reduce_grads
        and type(group.offload_policy).__name__ == "OffloadPolicy"
    )


class Shards:
    """This process's parts of the weights of a model that FSDP2 has divided."""

    def __init__(self, model: nn.Module, names: Mapping[str, Any]) -> None:
        """`names` are those of the parameters that are measured."""
        everything: dict[str, Any] = dict(model.named_parameters())
        self._modules: list[Any] = [module for module in model.modules() if is_sharded(module)]
        self._parameters = {name: everything[name] for name in names}
        self._all = list(everything.values())
        self.parts: dict[str, Tensor] = {
            name: p.detach().to_local() for name, p in self._parameters.items()
        }

    def count(self, names: Iterable[str]) -> int:
        """How many numbers these parameters have in all processes together."""
        return sum(self._parameters[name].numel() for name in names)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Put weights and gradients back when the block ends, bit for bit."""
        before = {name: part.clone() for name, part in self.parts.items()}
        gradients = [p.grad for p in self._all]
        try:
            yield
        finally:
            for p, gradient in zip(self._all, gradients, strict=True):
                p.grad = gradient
            self.place(before)

    def place(self, values: Mapping[str, Tensor]) -> None:
        """Give the weights these values; the next call of the model gathers them, layer by layer.

        FSDP leaves the outermost layers gathered after a call without a backward.
        """
        for module in self._modules:
            module.reshard()
        with torch.no_grad():
            for name, value in values.items():
                self.parts[name].copy_(value)

    def forget_gradients(self) -> None:
        """Before a sum of gradients."""
        for p in self._all:
            p.grad = None

    def take_gradients(self, processes: Processes) -> dict[str, Tensor]:
        """This process's parts of the sum of all processes' gradients since; FSDP gives means."""
        found = {}
        for name, p in self._parameters.items():
            part = self.parts[name]
            gradient = None if p.grad is None else p.grad.to_local()
            found[name] = (
                torch.zeros_like(part) if gradient is None else gradient.detach() * processes.size
            )
        self.forget_gradients()
        return found
