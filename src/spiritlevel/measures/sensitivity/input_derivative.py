"""‖∂z/∂x‖²_F of every sample: the derivative of the outputs z in the model's input x."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...engine.sweep.probed_rows import ProbedRows, SampleNumbers
from ...engine.sweep.sums import RowSums
from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError, brief
from ...ground.need import or_none
from ...math.signs import random_signs
from ...model.batches import BatchLocation
from ...model.exclusive import of_this_thread
from ..options import Option
from ..registry import once

_STREAM = 5000  # of random signs: apart from all others
ALL, OUTSIDE = "all", "outside"
Region = tuple[int, int, int, int]  # top, left, height, width


def _in_pixels(region: Any) -> tuple[int, ...] | None:
    """Four whole numbers; none where it is something else."""
    if region is None:
        return None
    try:
        top, left, height, width = (int(each) for each in region)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: of a meta tensor
        return ()
    return top, left, height, width


REGION = Option(
    "region",
    None,
    or_none(lambda r: len(r) == 4 and min(r[:2]) >= 0 and min(r[2:]) >= 1),
    lambda r: f"(top, left, height, width) {'with a positive size' if r else 'in pixels'}",
    "top, left, height and width of the part of an image to leave out",
    read=_in_pixels,
)


@contextlib.contextmanager
def input_leaf(model: nn.Module) -> Iterator[list[Any]]:
    """During the block the model gets its floating-point input as a leaf of the graph.

    Whatever form the batches have, it shows when the model is called; what was found is a list of
    one tensor a call, or of the text that says why there is none.
    """
    inputs: list[Any] = []

    def swap(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = {i: value for i, value in enumerate(args)} | kwargs
        tensors = {key: value for key, value in given.items() if isinstance(value, Tensor)}
        floating = [key for key, value in tensors.items() if value.is_floating_point()]
        if len(floating) != 1:
            kinds = ", ".join(
                f"{key}: {t.dtype}".replace("torch.", "") for key, t in tensors.items()
            )
            inputs.append(f"{len(floating)} floating-point tensors ({kinds or 'no tensors'})")
            return None
        leaf = given[floating[0]].detach().requires_grad_()
        inputs.append(leaf)
        args = tuple(leaf if i == floating[0] else value for i, value in enumerate(args))
        return args, {k: leaf if k == floating[0] else value for k, value in kwargs.items()}

    # before the user's own hooks, which then work on the leaf
    handle = model.register_forward_pre_hook(of_this_thread(swap), with_kwargs=True, prepend=True)
    try:
        yield inputs
    finally:
        handle.remove()


def check_input(workspace: Workspace, measure: str) -> torch.Size:
    """The shape of one sample's input; raises where it has no derivative."""
    return _only(_first_inputs(workspace), 1, measure).shape[1:]


@once
def _first_inputs(workspace: Workspace) -> list[Any]:
    batch = workspace.surface.first_samples(1)
    with torch.no_grad(), input_leaf(workspace.surface.model) as inputs:
        workspace.surface.outputs(batch, where=BatchLocation(0))
    return inputs


def _only(inputs: list[Any], num_samples: int, measure: str) -> Tensor:
    """The model's only input, with one row per sample; raises if there is no such input."""
    if len(inputs) != 1:
        raise SpiritlevelError(
            f"The measure {measure!r} needs a model that is called once for a batch. Your "
            f"'forward' calls it {len(inputs)} times. Put the calls into one module, or leave the "
            "measure out."
        )
    (leaf,) = inputs
    if isinstance(leaf, str):
        raise SpiritlevelError(
            f"The measure {measure!r} takes the derivative in the model's input, so the model must "
            f"be called with exactly one floating-point tensor. Got {leaf}. Whole numbers such as "
            "tokens have no derivative: measure the part of the model behind its embedding, or "
            "leave the measure out. With several inputs pass a model that takes one and holds the "
            "others."
        )
    if leaf.dim() == 0 or len(leaf) != num_samples:
        raise SpiritlevelError(
            f"The measure {measure!r} needs inputs with the samples in their first dimension. Got "
            f"shape {tuple(leaf.shape)} for {num_samples} samples. Put the samples first."
        )
    return leaf


