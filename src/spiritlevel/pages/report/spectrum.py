"""The page of a spectrum: extreme eigenvalues, and the density of all of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import torch

from ...analysis.spectra import Eigenvalues
from ...engine.weight_space.density import SpectralDensity
from ...errors import SpiritlevelError
from ...results import Cost
from . import markup, numbers
from .parts import Cards, Cell, Column, Figure, Page, Part, Section, Table, Text

FORMAT = "spiritlevel-spectrum-1"
CARDS = ("curvature.lambda_max", "curvature.lambda_min", "curvature.trace")
MATRICES = {"hessian": "the Hessian", "ggn": "the Gauss–Newton matrix"}
VISIBLE = 1e-6  # of the highest peak: below it the curve is round-off of a broadened node


@dataclasses.dataclass(frozen=True)
class Spectrum:
    """What `spiritlevel spectrum` found: eigenvalues, a density, or both."""

    eigenvalues: Eigenvalues | None = None
    density: SpectralDensity | None = None

    def __post_init__(self) -> None:
        if self.eigenvalues is None and self.density is None:
            raise SpiritlevelError(
                "A Spectrum must have eigenvalues, a density or both. Got neither. Pass what "
                "spiritlevel.eigenvalues or spiritlevel.density returned."
            )

    def to_dict(self) -> dict[str, Any]:
        """Everything but the vectors, in plain types."""
        found = {"eigenvalues": self.eigenvalues, "density": self.density}
        return {"format": FORMAT} | {k: v.to_dict() for k, v in found.items() if v is not None}

    def to_json(self, *, indent: int | None = 2) -> str:
        """As JSON text; `Spectrum.from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Spectrum:
        """Read what `to_json` wrote; the eigenvectors are not in it."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Spectrum:
        """The inverse of `to_dict`."""
        pairs, density = data.get("eigenvalues"), data.get("density")
        if pairs is not None:
            values = [float(value) for value in pairs["values"]]
            pairs = Eigenvalues(
                values=values,
                residuals=[float(value) for value in pairs["residuals"]],
                converged=[bool(value) for value in pairs["converged"]],
                vectors=torch.empty(len(values), 0),
                names=(),
                cost=Cost(**pairs["cost"]),
                settings=dict(pairs["settings"]),
            )
        return cls(pairs, None if density is None else SpectralDensity.from_dict(density))


def page_of(spectrum: Spectrum, *, title: str = "") -> Page:
    """The page of one network's spectrum."""
    pairs, density = spectrum.eigenvalues, spectrum.density
    settings = {} if pairs is None else pairs.settings
    facts = numbers.facts(settings)
    if pairs is not None:
        facts["matrix"] = _matrix(settings)
        facts["parameters"] = f"{sum(settings['sizes'].values()):,}"
        count = int(settings["num_samples"])
        facts["counted cost"] = f"{pairs.cost.passes(count)} over the data, for the eigenvalues"
    sections = [Section("density", "All eigenvalues", [_figure(spectrum), *_moments(density)])]
    if pairs is not None:
        sections.insert(0, Section("eigenvalues", "Extreme eigenvalues", _pairs(pairs)))
    sections += [
        Section("caveats", "When these numbers mislead", [numbers.caveats(CARDS)]),
        Section("cards", "The measures", [Cards(CARDS)]),
    ]
    return Page(
        title=title or f"Spectrum of {_matrix(settings)}",
        lead=_lead(spectrum, settings),
        facts=facts,
        sections=sections,
    )


def _matrix(settings: Mapping[str, Any]) -> str:
    named = settings.get("matrix", "hessian")
    return MATRICES.get(named, str(named))


def _lead(spectrum: Spectrum, settings: Mapping[str, Any]) -> str:
    parts = []
    pairs, density = spectrum.eigenvalues, spectrum.density
    if pairs is not None and pairs.values:
        largest, smallest = max(pairs.values), min(pairs.values)
        which = settings.get("which", "both")
        ends = {
            "largest": f"the largest eigenvalue is {markup.number(largest)}",
            "smallest": f"the smallest eigenvalue is {markup.number(smallest)}",
        }
        said = " and ".join(text for end, text in ends.items() if which in (end, "both"))
        sure = "" if all(pairs.converged) else ", not all of them converged"
        parts.append(f"Of {_matrix(settings)}, {said}{sure}.")
    if density is not None:
        parts.append(f"The density covers all {density.size:,} eigenvalues.")
    return " ".join(parts)


def _pairs(pairs: Eigenvalues) -> list[Part]:
    count = pairs.settings.get("num_samples")
    found = zip(pairs.values, pairs.residuals, pairs.converged, strict=True)
    rows: list[list[Cell]] = [
        [value, value - residual, value + residual, residual, converged, count]
        for value, residual, converged in sorted(found, reverse=True)
    ]
    columns = [
        Column("eigenvalue"),
        Column("from", "An eigenvalue lies between these two ends."),
        Column("to", "An eigenvalue lies between these two ends."),
        Column("residual", "How far the nearest eigenvalue may be."),
        Column("converged", "Whether the residual is as small as was asked for."),
        numbers.COUNT,
    ]
    parts: list[Part] = [Table("eigenvalue-table", "Largest first", columns, rows)]
    if not all(pairs.converged):
        parts.append(Text(["Raise --max-passes for smaller residuals."]))
    return parts


def _figure(spectrum: Spectrum) -> Figure:
    pairs, density = spectrum.eigenvalues, spectrum.density
    marks = [] if pairs is None else list(zip(pairs.values, pairs.converged, strict=True))
    data: dict[str, Any] = {"marks": [value for value, _ in marks], "curve": None}
    data["converged"] = [converged for _, converged in marks]
    rows: list[list[Cell]] = []
    if density is not None:
        grid, heights = density.curve()
        visible = [max(float(h), VISIBLE * float(heights.max())) for h in heights]
        data["curve"] = {"x": grid.tolist(), "y": visible}
        for index, (nodes, weights) in enumerate(
            zip(density.nodes.tolist(), density.weights.tolist(), strict=True)
        ):
            rows += [
                ["density", index + 1, node, weight]
                for node, weight in zip(nodes, weights, strict=True)
                if weight
            ]
    rows += [["eigenvalue", None, value, None] for value in data["marks"]]
    columns = [
        Column("from"),
        Column("vector", "The random vector whose quadrature it belongs to."),
        Column("eigenvalue"),
        Column("weight", "Share of all eigenvalues near here, as this vector sees it."),
    ]
    if density is None:
        caption = "Only the extreme eigenvalues were asked for; --plot adds the density of all."
    else:
        count = len(density.nodes)
        vectors = "1 random vector" if count == 1 else f"{count} random vectors"
        caption = (
            f"As {vectors} see it, each eigenvalue broadened to 1 % of the range; the area is 1. "
            "Lines mark the extreme eigenvalues that were found one by one."
        )
    table = Table("density-table", "Nodes and eigenvalues", columns, rows)
    return Figure("density-figure", "Density of eigenvalues", "density", data, table, caption)


def _moments(density: SpectralDensity | None) -> list[Part]:
    if density is None:
        return []
    rows: list[list[Cell]] = []
    for power, name in ((1, "mean eigenvalue"), (2, "mean squared eigenvalue")):
        mean, stderr = density.moment(power)
        total = None if stderr is None else density.size * stderr
        rows.append([name, mean, stderr, density.size * mean, total, len(density.nodes)])
    columns = [
        Column("what"),
        Column("value"),
        Column("standard error", "Over the random vectors; a dash where there was only one."),
        Column("times the number of eigenvalues", "The trace of the matrix, and of its square."),
        Column("its standard error"),
        Column("random vectors"),
    ]
    return [Table("moment-table", "Means over all eigenvalues", columns, rows)]
