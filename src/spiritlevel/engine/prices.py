"""What measures cost in forward-backwards over the data, estimated before they are started.

What is certain beforehand (the sweep over all columns, the steps of a search) is counted. How many
probes an estimate takes shows only in its draws; typical numbers stand for it here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from ..records.measurements import Cost
from .data_pass import Needs
from .purse import FORWARD_BACKWARDS, PASS, PRODUCT
from .sample_probes import PILOT_IF_SKEWED, SampleProbes
from .sweep.sums import RowKind
from .weight_space.probes import PILOT
from .weight_space.products import SMALL
from .workspace import Workspace

# of a sample: the plan, and the looks at derivatives; a later call recalls what they found
LOOKS, PRODUCT_LOOK = 36.0, 25.0
# Samples × probes that bring an estimate to 5 %; networks differ by a factor of 2 either way.
TYPICAL = 450
ENOUGH_SAMPLES = 64  # from which on two probes usually give an interval
STAGES = 2  # passes that bring further probes
LANCZOS, LEAST_LANCZOS = 10, 6  # products of a largest eigenvalue


@dataclasses.dataclass(frozen=True)
class Price:
    """What measures that share their work cost, at least and probably."""

    measures: tuple[str, ...]
    least: float
    likely: float
    rows: RowKind | None = None  # whose probes they use; the first part to do so pays for them


@dataclasses.dataclass(frozen=True)
class Prices:
    """The parts of a call, in the order in which a budget is spent on them."""

    shared: float  # looks at the model, and the pass that everything rests on
    shared_text: str
    parts: tuple[Price, ...]
    budget: float = math.inf
    left_out: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def likely(self) -> float:
        """What the call will probably cost in all."""
        return min(self.budget, self.shared + sum(part.likely for part in self.parts))

    def in_words(self) -> str:
        """One line: how much in all, what for, and what is left out.

        >>> Prices(6.6, "9 columns", (Price(("a.b",), 4.0, 8.0),), 20.0, {"c.d": 61.0}).in_words()
        'about 15 forward-backwards: 6.6 for 9 columns, 8 for a.b; the budget is 20; left out: \
c.d (about 61)'
        """
        parts = [f"{self.shared:.2g} for {self.shared_text}"]
        parts += [
            f"{part.likely:.2g} for {_names(part.measures)}" for part in self.parts if part.likely
        ]
        text = f"about {self.likely:.2g} {FORWARD_BACKWARDS}: {', '.join(parts)}"
        if math.isfinite(self.budget):
            text += f"; the budget is {self.budget:g}"
        if self.left_out:
            dear = (f"{name} (about {price:.2g})" for name, price in self.left_out.items())
            text += f"; left out: {', '.join(dear)}"
        return text

    def within(self, budget: float) -> Prices:
        """Those that fit into a budget with what they take at least; the others are left out."""
        left, parts, left_out = budget - self.shared, list[Price](), dict(self.left_out)
        paid: set[RowKind | None] = set()
        for part in self.parts:
            follows = part.rows is not None and part.rows in paid
            if part.least <= left or follows:
                left -= 0.0 if follows else part.least
                parts.append(dataclasses.replace(part, least=0.0, likely=0.0) if follows else part)
                paid.add(part.rows)
            else:
                left_out |= dict.fromkeys(part.measures, part.likely)
        parts.sort(key=lambda part: not part.likely)  # what follows has what is left over
        most = max(budget - self.shared, 0.0)
        share = min(1.0, most / max(sum(part.likely for part in parts), 1e-9))
        parts = [dataclasses.replace(part, likely=share * part.likely) for part in parts]
        return dataclasses.replace(self, parts=tuple(parts), budget=budget, left_out=left_out)


def prices_of(
    workspace: Workspace, needs: Mapping[str, Needs], further: Mapping[str, Cost]
) -> Prices:
    """What measures will cost on this surface; `further` is what some add to the shared pass."""
    plan, wanted, asked = workspace.plan, workspace.wanted, workspace.precision
    count = max(workspace.num_samples, 1)
    shared, text = 0.0, "the outputs"
    sweeps = wanted.sweep and not workspace.sweep_can_wait
    columns = workspace.pilot_count if workspace.by_probes else plan.num_columns
    if sweeps or wanted.without_sweep != Needs():
        spreads = wanted.standardized
        pass_ = plan.cost(1, sweep=sweeps, num_columns=columns, spreads=spreads)
        shared += pass_.forward_backwards
    if sweeps:
        what = "output probes" if workspace.by_probes else "columns"
        text = f"one pass with {columns} {what}"
    if any(each.sweep or each.products for each in needs.values()):
        is_certain = not plan.bent or not asked.way.residual
        shared += (LOOKS + PRODUCT_LOOK * (is_certain and wanted.products)) / count
    rows = (Cost() if not sweeps else plan.cost(1, sweep=True, num_columns=1)).forward_backwards
    parts: list[Price] = []
    for names in _families(needs, further):
        each = needs[names[0]]
        if names[0] in further:
            price = further[names[0]].forward_backwards
            parts.append(Price(names, price, price))
        elif each.products:
            steps = [PASS + PRODUCT * products for products in (LEAST_LANCZOS, LANCZOS)]
            parts.append(Price(names, steps[0], steps[1]))
        elif each.sweep:
            kind = kind_of(each)
            least, likely = _of_rows(workspace, kind, count)
            if sweeps and workspace.by_probes:
                more = typical_probes(workspace, count) - columns
                is_first = all(part.rows is None for part in parts)
                likely += rows * max(more, 0.0) * is_first  # they serve all kinds
            parts.append(Price(names, least, likely, kind))
    return Prices(shared, text, tuple(parts))


def kind_of(needs: Needs) -> RowKind:
    """The kind of rows that a measure rests on."""
    return "kappa" if needs.kappa else "rho" if needs.rho else "trace"


def first_sample_probes(size: int, count: int) -> int:
    """How many sample probes of so many weights and samples usually give an interval."""
    is_few = size <= SMALL or count < ENOUGH_SAMPLES
    return PILOT_IF_SKEWED if is_few else SampleProbes.pilot


def typical_probes(workspace: Workspace, count: int) -> float:
    """How many probes usually bring an estimate from so many samples to the precision."""
    return TYPICAL / count * (0.05 / workspace.precision.rtol) ** 2


def _of_rows(workspace: Workspace, kind: RowKind, count: int) -> tuple[float, float]:
    """What the probes of a kind of rows cost beyond the sweep, at least and probably."""
    plan, way, surface = workspace.plan, workspace.precision.way, workspace.surface
    weights = PASS + PRODUCT * PILOT
    if not way.ggn:
        return weights, weights
    if not (plan.bent and way.residual):
        return 0.0, 0.0
    matrices = [surface.layers.weight_of(row) for row in surface.matrices]
    names = list(surface.parameters) if kind == "trace" else matrices
    bent = [name for name in names if name in plan.bent]
    size = sum(surface.parameters[name].numel() for name in bent)
    by_samples = way.sample_probes == "always" or (way.sample_probes == "large" and size > SMALL)
    if not bent:
        return 0.0, 0.0
    if not by_samples or SampleProbes.unknown_uses(plan, bent):
        if not workspace.sweep_can_wait:
            return weights, weights
        columns: list[int | None] = [None, None]  # the sweep comes with them
        if workspace.by_probes:
            columns = [workspace.pilot_count, math.ceil(typical_probes(workspace, count))]
        swept = [plan.cost(1, sweep=True, num_columns=number) for number in columns]
        least, likely = (weights + cost.forward_backwards for cost in swept)
        return least, likely
    first = first_sample_probes(size, count)
    least = PASS + PRODUCT * first
    more = max(typical_probes(workspace, count) - first, 0.0)
    return least, least + PRODUCT * more + PASS * min(more, STAGES)


def _families(needs: Mapping[str, Needs], further: Mapping[str, Cost]) -> list[tuple[str, ...]]:
    """Measures that share their estimate, the most useful first: each family has its own."""

    def rank(name: str) -> tuple[bool, float, bool, bool]:
        each = needs[name]
        dear = further[name].forward_backwards if name in further else 0.0
        return each.products, dear, each.rho, each.kappa

    groups: dict[str, list[str]] = {}
    for name in sorted(needs, key=rank):
        each = needs[name]
        if name in further or each.products:
            groups[name] = [name]
        elif each.sweep:
            groups.setdefault(name.partition(".")[0], []).append(name)
    return [tuple(group) for group in groups.values()]


def _names(measures: Sequence[str] | Iterable[str]) -> str:
    names = list(measures)
    return names[0] if len(names) == 1 else f"{names[0].partition('.')[0]}.*"
