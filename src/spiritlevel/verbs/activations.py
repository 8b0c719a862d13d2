"""The diagonal of the curvature in a layer's output, sample by sample.

The output gets a summand of zeros, and the loss is differentiated in that. Where the rest of the
network is piecewise linear in it, which its graph shows, the Hessian is the Gauss–Newton matrix,
whose diagonal is Σ_k σ_k (Jᵀs_k)²: one backward for each column of the output curvature. Elsewhere
the Hessian takes one product for each entry of the output.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ..ground.errors import SpiritlevelError, brief, suggestion
from ..ground.need import is_whole, need, or_none, whole
from ..math.curvature import scaled_to_one
from ..measures.setup import OnData, Setup
from ..measures.verb import verb
from ..model.arguments import CHECKED_LATER, ArgumentCheck
from ..model.linearity import bends
from ..model.model_state import twice_differentiable
from ..model.output_checks import refuse_unless_counted
from ..model.surface import Surface
from ..records.content import VALUE, Notes, Part, Text, number
from ..records.measurements import Cost
from ..records.notebooks import Shown
from .operator.curvature_operator import KIND, Kind, check_kind, matrix_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_COLUMNS = 4096  # backwards that a pass may take
MOST_ENTRIES = 4096  # of an output, each of which takes a product where the network bends
GRAPH_FACTOR = 4  # memory of a gradient's graph, relative to a forward


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ActivationCurvature(Shown):
    """The diagonal of the Hessian or GGN of every sample's own loss in one layer's output.

    The numbers are exact up to round-off. A channel's number is the sum over its positions: the
    pixels of a feature map, the tokens of a sequence.
    """

    HEADING: ClassVar = "Curvature in a layer's output"

    layer: str
    kind: Kind
    diagonal: Tensor  # of the mean loss, in the shape of one sample's output, float64
    samples: Tensor  # by sample and channel; their mean belongs to the mean loss
    weights: Tensor  # of the samples in the mean loss, 1 on average: some have more targets
    bends: str  # by what the rest of the network bends; empty if it is piecewise linear
    cost: Cost
    settings: dict[str, Any]

    @property
    def channels(self) -> Tensor:
        """The diagonal for the mean loss, summed over the positions of each channel."""
        return self.samples.mean(dim=0)

    @property
    def trace(self) -> float:
        """The trace for the mean loss: the sum over all channels."""
        return float(self.channels.sum())

    @property
    def data_stderr(self) -> Tensor:
        """How much other samples would change each channel; nan for a single sample."""
        count = len(self.samples)
        if count < 2:
            return torch.full_like(self.channels, torch.nan)
        # of a ratio of two means: the scatter around the ratio
        apart = self.samples - self.weights[:, None] * self.channels
        return apart.std(dim=0) / count**0.5

    def describe(self) -> list[Part]:
        """The trace, the channels that have most of it, and what was counted."""
        order = self.channels.argsort(descending=True)[:5].tolist()
        largest = ", ".join(f"{i}: {number(float(self.channels[i]), 3)}" for i in order)
        count = int(self.settings["num_samples"])
        matrix = "Hessian" if self.kind == "hessian" else "GGN"
        lines = [
            f"{self.layer}: trace of the {matrix} in its output {number(self.trace, VALUE)}, exact",
            f"{len(self.channels)} channels, largest {largest}",
        ]
        return [Text(lines), Notes(self.cost.passes(count), count)]


@dataclasses.dataclass
class _Summand:
    """The zeros that were added to the layer's output in the last run."""

    calls: list[Tensor] = dataclasses.field(default_factory=list)

    def hook(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """Replace the output, or the first tensor of several."""
        first = output if isinstance(output, Tensor) else _first_tensor(output)
        zeros = torch.zeros_like(first).requires_grad_()
        self.calls.append(zeros)
        if isinstance(output, Tensor):
            return output + zeros
        return type(output)([first + zeros, *output[1:]])


def _first_tensor(output: Any) -> Tensor:
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    raise SpiritlevelError(
        "The 'layer' argument must name a module that returns a tensor, or a tuple that begins "
        f"with one. Got {type(output).__name__}. Name a module inside of it."
    )


@verb(
    layer=CHECKED_LATER,
    kind=KIND,
    channel_dim=ArgumentCheck(or_none(is_whole), "a whole number, or None"),
)
def activation_curvature(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    layer: str,
    kind: Kind = "hessian",
    channel_dim: int | None = None,
    **shared: Unpack[OnData],
) -> ActivationCurvature:
    """The curvature of the loss in the output of one layer. The model is left exactly as it was.

    Args:
        layer: the path of a module that is called once for every batch.
        kind: "hessian", "ggn", or "fisher" (the GGN, for losses that are log-likelihoods).
        channel_dim: the dimension of the output that holds the channels; None takes 1 for outputs
            of convolutions and images, and the last one elsewhere.

    The other arguments are those of `measure`. The data of this process alone is measured.

    >>> import spiritlevel as sl
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1, bias=False)).double()
    >>> x, y = torch.eye(3).double(), torch.zeros(3, 1).double()
    >>> found = sl.activation_curvature(net, (x, y), layer="0", loss="mse")     # 2 w_j²
    >>> bool(torch.allclose(found.channels, 2 * net[1].weight[0].detach() ** 2))
    True
    """
    check_kind(kind)
    workspace = dataclasses.replace(setup, distributed=False).workspace(model, data)
    surface = workspace.surface
    module = _module(surface.model, layer)
    found: list[tuple[Tensor, Tensor]] = []  # diagonals of the samples of a chunk, weights
    bent = ""
    with surface.preserved(), twice_differentiable():
        matrix = matrix_of(kind, surface)
        chunk = workspace.plan.footprint.chunk(workspace.memory, sweep=True)
        chunk = max(1, chunk // GRAPH_FACTOR)
        for where, batch in surface.chunks(chunk):
            with torch.enable_grad(), _added(module) as summand:
                outputs, targets = surface.outputs(batch, where=where)
            zeros = _only(summand.calls, layer, len(outputs))
            _refuse_unused(outputs, zeros, layer)
            reason = bends(outputs, {id(zeros): layer}).get(layer, "")
            if matrix == "hessian" and reason:
                bent = bent or reason
                values = _hessian_diagonal(surface, outputs, targets, zeros, layer)
            else:
                values = _ggn_diagonal(surface, outputs, targets, zeros)
            _same_shape(found, values, layer)
            found.append((values, surface.loss.weights(outputs.detach(), targets).double()))
        settings = workspace.settings() | {"layer": layer, "kind": kind}
    weights = torch.cat([each.reshape(len(v), -1).sum(dim=1) for v, each in found]).cpu()
    refuse_unless_counted(bool(weights.any()))
    mean_weight = float(weights.mean())
    diagonals = torch.cat([values for values, _ in found]).cpu() / mean_weight
    dim = _channel_dim(module, diagonals, channel_dim)
    others = [d for d in range(1, diagonals.dim()) if d != dim]
    return ActivationCurvature(
        layer=layer,
        kind=kind,
        diagonal=diagonals.mean(dim=0),
        samples=diagonals.sum(dim=others) if others else diagonals,
        weights=weights / mean_weight,
        bends=bent,
        cost=workspace.cost,
        settings=settings,
    )


def _module(model: nn.Module, layer: str) -> nn.Module:
    modules = dict(model.named_modules())
    if not isinstance(layer, str) or layer not in modules:
        raise SpiritlevelError(
            f"The 'layer' argument must be the path of a module. Got {brief(layer)}."
            f"{suggestion(layer, modules, most=3)} See dict(model.named_modules())."
        )
    return modules[layer]


@contextlib.contextmanager
def _added(module: nn.Module) -> Iterator[_Summand]:
    summand = _Summand()
    handle = module.register_forward_hook(summand.hook)
    try:
        yield summand
    finally:
        handle.remove()


def _only(calls: list[Tensor], layer: str, num_samples: int) -> Tensor:
    if len(calls) != 1:
        raise SpiritlevelError(
            f"The 'layer' argument must name a module that is called once for every batch. "
            f"{layer!r} is called {len(calls)} times. Name a module around it, or inside of it."
        )
    (zeros,) = calls
    if zeros.dim() < 2 or len(zeros) != num_samples or not zeros.is_floating_point():
        raise SpiritlevelError(
            f"The output of 'layer' must have the samples in its first dimension and at least two "
            f"dimensions. That of {layer!r} has the shape {tuple(zeros.shape)} for {num_samples} "
            "samples. Name another module."
        )
    return zeros


def _refuse_unused(outputs: Tensor, zeros: Tensor, layer: str) -> None:
    ones = torch.ones_like(outputs)
    found = torch.autograd.grad(outputs, [zeros], ones, retain_graph=True, allow_unused=True)
    if found[0] is None:
        raise SpiritlevelError(
            f"The 'layer' argument must name a module whose output reaches the network's. That of "
            f"{layer!r} does not. Name another one."
        )


def _ggn_diagonal(surface: Surface, outputs: Tensor, targets: Tensor, zeros: Tensor) -> Tensor:
    curvature = surface.loss.curvature(outputs.detach().double(), targets)
    if curvature.num_columns > MOST_COLUMNS:
        raise SpiritlevelError(
            f"activation_curvature takes one backward for each column of the output curvature, at "
            f"most {MOST_COLUMNS}. Got {curvature.num_columns}. Cut the sequences or the classes."
        )
    total = torch.zeros(zeros.shape, dtype=torch.float64, device=zeros.device)
    ones = [1] * (zeros.dim() - 1)
    for column, sign in curvature.columns():
        scaled, size = scaled_to_one(column)
        cotangent = scaled.reshape(outputs.shape).to(outputs.dtype)
        (pulled,) = surface.pull(outputs, cotangent, [zeros])
        assert pulled is not None  # `_refuse_unused` looked
        factor = (sign[:, None].double() * size.double().square()).reshape(-1, *ones)
        total += factor * pulled.double().square()
    return total


def _hessian_diagonal(
    surface: Surface, outputs: Tensor, targets: Tensor, zeros: Tensor, layer: str
) -> Tensor:
    num_entries = zeros[0].numel()
    if num_entries > MOST_ENTRIES:
        raise SpiritlevelError(
            f"The Hessian in the output of {layer!r} takes one product for each of its entries, at "
            f"most {MOST_ENTRIES}, because the rest of the network bends. Got {num_entries:,}. Use "
            "kind='ggn', or a layer behind the last one that bends."
        )
    with torch.enable_grad():
        total = surface.loss.values(outputs.double(), targets).sum()
        (gradient,) = torch.autograd.grad(total, [zeros], create_graph=True)
    rows, columns = gradient.flatten(1), []
    for i in range(num_entries):
        (product,) = torch.autograd.grad(rows[:, i].sum(), [zeros], retain_graph=True)
        columns.append(product.flatten(1)[:, i].double())
    surface.cost += Cost(products=len(zeros) * num_entries)
    return torch.stack(columns, dim=1).reshape(zeros.shape)


def _same_shape(found: list[tuple[Tensor, Tensor]], values: Tensor, layer: str) -> None:
    if found and found[0][0].shape[1:] != values.shape[1:]:
        raise SpiritlevelError(
            f"The output of {layer!r} must have the same shape for all samples. Got "
            f"{tuple(found[0][0].shape[1:])} and {tuple(values.shape[1:])}. Pad the samples to one "
            "length."
        )


def _channel_dim(module: nn.Module, diagonals: Tensor, asked: int | None) -> int:
    dims = diagonals.dim()
    if asked is None:
        known = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)
        return 1 if dims >= 4 or isinstance(module, known) else dims - 1
    is_other = whole(least=-dims, most=dims - 1)
    wanted = f"a dimension of the layer's output other than the first, from 1 to {dims - 1}"
    need("channel_dim", asked, lambda dim: is_other(dim) and dim % dims > 0, wanted)
    return asked % dims
