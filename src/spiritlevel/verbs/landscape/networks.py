"""The line through two networks of one architecture, or the plane through three."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...engine.weight_space.perturbed import Weights
from ...ground.errors import SpiritlevelError, brief
from ...model.distributed import unwrapped
from ...model.surface import Surface

Network = nn.Module | Mapping[str, Tensor]
COUNTERS = "num_batches_tracked"  # of BatchNorm; not used in eval mode


def as_networks(to: Network | Iterable[Network] | None) -> list[Network]:
    """The other networks as a list; empty for None."""
    if to is None:
        return []
    single = isinstance(to, nn.Module | Mapping | str) or hasattr(to, "__array__")  # a tensor too
    several = isinstance(to, Iterable) and not single
    # one more than there may be: it may go on without end
    networks: list[Any] = list(itertools.islice(to, 3)) if several else [to]  # type: ignore[arg-type]
    for network in networks:
        if not isinstance(network, nn.Module | Mapping):
            raise SpiritlevelError(
                "The 'to' argument must be a network, a state dict, or a list of one or two of "
                f"them. Got {type(network).__name__}. Load a checkpoint into a copy of the model "
                "with spiritlevel.inputs.checkpoints.load_checkpoint."
            )
    if len(networks) > 2:
        raise SpiritlevelError(
            "The 'to' argument must name one other network (a line) or two (a plane). Got 3 or "
            "more. Draw them in several pictures."
        )
    return networks


class Between:
    """Weights mixed from networks: the first plus t times the difference to each other one."""

    def __init__(self, surface: Surface, others: Sequence[Network]) -> None:
        tensors = tensors_of(surface.model)
        self._names = [name for name, t in tensors.items() if t.is_floating_point()]
        self._parameters = {name for name, _ in surface.model.named_parameters()}
        in_state_dict = surface.model.state_dict().keys()
        self._networks = [
            tensors,
            *(_fitting(tensors, network, in_state_dict) for network in others),
        ]
        self.mixes_statistics = any(name not in self._parameters for name in self._names)

    def at(self, point: Sequence[float]) -> Weights:
        """The mixed weights; at a network exactly its own.

        Buffers such as running statistics are mixed in the same way, but never beyond the
        networks: a variance would become negative there.
        """
        if not any(point):
            return {}
        shares = [1.0 - sum(point), *point]
        inside = [max(share, 0.0) for share in shares]
        inside = [share / sum(inside) for share in inside]
        return {
            name: self._mixed(name, shares if name in self._parameters else inside)
            for name in self._names
        }

    def steps(self) -> list[Weights]:
        """The difference to each other network, parameters only."""
        start, *others = self._networks
        return [
            {name: other[name].double() - start[name].double() for name in self._parameters}
            for other in others
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that the slice depends on, by network and name."""
        return {f"{i}/{n}": t for i, net in enumerate(self._networks) for n, t in net.items()}

    def _mixed(self, name: str, shares: Sequence[float]) -> Tensor:
        start = self._networks[0][name]
        total = torch.zeros_like(start, dtype=torch.float64)
        for share, network in zip(shares, self._networks, strict=True):
            if share:
                total += share * network[name].double()
        return total.to(start.dtype)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, each under one name."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    return parameters | dict(model.named_buffers())


def _fitting(
    tensors: Mapping[str, Tensor], other: Network, in_state_dict: Collection[str]
) -> dict[str, Tensor]:
    """The tensors of another network, on the same device and in the same precision.

    `kept` is what a state dict holds; a buffer that it never holds may be missing there.
    """
    theirs = tensors_of(unwrapped(other)) if isinstance(other, nn.Module) else other
    if unknown := [name for name in theirs if name not in tensors and name not in in_state_dict]:
        raise _misfit(f"has {brief(unknown[0])}, which the model does not have")
    fitted: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name not in theirs:
            if name in in_state_dict:
                raise _misfit(f"has no {name!r}")
            fitted[name] = tensor
            continue
        value = _plain(theirs[name], name)
        if value.shape != tensor.shape:
            shapes = f"{tuple(value.shape)}, needed is {tuple(tensor.shape)}"
            raise _misfit(f"has {name!r} in the shape {shapes}")
        value = value.to(device=tensor.device, dtype=tensor.dtype)
        if not tensor.is_floating_point():
            if not name.endswith(COUNTERS) and not torch.equal(value, tensor):
                raise _misfit(f"differs in {name!r}, which holds whole numbers and cannot be mixed")
        elif not bool(value.isfinite().all()):
            raise _misfit(f"has NaN or infinite values in {name!r}")
        fitted[name] = value
    if all(torch.equal(value, tensors[name]) for name, value in fitted.items()):
        raise _misfit("has the same weights as the model, so there is no line to it")
    return fitted


def _plain(value: object, name: str) -> Tensor:
    """The value without its graph, if it is one to calculate with."""
    if not isinstance(value, Tensor):
        raise _misfit(f"has under {name!r} a value of type {type(value).__name__}, not a tensor")
    if value.is_meta or value.layout != torch.strided:
        kind = "on the device 'meta', without values" if value.is_meta else str(value.layout)
        raise _misfit(f"has {name!r} as a tensor that cannot be mixed: it is {kind}")
    return value.detach()


def _misfit(cause: str) -> SpiritlevelError:
    return SpiritlevelError(
        "The 'to' argument must be another network of the same architecture with finite weights. "
        f"The one that was given {cause}. Check which checkpoint was loaded, and build it with "
        "the options that the model was built with."
    )
