"""The directions of a slice: random, eigenvectors of the Hessian, or to other networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ...engine.weight_space.eigenvalues import check_room, eigenpairs_of
from ...engine.weight_space.parameter_space import ParameterSpace
from ...engine.weight_space.perturbed import Weights
from ...engine.workspace import Workspace
from .filters import random_direction
from .networks import Between, Network, tensors_of


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
