"""Evaluate the loss along a line or a plane through a network's weights."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from torch import nn

from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError, brief
from ...ground.files import is_path
from ...ground.need import is_number, is_whole, need, need_one_of, or_none, whole
from ...measures.asked import MEASURES
from ...measures.setup import OfProducts, Setup
from ...measures.verb import verb
from ...model.arguments import CHECKED_LATER, ArgumentCheck, are_texts, is_flag, is_text
from ...model.surroundings import call_settings
from ...records.measurements import Report
from ..measuring import cards
from .cache import Height, of_tensors
from .directions import Network, Slice, as_networks, eigen_slice, path_slice, random_slice
from .grid import coordinates, evaluate_grid, measure_points, open_cache
from .record import Axis, Landscape, Mark

if TYPE_CHECKING:
    from typing_extensions import Unpack

Directions = Literal["random", "eigen", "path"]
NAMES = ("start", "end", "third")
KEPT = ("loss", "reduction", "layers", "num_samples", "seed", "dtype", "device", "torch")


@verb(
    directions=ArgumentCheck(or_none(is_text), "'random', 'eigen' or None"),
    to=CHECKED_LATER._replace(alike=False),
    names=ArgumentCheck(or_none(are_texts), "a list of texts, or None"),
    dimensions=ArgumentCheck(or_none(is_whole), "1, 2 or None"),
    points=ArgumentCheck(or_none(is_whole), "a whole number below 2**63, or None"),
    reach=ArgumentCheck(or_none(is_number), "a number, or None"),
    biases=ArgumentCheck(is_flag, "True or False"),
    measures=MEASURES,
    cache=ArgumentCheck(or_none(is_path), "a path, or None", alike=False),
)
def landscape(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    directions: Directions | None = None,
    to: Network | Iterable[Network] | None = None,
    names: Sequence[str] | None = None,
    dimensions: int | None = None,
    points: int | None = None,
    reach: float | None = None,
    biases: bool = False,
    measures: str | Sequence[str] | None = None,
    max_passes: int = 200,
    cache: str | os.PathLike[str] | None = None,
    **shared: Unpack[OfProducts],
) -> Landscape:
    """The loss of `model` on `data` along a line or a plane. The model is left exactly as it was.

    Args:
        directions: "random" with every filter as long as the network's own (Li et al. 2018),
            "eigen" for the Hessian's largest eigenvalues, "path" to other networks; None takes
            "path" where `to` is given and "random" elsewhere.
        to: another network or its state dict, for the line to it; two of them for the plane.
        names: names of the network and the others, for pictures.
        dimensions: 1 or 2; None takes a line, or a plane where `to` holds two networks.
        points: along each axis; None takes 41 on a line and 21 by 21 on a plane. The networks
            themselves are always among them. Each point is one pass over the data.
        reach: from −reach to reach around the network (default 1). On a path, how far to go
            beyond both checkpoints, which are at 0 and 1 (default 0.5).
        biases: whether random directions move biases and normalization layers too.
        measures: names or patterns of what to measure at every point of a line besides the loss:
            how flat it is on the way. Each point then costs what `measure` costs.
        layers: move only the parameters of these modules; not on a path.
        max_passes: products with the Hessian that "eigen" may take.
        cache: a file for the losses of finished points; the same call continues from there later.
        progress: as for `measure`; the count starts again for each product with the Hessian, and
            then for the slice as a whole.

    The other arguments are those of `measure`. `plots.landscape` draws the result.

    >>> import torch, spiritlevel as sl
    >>> net = nn.Linear(3, 1, bias=False).double()
    >>> x, y = torch.diag(torch.tensor([1.0, 2.0, 3.0])).double(), torch.zeros(3, 1).double()
    >>> found = landscape(net, (x, y), loss="mse", directions="eigen", points=3)
    >>> below, here, above = found.losses
    >>> round(below - 2 * here + above, 6)                         # λ = 2·9/3
    6.0
    """
    others = as_networks(to)
    kind, size = _check(directions, others, dimensions, setup.layers)
    between = kind == "path"
    axis = coordinates(dimensions=size, points=points, reach=reach, between=between)
    if kind == "eigen":
        enough = f"at least {size}, since every eigenvector takes products"
        need("max_passes", max_passes, whole(least=size), enough, "Leave it out for 200.")
    patterns = _measures(measures, size)
    labels = _names(names, 1 + len(others))
    with setup.opened(model, data) as workspace:
        if kind == "path":
            slice_ = path_slice(workspace, others, labels)
        elif kind == "eigen":
            slice_ = eigen_slice(workspace, dimensions=size, max_passes=max_passes)
        else:
            slice_ = random_slice(workspace, dimensions=size, biases=biases)
        key = {
            "directions": kind,
            "dimensions": size,
            "biases": biases if kind == "random" else None,
            "max_passes": max_passes if kind == "eigen" else None,
            "weights": of_tensors(slice_.points.tensors()),
        }
        settings = {name: workspace.settings()[name] for name in KEPT} | call_settings() | key
        grid = list(itertools.product(axis, repeat=size))
        point_cache = None if cache is None else open_cache(workspace, cache, settings)
        heights_found, num_cached = evaluate_grid(
            workspace, slice_.points, grid, point_cache, setup.progress
        )
    settings["points_from_cache"] = num_cached
    reports: tuple[Report, ...] = ()
    if patterns:
        reports = measure_points(setup, model, data, slice_.points, grid, patterns)
    record = _record(workspace, kind, slice_, axis, heights_found, labels, settings)
    cost = sum((report.cost for report in reports), record.cost)
    return dataclasses.replace(record, reports=reports, cost=cost)


def num_points(
    *, dimensions: int = 1, points: int | None = None, reach: float | None = None, path: bool
) -> int:
    """How many passes over the data a slice takes, before anything runs.

    >>> num_points(dimensions=2, path=False)
    441
    """
    axis = coordinates(dimensions=dimensions, points=points, reach=reach, between=path)
    return len(axis) ** dimensions


def _check(
    directions: str | None,
    others: Sequence[Network],
    dimensions: int | None,
    layers: str | Sequence[str] | None,
) -> tuple[Directions, int]:
    if directions is None:
        directions = "path" if others else "random"
    need_one_of("directions", directions, get_args(Directions))
    if (directions == "path") != bool(others):
        came = f"directions={directions!r} and {len(others)} other networks"
        raise SpiritlevelError(
            "A path needs other networks in the 'to' argument; other directions take none. "
            f"Got {came}. Pass only 'to', or only 'directions'."
        )
    if others and layers is not None:
        raise SpiritlevelError(
            "The 'layers' argument must be left out on a path to other networks, whose weights "
            f"differ in all layers. Got {brief(layers)}."
        )
    if dimensions is None:
        dimensions = len(others) or 1
    if others and dimensions != len(others):
        raise SpiritlevelError(
            f"A slice of {dimensions} dimensions needs {dimensions} other networks in the 'to' "
            f"argument. Got {len(others)}. A plane through checkpoints takes three in all."
        )
    kind: Directions = directions  # type: ignore[assignment]
    return kind, dimensions


def _measures(measures: str | Sequence[str] | None, dimensions: int) -> list[str]:
    patterns = [measures] if isinstance(measures, str) else list(measures or ())
    if patterns and dimensions != 1:
        raise SpiritlevelError(
            "The 'measures' argument needs a line (dimensions=1): a plane has hundreds of points. "
            f"Got {', '.join(map(repr, patterns))} on a plane. Leave it out, or draw a line."
        )
    for pattern in patterns:
        cards(pattern)  # raises for an unknown name, with a suggestion
    return patterns


def _names(names: Sequence[str] | None, count: int) -> list[str]:
    if names is None:
        return list(NAMES[:count]) if count > 1 else ["the network"]
    if isinstance(names, str) or len(names) != count:
        raise SpiritlevelError(
            f"The 'names' argument must hold one name for each network, {count} in all. "
            f"Got {brief(names)}."
        )
    return [str(name) for name in names]


def _record(
    workspace: Workspace,
    kind: str,
    slice_: Slice,
    axis: Sequence[float],
    values: Sequence[Height],
    labels: Sequence[str],
    settings: dict[str, Any],
) -> Landscape:
    size = len(slice_.directions)
    places = [(0.0,) * size, *(tuple(float(i == j) for j in range(size)) for i in range(size))]
    losses = tuple(height.loss for height in values)
    errors = tuple(height.error for height in values if height.error is not None)
    return Landscape(
        directions=kind,
        axes=tuple(
            Axis(w.name, tuple(axis), w.length, w.eigenvalue, w.residual, w.slope)
            for w in slice_.directions
        ),
        losses=losses,
        errors=errors if len(errors) == len(losses) else None,
        marks=tuple(map(Mark, labels, places)),
        notes=(*slice_.notes, *_remarks(workspace, kind, losses)),
        settings=settings,
        cost=workspace.cost,
    )


def _remarks(workspace: Workspace, kind: str, losses: Sequence[float]) -> list[str]:
    notes = []
    normalized = any(
        isinstance(m, nn.modules.batchnorm._NormBase) and m.running_mean is not None
        for m in workspace.surface.model.modules()
    )
    if normalized and kind != "path":
        notes.append(
            "BatchNorm keeps its running statistics along the whole slice: they belong to the "
            "network itself and do not follow the moved weights."
        )
    gaps = sum(not math.isfinite(loss) for loss in losses)
    if gaps:
        notes.append(
            f"At {gaps} of {len(losses)} points the loss is not finite; pictures leave a gap there."
        )
    return notes
