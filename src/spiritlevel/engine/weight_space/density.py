"""The spectral density of a symmetric operator by stochastic Lanczos quadrature."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError, brief
from ...records.content import ERROR, VALUE, Cell, Chart, Column, Part, Table, Text, Uncertain
from ...records.notebooks import Shown
from ...records.reading import Misread, Plain, read_as
from .lanczos import ROUNDOFF
from .long_rows import columns, dots

WIDTH = 0.01  # of the spectrum's range: the default broadening of a curve
VISIBLE = 1e-6  # of the highest peak: below it the curve is round-off of a broadened node
MARGIN = 6  # widths beyond the outermost nodes: a Gaussian has 1e-9 of its mass beyond that


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SpectralDensity(Shown, Plain):
    """The distribution of eigenvalues: each random vector gives nodes whose weights sum to 1.

    Each vector's row is a Gauss quadrature: exact for polynomials of degree below twice the steps.
    Rows that needed fewer nodes are padded with weight 0.
    """

    CALLED: ClassVar = "the density"
    HEADING: ClassVar = "Spectral density"

    nodes: Tensor  # shape: (num_vectors, steps), float64
    weights: Tensor  # shape: (num_vectors, steps), float64
    size: int  # of the matrix
    text: str = ""  # on how products were formed, where that is not exact up to rounding

    def moment(self, power: int) -> tuple[float, float | None]:
        """Mean and standard error over the vectors of Σ w θ^power; no error from one vector.

        Unbiased for Tr(H^power)/size if the vectors are normal, or random signs.

        >>> nodes = torch.tensor([[1.0], [3.0]]).double()
        >>> density = SpectralDensity(nodes, torch.ones_like(nodes), size=5)
        >>> density.moment(1)
        (2.0, 1.0)
        """
        num_vectors, steps = self.nodes.shape
        # After `size` steps the quadrature is exact for every power.
        if not (power >= 0 and (power < 2 * steps or steps >= self.size)):
            raise SpiritlevelError(
                f"The 'power' argument of SpectralDensity.moment must be in 0..{2 * steps - 1} for "
                f"{steps} steps. Got {brief(power)}. For higher powers take {power // 2 + 1} steps "
                "or more."
            )
        sums = (self.weights * self.nodes**power).sum(dim=1)
        if num_vectors == 1:
            return float(sums), None
        return float(sums.mean()), float(sums.std()) / math.sqrt(num_vectors)

    def curve(self, num_points: int = 1000, *, width: float | None = None) -> tuple[Tensor, Tensor]:
        """Grid and density on it, each node broadened to a Gaussian; its integral is 1.

        Args:
            width: Standard deviation of the Gaussian; by default 1% of the range of the nodes.

        >>> nodes, weights = torch.tensor([[[0.0, 1.0]], [[0.75, 0.25]]]).double()
        >>> density = SpectralDensity(nodes, weights, size=4)
        >>> grid, height = density.curve(width=0.05)
        >>> round(float(torch.trapezoid(height, grid)), 6)
        1.0
        >>> round(float(torch.trapezoid(height[grid < 0.5], grid[grid < 0.5])), 6)
        0.75
        """
        nodes, weights = self.nodes.flatten(), self.weights.flatten()
        low, high = float(nodes.min()), float(nodes.max())
        if width is None:
            # A range of only round-off, as for a multiple of the identity, is not a scale.
            width = WIDTH * max(high - low, WIDTH * max(abs(low), abs(high))) or WIDTH
        if not 0 < width < math.inf:
            raise SpiritlevelError(
                "The 'width' argument of SpectralDensity.curve must be positive. Got "
                f"{brief(width)}. Leave it out for {WIDTH:.0%} of the range {high - low:.3g}."
            )
        need = math.ceil((high - low) / width) + 2 * MARGIN + 1
        if num_points < need:  # a coarser grid would miss peaks and so falsify the integral
            raise SpiritlevelError(
                f"The 'num_points' argument of SpectralDensity.curve must be at least {need}, one "
                f"per width. Got {brief(num_points)}. Raise it, or raise width={width:.3g}."
            )
        low, high = low - MARGIN * width, high + MARGIN * width
        grid = torch.linspace(low, high, num_points, dtype=torch.float64)
        z = (grid[:, None] - nodes) / width
        heights = torch.exp(-z.square() / 2) @ weights
        return grid, heights / (len(self.nodes) * width * math.sqrt(2 * math.pi))

    def describe(self) -> list[Part]:
        """Means and sums of all eigenvalues and of their squares; one step gives no squares."""
        steps = self.nodes.shape[1]
        rows: list[list[Cell]] = []
        for power, names in (
            (1, ("mean", "sum, the trace")),
            (2, ("mean square", "sum of squares")),
        ):
            if power < 2 * steps or steps >= self.size:
                mean, error = self.moment(power)
                for name, times in zip(names, (1, self.size), strict=True):
                    off = None if error is None else times * error
                    rows.append([name, Uncertain(times * mean, off), off])
        columns = [
            Column(f"of all {self.size:,} eigenvalues"),
            Column("estimate", digits=VALUE),
            Column("±", "the standard error over the random vectors", digits=ERROR),
        ]
        title = "Means and sums over all eigenvalues"
        table = Table(columns, rows, id="moment-table", title=title).filled()
        products = "1 product" if steps == 1 else f"{steps} products"
        answer = (
            f"The density covers all {self.size:,} eigenvalues, as {self.vectors_in_words} with "
            f"{products} each estimate it."
        )
        return [Text([answer]), table, *([Text([self.text])] if self.text else [])]

    @property
    def vectors_in_words(self) -> str:
        """How many random vectors it is from."""
        count = len(self.nodes)
        return "1 random vector" if count == 1 else f"{count} random vectors"

    def to_dict(self) -> dict[str, Any]:
        """The density in plain types, ready for JSON."""
        return {
            "nodes": self.nodes.tolist(),
            "weights": self.weights.tolist(),
            "size": self.size,
        } | ({"text": self.text} if self.text else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SpectralDensity:
        """A density from what `to_dict` returned."""
        data = read_as(Mapping[str, Any], data, "the density")
        rows = {
            name: read_as(list[list[float]], data.get(name), f"the density's {name}")
            for name in ("nodes", "weights")
        }
        size = read_as(int, data.get("size"), "the density's size")
        steps = {len(row) for part in rows.values() for row in part}
        if size < 1 or len(steps) != 1 or 0 in steps or len(rows["nodes"]) != len(rows["weights"]):
            raise Misread("the density's nodes and weights must be two tables of one shape")
        nodes, weights = (torch.tensor(part, dtype=torch.float64) for part in rows.values())
        # Each row is a distribution, up to round-off of the recurrence.
        sums = weights.sum(dim=1)
        if not (
            nodes.isfinite().all() and (weights >= 0).all() and ((sums - 1).abs() < 1e-6).all()
        ):
            raise Misread("the density's nodes must be finite, and its weights sum to 1 in a row")
        return cls(nodes, weights, size, read_as(str, data.get("text", ""), "the density's text"))


def picture(
    density: SpectralDensity | None, eigenvalues: Sequence[float], converged: Sequence[bool]
) -> Chart:
    """The density, and on it the eigenvalues that were computed one by one."""
    data: dict[str, Any] = {"marks": eigenvalues, "converged": converged, "curve": None}
    rows: list[list[Cell]] = []
    caption = "Only the extreme eigenvalues were requested; --plot adds the density of all."
    if density is not None:
        grid, heights = density.curve()
        floor = VISIBLE * float(heights.max())
        data["curve"] = {"x": grid.tolist(), "y": heights.clamp(min=floor).tolist()}
        quadratures = zip(density.nodes.tolist(), density.weights.tolist(), strict=True)
        for index, quadrature in enumerate(quadratures, start=1):
            pairs = zip(*quadrature, strict=True)
            rows += [["density", index, node, weight] for node, weight in pairs if weight]
        caption = (
            f"As {density.vectors_in_words} estimate it, each eigenvalue broadened to 1 % of the "
            "range; the area is 1. Lines mark the extreme eigenvalues that were computed one by "
            "one."
        )
    rows += [["eigenvalue", None, value, None] for value in eigenvalues]
    columns = [
        Column("from"),
        Column("vector", "The random vector whose quadrature it belongs to."),
        Column("eigenvalue", digits=VALUE),
        Column("weight", "Share of all eigenvalues near here, estimated with this vector."),
    ]
    table = Table(columns, rows, id="density-table", title="Nodes and eigenvalues")
    return Chart("density-figure", "Density of eigenvalues", "density", data, table, caption)


class Quadrature:
    """One Lanczos recurrence per start vector, all side by side; run by `lockstep.solve`.

    Nothing is reorthogonalized, so only three vectors per start vector are in memory, products
    included, for any number of steps. Where orthogonality is lost, copies of an eigenvalue share
    its weight, which changes no integral. The nodes are therefore not a list of eigenvalues;
    `Lanczos` finds those.

    Args:
        start: Shape (num_vectors, size). Normal vectors reach every eigenvalue. Random signs may
            miss some in a small matrix, where they can be eigenvectors themselves.
        steps: Products with each vector; at most `size`.
        size: Of the whole vectors, where this process has a part of each.

    >>> from spiritlevel.engine.weight_space.lockstep import solve
    >>> diagonal = torch.tensor([5.0, 5.0, 1.0, 1.0])
    >>> run = Quadrature(torch.tensor([[1.0, -1.0, 1.0, 1.0]]), steps=3)
    >>> [density] = solve([run], lambda directions: {0: diagonal * directions[0]})
    >>> [round(x, 5) for x in density.nodes[0].tolist()]     # two suffice, the third is padding
    [1.0, 5.0, 5.0]
    >>> [round(x, 5) for x in density.weights[0].tolist()]
    [0.5, 0.5, 0.0]
    """

    def __init__(self, start: Tensor, *, steps: int, size: int | None = None) -> None:
        _check(start, steps)
        num_vectors, self._size = len(start), start.shape[1] if size is None else size
        self.products = 0
        self._steps = min(steps, self._size)
        self._step = 0
        self._eps = torch.finfo(start.dtype).eps
        self._diagonal = torch.zeros(num_vectors, self._steps, dtype=torch.float64)
        self._side = torch.zeros(num_vectors, self._steps, dtype=torch.float64)
        self._lengths = [self._steps] * num_vectors
        self._rows = torch.arange(num_vectors)  # the start vector of each unfinished row
        self._current = start.detach() / dots(start, start).sqrt().to(start)[:, None]
        self._previous = torch.zeros_like(self._current)

    @property
    def done(self) -> bool:
        """Whether all vectors have taken all steps or exhausted their subspace."""
        return self._step == self._steps or not len(self._rows)

    def directions(self) -> Tensor:
        """The unit rows to multiply next, read-only; fewer once some have finished."""
        return self._current[:0] if self.done else self._current

    @torch.no_grad()
    def update(self, products: Tensor) -> None:
        """Take H times each of `directions`."""
        if self.done or products.shape != self._current.shape:
            raise SpiritlevelError(
                f"The 'products' argument of Quadrature.update must have shape "
                f"{tuple(self.directions().shape)}, one row for each of directions(). "
                f"Got {tuple(products.shape)}. Call directions() again."
            )
        rows, step = self._rows, self._step
        alpha = dots(products, self._current)
        if not alpha.isfinite().all():
            raise SpiritlevelError(
                f"The 'products' argument of Quadrature.update must be finite. Got NaN or infinity "
                f"after {self.products} finite products. Check that loss and gradient are finite "
                f"at these parameters, or compute the products in float64."
            )
        back = self._side[rows, step - 1] if step else torch.zeros(len(rows), dtype=torch.float64)
        a, b = alpha[:, None], back.to(alpha)[:, None]
        following = self._previous  # reuses its memory: the older vector is not needed again
        for part in columns(3 * len(rows), products):
            following[:, part] = (
                products[:, part].double()
                - a * self._current[:, part].double()
                - b * following[:, part].double()
            )
        beta = dots(following, following).sqrt()
        self.products += len(rows)
        self._step += 1
        self._diagonal[rows, step] = alpha.cpu()
        self._side[rows, step] = beta.cpu()

        # ‖T‖ from its largest entries: a β below its round-off means an invariant subspace.
        scale = torch.maximum(self._diagonal[rows].abs(), self._side[rows]).amax(dim=1)
        going = beta.cpu() > ROUNDOFF * self._eps * scale
        for row in rows[~going].tolist():
            self._lengths[row] = self._step
        following /= beta.to(following)[:, None]
        self._current, self._previous = following, self._current
        if not going.all():
            self._rows = rows[going]
            self._current = self._current[going.to(following.device)]
            self._previous = self._previous[going.to(following.device)]

    def result(self) -> SpectralDensity:
        """Nodes and weights of every start vector, from the steps taken so far."""
        if not self._step:
            raise SpiritlevelError(
                "Quadrature.result must come after the first update. Got 0 products. Call solve."
            )
        nodes, weights = torch.zeros_like(self._diagonal), torch.zeros_like(self._diagonal)
        for row, length in enumerate(self._lengths):
            k = min(length, self._step)
            side = self._side[row, : k - 1]
            T = self._diagonal[row, :k].diag() + side.diag(1) + side.diag(-1)
            values, vectors = torch.linalg.eigh(T)
            nodes[row, :k], weights[row, :k] = values, vectors[0].square()
            nodes[row, k:] = values[-1]  # weight 0, where it does not widen the range
        return SpectralDensity(nodes, weights, self._size)


def _check(start: Tensor, steps: int) -> None:
    if start.dim() != 2 or not start.numel() or start.dtype not in (torch.float32, torch.float64):
        raise SpiritlevelError(
            f"The 'start' argument of Quadrature must be a float32 or float64 tensor of shape "
            f"(num_vectors, size). Got {start.dtype} of shape {tuple(start.shape)}. "
            f"Typical: ten rows of normal numbers."
        )
    norms = dots(start.detach(), start.detach())
    if not (norms.isfinite() & (norms > 0)).all():
        raise SpiritlevelError(
            f"The 'start' argument of Quadrature must have finite rows other than 0. Got squared "
            f"norms {norms.tolist()}. Typical: ten rows of normal numbers."
        )
    if steps < 1:
        raise SpiritlevelError(
            f"The 'steps' argument of Quadrature must be at least 1. Got {brief(steps)}. Typical: "
            "100."
        )
