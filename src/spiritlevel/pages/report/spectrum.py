"""The page of a spectrum: extreme eigenvalues, and the density of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...records.content import Cell, Chart, Column, Page, Section, Table
from ...records.measurements import VALUE
from ...verbs.spectra import Spectrum
from . import markup, numbers

CARDS = ("curvature.lambda_max", "curvature.lambda_min", "curvature.trace")
MATRICES = {"hessian": "the Hessian", "ggn": "the Gauss–Newton matrix"}
VISIBLE = 1e-6  # of the highest peak: below it the curve is round-off of a broadened node


def page_of(spectrum: Spectrum, *, title: str = "") -> Page:
    """The page of one network's spectrum."""
    pairs, density = spectrum.eigenvalues, spectrum.density
    settings = {} if pairs is None else pairs.settings
    facts = numbers.subject_of(settings)
    if pairs is not None:
        facts["matrix"] = _matrix(settings)
        facts["parameters"] = f"{sum(settings['sizes'].values()):,}"
    means = [] if density is None else density.describe()
    sections = [Section("density", "All eigenvalues", [_figure(spectrum), *means])]
    if pairs is not None:
        sections.insert(0, Section("eigenvalues", "Extreme eigenvalues", pairs.describe()))
    sections += numbers.about(CARDS)
    return Page(
        title=title or f"Spectrum of {_matrix(settings)}",
        lead=_lead(spectrum, settings),
        highlights=[text] if (text := numbers.warning(settings)) else [],
        facts=facts,
        settings=numbers.settings_of(settings),
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
        digits = Column("eigenvalue", form=VALUE).digits
        ends = {
            "largest": f"the largest eigenvalue is {markup.number(largest, digits)}",
            "smallest": f"the smallest eigenvalue is {markup.number(smallest, digits)}",
        }
        said = " and ".join(text for end, text in ends.items() if which in (end, "both"))
        sure = "" if all(pairs.converged) else ", not all of them converged"
        parts.append(f"Of {_matrix(settings)}, {said}{sure}.")
    if density is not None:
        parts.append(f"The density covers all {density.size:,} eigenvalues.")
    return " ".join(parts)


def _figure(spectrum: Spectrum) -> Chart:
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
        Column("eigenvalue", form=VALUE),
        Column("weight", "Share of all eigenvalues near here, estimated with this vector."),
    ]
    if density is None:
        caption = "Only the extreme eigenvalues were requested; --plot adds the density of all."
    else:
        count = len(density.nodes)
        vectors = "1 random vector" if count == 1 else f"{count} random vectors"
        caption = (
            f"As {vectors} estimate it, each eigenvalue broadened to 1 % of the range; the area is "
            "1. Lines mark the extreme eigenvalues that were computed one by one."
        )
    table = Table(columns, rows, id="density-table", title="Nodes and eigenvalues")
    return Chart("density-figure", "Density of eigenvalues", "density", data, table, caption)
