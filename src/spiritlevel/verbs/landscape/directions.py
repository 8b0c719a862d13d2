"""The directions of a slice: random, eigenvectors of the Hessian, or to other networks.

In random ones every filter is as long as the network's own (Li et al. 2018). A network whose
filters are multiplied by some number, with the next layer divided by it, has other weights and the
same function. A random direction of fixed length would be a large step for one and a small step for
the other; with this normalization both show the same slice. Between networks of one architecture
the weights are mixed, on the line through two of them or the plane through three.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ...engine.weight_space.eigenvalues import check_room, eigenpairs_of
from ...engine.weight_space.parameter_space import ParameterSpace
from ...engine.weight_space.perturbed import Weights, normal_numbers
from ...engine.workspace import Workspace
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


NORMALIZATIONS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
)


class GridPoints(Protocol):
    """The weights at each point of a slice."""

    def at(self, point: Sequence[float]) -> Weights:
        """The weights that replace the network's; empty at the network itself."""

    def tensors(self) -> dict[str, Tensor]:
        """The weights that the slice goes through."""


@dataclasses.dataclass(frozen=True)
class Direction:
    """One axis of a slice, without its grid."""

    name: str
    step: Weights
    eigenvalue: float | None = None
    residual: float | None = None
    slope: float | None = None

    @property
    def length(self) -> float:
        """How far the weights move per step of 1."""
        return float(torch.stack([part.double().norm() for part in self.step.values()]).norm())


@dataclasses.dataclass(frozen=True)
class Slice:
    """The points of a slice, its directions, and notes for the reader."""

    points: GridPoints
    directions: tuple[Direction, ...]
    notes: tuple[str, ...]


class AlongDirections:
    """The network's weights plus t times each direction."""

    def __init__(self, workspace: Workspace, directions: Sequence[Direction]) -> None:
        self._workspace, self._directions = workspace, directions

    def at(self, point: Sequence[float]) -> Weights:
        """The moved weights; parameters that no direction moves are left out."""
        if not any(point):
            return {}
        moved: Weights = {}
        for name, weight in self._workspace.perturbed.weights.items():
            steps = [
                (t, w.step[name])
                for t, w in zip(point, self._directions, strict=True)
                if name in w.step
            ]
            if steps:
                total = weight.double()
                for t, step in steps:
                    total = total + t * step.double()
                moved[name] = total.to(weight.dtype)
        return moved

    def tensors(self) -> dict[str, Tensor]:
        """The weights of the network at the origin."""
        return tensors_of(self._workspace.surface.model)


def random_slice(workspace: Workspace, *, dimensions: int, biases: bool) -> Slice:
    """Gaussian directions with the norms of the network's filters."""
    directions = tuple(
        Direction(
            f"random direction {i + 1}" if dimensions > 1 else "random direction",
            random_direction(workspace.surface, seed=workspace.seed, number=i, biases=biases),
        )
        for i in range(dimensions)
    )
    others = (
        "Biases and the parameters of normalization layers move as a whole, by their own norm."
        if biases
        else "Biases and the parameters of normalization layers stay as they are."
    )
    start = "The directions are" if dimensions > 1 else "The direction is"
    drawn = (
        f"{start} random (seed {workspace.seed}), every filter with the norm of the network's own "
        "filter (Li et al. 2018)."
    )
    return Slice(AlongDirections(workspace, directions), directions, (drawn, others))


def eigen_slice(workspace: Workspace, *, dimensions: int, max_passes: int) -> Slice:
    """Unit eigenvectors of the largest eigenvalues, with the slope of the loss along them."""
    space = ParameterSpace(workspace.surface)
    check_room(space, dimensions, workspace.vector_memory)
    (pairs,) = eigenpairs_of(
        workspace.products,
        [space],
        operator="hessian",
        num=dimensions,
        which="largest",
        seed=workspace.seed,
        max_products=max_passes,
    )
    gradient = workspace.perturbed.unperturbed.gradient
    directions = []
    for i in range(dimensions):
        vector = pairs.vectors[i]
        vector = (
            vector * vector[vector.abs().argmax()].sign()
        )  # v and −v are both eigenvectors: always take the same one
        step = {n: vector[part].view(gradient[n].shape) for n, part in space.slices.items()}
        slope = sum(float((gradient[n] * part.double()).sum()) for n, part in step.items())
        name = f"eigenvector {i + 1}" if dimensions > 1 else "top eigenvector"
        directions.append(
            Direction(name, step, float(pairs.values[i]), float(pairs.residuals[i]), slope)
        )
    notes = [
        "The directions are eigenvectors of the Hessian of length 1, at the largest eigenvalues."
        if dimensions > 1
        else "The direction is the Hessian's eigenvector of length 1 at its largest eigenvalue."
    ]
    if not all(pairs.converged.tolist()):
        notes.append(
            f"Not converged after {max_passes} products with the Hessian: the residual says how "
            "close the direction is to an eigenvector. Raise max_passes to get closer."
        )
    return Slice(AlongDirections(workspace, directions), tuple(directions), tuple(notes))