def check_region(workspace: Workspace, measure: str) -> Region:
    """The region to leave out, if the inputs are images and it lies inside them."""
    shape, region = check_input(workspace, measure), workspace.options.region
    if region is None:
        raise SpiritlevelError(
            f"The measure {measure!r} needs the option 'region', the part of the images to leave "
            "out. Got none. Pass options={'region': (top, left, height, width)} in pixels."
        )
    if len(shape) != 3:
        raise SpiritlevelError(
            f"The measure {measure!r} needs images of shape (channels, height, width). Got inputs "
            f"of shape {tuple(shape)}. Leave it out, or measure sensitivity.jacobian."
        )
    top, left, height, width = region
    if top + height > shape[1] or left + width > shape[2]:
        raise SpiritlevelError(
            f"The option 'region' must lie inside the images of {shape[1]} × {shape[2]} pixels. "
            f"Got top {top}, left {left}, height {height}, width {width}. Choose a smaller one."
        )
    if (height, width) == shape[1:]:
        raise SpiritlevelError(
            f"The option 'region' must leave something of the images of {shape[1]} × {shape[2]} "
            f"pixels. Got {brief(region)}, which is all of them. Choose a smaller one."
        )
    return top, left, height, width


@once
def input_jacobian(workspace: Workspace) -> ProbedRows:
    """Rows ALL and, where a region is left out, OUTSIDE; once for all measures."""
    numbers = SampleNumbers(workspace)
    return ProbedRows(
        workspace,
        lambda streams: _pass(workspace, numbers, streams),
        num_columns=workspace.plan.num_outputs,
    )


def _pass(workspace: Workspace, numbers: SampleNumbers, streams: range | None) -> RowSums:
    surface = workspace.surface
    region = workspace.options.region
    shape = check_input(workspace, "sensitivity.jacobian")
    names = [ALL, OUTSIDE] if region is not None and len(shape) == 3 else [ALL]
    sums = RowSums(names, surface.device)
    chunk = workspace.plan.footprint.chunk(workspace.memory, sweep=True)
    with surface.processes.together():
        for where, batch in surface.chunks(chunk):
            with torch.enable_grad(), input_leaf(surface.model) as inputs:
                outputs, targets = surface.outputs(batch, where=where)
            with torch.no_grad():
                leaf = _only(inputs, len(outputs), "sensitivity.jacobian")
                weights = (surface.loss.weights(outputs.detach(), targets) > 0).double()
                index = numbers.of(where, len(outputs))
                draws = []
                for columns in _columns(outputs, workspace.seed, index, streams):
                    total = torch.zeros(len(names), len(outputs), dtype=torch.float64)
                    total = total.to(outputs.device)
                    for column in columns:
                        (gradient,) = surface.pull(outputs, column, [leaf])
                        if gradient is not None:
                            total += _squares(gradient, region if len(names) > 1 else None)
                    draws.append(total * weights)
                sums.add(draws, weights)
    sums.reduce(surface.processes)
    return sums


def _columns(
    outputs: Tensor, seed: int, index: Tensor, streams: range | None
) -> Iterator[Iterable[Tensor]]:
    """All unit vectors of the outputs as one draw, or one draw a probe."""
    if streams is None:
        yield _units(outputs)
    for stream in streams or ():
        signs = random_signs(seed, _STREAM + stream, index, outputs[0].numel(), outputs.dtype)
        yield [signs.reshape(outputs.shape)]


def _units(outputs: Tensor) -> Iterator[Tensor]:
    for i in range(outputs[0].numel()):
        unit = torch.zeros_like(outputs)
        unit.view(len(outputs), -1)[:, i] = 1.0
        yield unit


def _squares(gradient: Tensor, region: Region | None) -> Tensor:
    """Σ of squares of each sample, whole and outside a region, shape (1 or 2, N)."""
    squares = gradient.double().square()
    rows = [squares.flatten(1).sum(dim=1)]
    if region is not None:
        top, left, height, width = region
        squares[:, :, top : top + height, left : left + width] = 0.0  # nothing to cancel
        rows.append(squares.flatten(1).sum(dim=1))
    return torch.stack(rows)
