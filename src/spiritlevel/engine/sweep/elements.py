"""Factor columns of elementwise functions: what a smooth activation adds to the GGN.

At each site (`model/elementwise.py`) the Hessian of what follows gains diag(c), and so one signed
column per element of a sample: e_i, whose square counts c_i times. They go down the same sweep as
the columns of the loss, from the site to the layers before it.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from ...math.curvature import scaled_to_one
from ...math.signs import random_signs
from ...model.elementwise import ElementwiseBends, Site, bend_of, elementwise_bends
from ...model.layers import Layout, possible_layouts
from ...model.linearity import note_reasons
from ...model.surface import Surface
from ..routes import row_sizes, rows_follow, sample_scales, scaled
from .pulling import Pulling, Scaled
from .sums import SweepSums

CHECKED = 32  # columns of all sites that a second look compares: each takes a pass of its own


@dataclasses.dataclass(frozen=True)
class SiteColumns:
    """The columns of one site in one chunk."""

    site: Site
    places: Tensor  # of the elements of each sample in the flattened site, shape: (N, elements)
    weights: Tensor  # c of these elements, float64
    checked: frozenset[int]  # the elements that a second look compares
    rounding: Tensor  # what may be rounding of all that bends and passes here, and how much that is

    def columns(self, *, checked: bool) -> Iterator[Scaled]:
        """One for each element that bends in any sample: 1 there, and what squares count.

        Either those that a second look compares, or all others.
        """
        size = self.site.shape.numel()
        bent = self.weights.any(dim=0).nonzero().squeeze(1).tolist()
        for element in bent:
            if (element in self.checked) is not checked:
                continue
            unit = torch.zeros(size, dtype=self.site.dtype, device=self.weights.device)
            unit[self.places[:, element]] = 1.0
            yield unit.reshape(self.site.shape), self.weights[:, element]

    def probe(self, signs: Tensor) -> Iterator[Scaled]:
        """Two in place of all: Σ ± √c over the elements with a positive c, and over all others.

        `signs` are those of each sample, in the shape of the places.
        """
        for half in (1.0, -1.0):
            unit, size = scaled_to_one(signs * (half * self.weights).clamp(min=0.0).sqrt())
            column = torch.zeros(
                self.site.shape.numel(), dtype=self.site.dtype, device=self.weights.device
            )
            column[self.places] = unit.to(column.dtype)
            yield column.reshape(self.site.shape), half * size.squeeze(1).square()


class Elements:
    """The sums of a sweep that has these columns too, and the columns of its current chunk."""

    def __init__(self, surface: Surface, names: dict[int, str], sums: SweepSums) -> None:
        """`names` are those of the parameters by id."""
        self.surface, self.names, self.sums = surface, names, sums
        # parameters that also bend otherwise, and by what: the sums do not have their Hessian
        self.others: dict[str, str] = {}
        self._sites: list[Site] = []
        self._columns: list[SiteColumns] = []

    def find(self, outputs: Tensor, *, linear_slices: bool) -> dict[str, str]:
        """Find the sites of a chunk; returns the parameters that bend its outputs, and by what."""
        found = elementwise_bends(outputs, self.names, linear_slices=linear_slices)
        self.others |= found.others
        self._sites = found.sites
        return found.bends

    def weigh(self, outputs: Tensor, targets: Tensor, generic: Collection[str]) -> None:
        """Prepare the columns; parameters on the `generic` route hear nothing of them."""
        self._columns = []
        deaf = sum(1 << i for i, name in enumerate(self.names.values()) if name in generic)
        found = columns_of_sites(self.surface, outputs, targets, self._sites)
        for number, (site, columns) in enumerate(zip(self._sites, found, strict=True)):
            missed = site.behind if columns is None else site.behind & deaf
            note_reasons(self.others, self.names, missed, site.nodes[0].name())
            if columns is not None:
                self._columns.append(columns)
                self.surface.lost.see_bends(number, columns.rounding)

    def pull(self, pulling: Pulling, *, checked: bool) -> None:
        """Pull columns of every site from there to its layers."""
        for number, columns in enumerate(self._columns):
            below = pulling.below(columns.site.edge, number)
            below.pull_scaled(columns.columns(checked=checked))

    def pull_probe(self, pulling: Pulling, seed: int, stream: int, samples: Tensor) -> None:
        """Pull a probe of the columns of every site, with signs of their own for all samples."""
        if not self._columns:
            return
        counts = [columns.places.shape[1] for columns in self._columns]
        signs = random_signs(seed, stream, samples, sum(counts), torch.float64).split(counts, dim=1)
        for number, (columns, own) in enumerate(zip(self._columns, signs, strict=True)):
            pulling.below(columns.site.edge, number).pull_scaled(columns.probe(own))

    def forget(self) -> None:
        """Let the graph of the chunk go."""
        self._sites, self._columns = [], []


def work_of_sites(
    found: ElementwiseBends, names: dict[int, str], generic: Collection[str], num_samples: int
) -> tuple[int, float, float]:
    """How many columns complete the GGN to the Hessian, how many passes these take, and a probe.

    None, and infinitely many, where they do not do, or the GGN needs nothing.
    """
    bent = [name for name in names.values() if name in found.bends]
    if not bent or found.others or any(name in generic for name in bent):
        return 0, math.inf, math.inf
    numbers = [site.shape.numel() // num_samples for site in found.sites]
    shares = [site.share for site in found.sites]
    passes = math.ceil(sum(a * b for a, b in zip(numbers, shares, strict=True)))
    return sum(numbers), passes, 2 * sum(shares)


def columns_of_sites(
    surface: Surface, outputs: Tensor, targets: Tensor, sites: Sequence[Site]
) -> list[SiteColumns | None]:
    """The columns of every site; None for one whose samples cannot be told apart.

    No layer may listen meanwhile.
    """
    if not sites:
        return []
    with torch.enable_grad():
        z = outputs.detach().double().requires_grad_()
        loss = surface.loss.values(z, targets).sum()
    (slope,) = torch.autograd.grad(loss, z)
    unit, size = scaled_to_one(slope.flatten(1))
    unit = unit.to(outputs.dtype).reshape(outputs.shape)
    # of the loss beside its squared slope, in place of which its columns pass the sites
    curvature = surface.loss.curvature(outputs.detach().double(), targets).trace()
    squares = slope.flatten(1).square().sum(dim=1, keepdim=True)
    curved = curvature.reshape(len(outputs), -1).sum(dim=1, keepdim=True)
    curved = torch.where(squares > 0, curved / squares, 0.0)
    scales = sample_scales(outputs, len(outputs))
    signals = _signals(surface, outputs, unit, sites)
    again = _signals(surface, outputs, scaled(unit, scales), sites)
    found: list[SiteColumns | None] = []
    for number, (site, before, after) in enumerate(zip(sites, signals, again, strict=True)):
        layout = _layout(site, before, after, scales)
        if layout is None:
            found.append(None)
            continue
        numbers = torch.arange(site.shape.numel(), device=outputs.device).reshape(site.shape)
        places = layout.split(numbers).reshape(len(outputs), -1)
        *of_nodes, slope = before
        bend = bend_of(site, dict(zip(site.nodes, of_nodes, strict=True)))
        parts = bend.curvature, bend.lost, slope.double(), bend.lost_slope
        weights, lost, slope, lost_slope = (part.take(places) * size for part in parts)
        sums = [
            lost,
            weights.abs(),
            2 * curved * (slope * lost_slope).abs(),
            curved * slope.square(),
        ]
        rounding = torch.stack([each.sum() for each in sums]).view(2, 2).sum(dim=0)
        count = places.shape[1]
        few = random.Random(number).sample(range(count), min(count, CHECKED // len(sites) + 1))
        found.append(SiteColumns(site, places, weights, frozenset(few), rounding))
    return found


def _signals(
    surface: Surface, outputs: Tensor, cotangent: Tensor, sites: Sequence[Site]
) -> list[list[Tensor]]:
    """The gradients at the result of every function and at the site itself, by site."""
    edges = [[*(GradientEdge(node, 0) for node in site.nodes), site.edge] for site in sites]
    pulled = iter(surface.pull(outputs, cotangent, [edge for each in edges for edge in each]))
    zeros = [torch.zeros(site.shape, dtype=site.dtype, device=outputs.device) for site in sites]
    return [
        [zero if (found := next(pulled)) is None else found for _ in each]
        for each, zero in zip(edges, zeros, strict=True)
    ]


def _layout(site: Site, before: list[Tensor], after: list[Tensor], scales: Tensor) -> Layout | None:
    """Where the samples are in the site: a sample's gradients must follow its scale."""
    for layout in possible_layouts(site.shape, len(scales), leading=len(site.shape)):
        sizes = [
            torch.stack([row_sizes(signal, layout.dim) for signal in signals]).sum(dim=0)
            for signals in (before, after)
        ]
        if rows_follow(sizes[0], sizes[1], layout, scales, site.dtype):
            return layout
    return None