def path_slice(workspace: Workspace, others: Sequence[Network], names: Sequence[str]) -> Slice:
    """Straight lines from the network to one or two others."""
    between = Between(workspace.surface, others)
    start, *ends = names
    steps = between.steps()
    directions = tuple(
        Direction(f"{start} → {end}", step) for end, step in zip(ends, steps, strict=True)
    )
    notes = [
        "The weights are mixed on the straight line between the checkpoints, and go on in the "
        "same direction beyond them."
    ]
    if len(steps) == 2:
        dot = sum(float((steps[0][n] * steps[1][n]).sum()) for n in steps[0])
        size = directions[0].length * directions[1].length
        cosine = dot / size if size else 0.0
        notes[0] = "The weights are mixed on the plane through the three checkpoints."
        notes.append(
            f"The cosine between the axes is {cosine:.2g}; they are drawn at right angles."
        )
    if between.mixes_statistics:
        notes.append(
            "Buffers such as BatchNorm's running statistics are mixed with the weights, and "
            "beyond the checkpoints they stay those of the nearest mixture."
        )
    return Slice(between, directions, tuple(notes))


def random_direction(surface: Surface, *, seed: int, number: int, biases: bool) -> Weights:
    """A direction that follows from the seed and its number alone.

    `biases=False` leaves biases, parameters of normalization layers and everything else that is
    one number per unit unchanged; otherwise such a parameter counts as one filter.
    """
    numbers = normal_numbers(surface, seed, "landscape", number)
    direction: Weights = {}
    for name, parameter in surface.parameters.items():
        module = surface.layers.module(surface.layers.of(name))
        if parameter.dim() <= 1 or isinstance(module, NORMALIZATIONS):
            if not biases:
                continue
            rows, reference = numbers[name].flatten()[None], parameter.detach().flatten()[None]
            shaped = _rescaled(rows, reference).reshape(parameter.shape)
        else:
            rows, reference = (_filters(module, t) for t in (numbers[name], parameter.detach()))
            shaped = _unfiltered(module, _rescaled(rows, reference), parameter)
        direction[name] = shaped.to(torch.promote_types(parameter.dtype, torch.float32))
    if not any(bool(step.any()) for step in direction.values()):
        raise SpiritlevelError(
            "A random direction with the norms of the network's filters must have a weight to "
            "move. All trainable weights here are biases, of normalization layers, or zero. "
            "Choose other 'layers', or pass biases=True."
        )
    return direction


def _rescaled(rows: Tensor, reference: Tensor) -> Tensor:
    """The rows with the lengths of the reference rows."""
    lengths = reference.double().norm(dim=1, keepdim=True)
    return rows * (lengths / rows.norm(dim=1, keepdim=True))


def _filters(module: nn.Module, weight: Tensor) -> Tensor:
    """One row for each output unit.

    A transposed convolution has its outputs in the second dimension, group by group.
    """
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        weight = weight.unflatten(0, (module.groups, -1)).transpose(1, 2).flatten(0, 1)
    return weight.flatten(1)


def _unfiltered(module: nn.Module, rows: Tensor, like: Tensor) -> Tensor:
    """Rows as `_filters` makes them, back in the shape of the weight."""
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        outputs, inputs = like.shape[1], like.shape[0] // module.groups
        apart = rows.view(module.groups, outputs, inputs, *like.shape[2:])
        return apart.transpose(1, 2).reshape(like.shape)
    return rows.view(like.shape)
