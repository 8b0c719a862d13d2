"""An outcome from a recipe: a table, a figure, the parts of the claim and sentences, all as data.

The section `analysis` of a claim's file may have

- `derived`: columns that are made from others, and `drawn`, two of them of which every run must
  have a finite positive and a finite number;
- `groups`, as `runs` reads them, with a `heading`, and what a group is called `in_paper`;
- `numbers` and `each`: numbers of all runs and of every group, as `statistics` reads them;
- `table`: columns, whose means are shown, or a number of every group by its heading;
- `figure`, as `figures` reads it;
- `parts` of the claim, and `added` ones that were judged only after the runs: a number that is
  `above`, `below` or `near` a `bound`, `alike`, `unlike` or `unmoved`, with a text, and perhaps the
  `paper`'s value by its name; or one that is `shown` alone, as `seen`. A number of every group
  makes a part for each, or together the part `all`; those of several numbers may be `alternating`,
  and the same quantity looked at in another way may stand `beside`: then both must say so;
- `verdict`, where one part decides more than others: `first enough` or `first needed`;
- `lists`: texts on every group that sentences can name; and the sentences `conclusion` and `why`;
- `reasons`, what goes with a measure and with the gap, as `reasons` reads it;
- `reproduced`: what stands beside the paper's values;
- `layers`, `ratios` and `held_fixed`: tables that are shown and not judged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spiritlevel.records.content import Cell, Figure, IntervalEstimate, Panels, Table

from ...claims.contrasts import Groups, ratios
from ...claims.experiment import Experiment, Outcome, Row, titled
from ...claims.findings import (
    Agreement,
    Finding,
    above,
    agreeing,
    alike,
    below,
    estimate,
    every,
    missed,
    near,
    shown,
    unlike,
    unmoved,
    verdict,
    with_added,
)
from ...claims.numbers import mean
from ...claims.population import CONFOUNDERS, FEW, GAP, why
from ...claims.rows import column
from ...statistics import Correlation, Judged, spearman
from .figures import figure
from .held_fixed import ConfoundedTrend
from .runs import GroupedRuns, Spec, drawn, with_derived
from .sentences import filled
from .statistics import Number, computed

SECTIONS = (
    *("derived", "drawn", "groups", "numbers", "each", "table", "figure", "parts", "added"),
    *("verdict", "lists", "conclusion", "why", "reasons", "reproduced", "layers", "ratios"),
    "held_fixed",
)
TESTS: dict[str, Callable[..., Finding]] = {
    "above": above,
    "alike": alike,
    "below": below,
    "near": near,
    "unlike": unlike,
    "unmoved": unmoved,
}


class Recipe:
    """The numbers of a recipe for some runs, and what is made of them."""

    def __init__(self, experiment: Experiment, rows: Sequence[Row]) -> None:
        self.experiment, self.spec = experiment, experiment.recipe
        rows = with_derived(rows, self.spec.get("derived", {}))
        if "drawn" in self.spec:
            rows = drawn(rows, *self.spec["drawn"])
        self.groups_spec: Spec = self.spec.get("groups", {})
        self.runs = GroupedRuns.of(rows, self.groups_spec)
        self.numbers: dict[str, Any] = {
            name: computed(spec, self.runs) for name, spec in self.spec.get("numbers", {}).items()
        }
        self.each: dict[str, dict[Any, Any]] = {
            name: {group: computed(spec, self.runs, group) for group in self._groups(spec)}
            for name, spec in self.spec.get("each", {}).items()
        }

    def _groups(self, spec: Spec) -> Sequence[Any]:
        """Those that are named, with or without runs; else those with runs, `but` for some."""
        if spec.get("of") == "outer":
            return list(self.runs.outer)
        left_out = spec.get("but", [])
        return spec.get("of", [group for group in self.runs.groups if group not in left_out])

    def outcome(self, **extra: Any) -> Outcome:
        """All that the recipe says; it may name `extra` numbers and texts."""
        self.numbers |= extra
        findings, added = (self._parts(self.spec.get(key, ())) for key in ("parts", "added"))
        fields = self._fields(findings)
        why = [filled(self.spec["why"], fields)] if "why" in self.spec else []
        why += reasons(self.spec["reasons"], self.runs, fields) if "reasons" in self.spec else []
        more = [*self._layers(), *self._ratios()]
        if "held_fixed" in self.spec:
            trend = ConfoundedTrend.of(self.spec["held_fixed"])
            why += trend.why(self.runs.rows)
            more.append(trend.section(self.runs.rows, fields))
        return Outcome(
            table=self._table(),
            findings=[*findings, *added],
            agrees=with_added(self._agreement(findings), added),
            conclusion=filled(self.spec["conclusion"], fields),
            figure=self._figure(),
            why=" ".join(why),
            more=more,
            reproduced_values=self._reproduced_values(),
        )

    def _fields(self, findings: Sequence[Finding]) -> dict[str, Any]:
        """What sentences can name."""
        fields: dict[str, Any] = dict(self.numbers)
        fields |= {"n": len(self.runs.rows), "held": sum(f.result == "held" for f in findings)}
        fields |= self.experiment.thresholds
        for name, spec in self.spec.get("lists", {}).items():
            said = [
                filled(spec["each"], {"group": group, **self._numbers_of(group)})
                for group in self._groups(spec)
            ]
            fields[name] = spec.get("join", ", ").join(said)
        return fields

    def _numbers_of(self, group: Any) -> dict[str, Any]:
        of_group = {name: by_group.get(group) for name, by_group in self.each.items()}
        return {"n": len(self.runs.named(group)), **of_group}

    def _parts(self, specs: Sequence[Spec]) -> list[Finding]:
        findings: list[Finding] = []
        for spec in specs:
            alternating = [self._part(each) for each in spec.get("alternating", [spec])]
            findings += itertools.chain.from_iterable(zip(*alternating, strict=True))
        return findings

    def _part(self, spec: Spec) -> list[Finding]:
        if "shown" in spec:
            said = [
                filled(spec["seen"], {"group": group, **self._numbers_of(group)})
                for group in self.each[spec["shown"]]
            ]
            return [shown(spec["part"], "; ".join(said))]
        test = next(key for key in TESTS if key in spec)
        thresholds = self.experiment.thresholds
        bounds = [thresholds.get(spec["bound"], spec["bound"])] if "bound" in spec else []
        name = spec[test]

        def judged(number: Number, group: Any = None) -> Finding:
            names = {"group": group, "in_paper": self._in_paper(group), **thresholds}
            more: dict[str, Any] = {}
            if "paper" in spec:
                more["paper"] = self._paper_value(filled(spec["paper"], names))
                more["comparable"] = self.experiment.comparable
            part = filled(spec["part"], names)
            found = TESTS[test](part, number, *bounds, **more)
            beside = [
                TESTS[test](title, self._number(other, group), *bounds)
                for title, other in spec.get("beside", {}).items()
            ]
            return agreeing(part, [found, *beside]) if beside else found

        if name in self.numbers:
            return [judged(self.numbers[name])]
        findings = [judged(number, group) for group, number in self.each[name].items()]
        return [every(spec["all"], findings)] if "all" in spec else findings

    def _number(self, name: str, group: Any) -> Number:
        number: Number = self.numbers[name] if group is None else self.each[name][group]
        return number

    def _in_paper(self, group: Any) -> Any:
        """What the paper calls a group."""
        return self.groups_spec.get("in_paper", {}).get(group, group)

    def _paper_value(self, name: str) -> float:
        return self.experiment.paper_values[name]

    def _agreement(self, findings: Sequence[Finding]) -> Agreement:
        """The verdict by all parts; without any, the code that adds them decides."""
        rule = self.spec.get("verdict")
        first = bool(findings) and findings[0].result == "held"
        if rule == "first enough" and first:
            return "yes"
        return missed(findings) if rule == "first needed" and not first else verdict(findings)

    def _table(self) -> Table:
        columns: dict[str, str] = {}
        for item in self.spec["table"]:
            columns |= item if isinstance(item, Mapping) else {item: item}
        cells: list[list[Cell]] = [
            [
                *self.runs.names(group),
                len(rows),
                *(self._cell(name, group) for name in columns.values()),
            ]
            for group, rows in self.runs.groups.items()
        ]
        headings = self.groups_spec["heading"]
        headings = headings if isinstance(headings, list) else [headings]
        return Table((*headings, "n", *columns), cells)

    def _cell(self, name: str, group: Any) -> Cell:
        """A number of the group, or else the mean of a column."""
        if name not in self.each:
            return mean(column(self.runs.named(group), name))
        number = self.each[name].get(group)
        return estimate(number) if isinstance(number, Correlation | Judged) else number

    def _figure(self) -> Figure | Panels | None:
        if "figure" not in self.spec:
            return None
        return figure(self.spec["figure"], self.runs, self.each)

    def _reproduced_values(self) -> dict[str, IntervalEstimate]:
        beside = {}
        for group in self.runs.groups:
            for title, name in self.spec.get("reproduced", {}).items():
                key, number = f"{title}, {self._in_paper(group)}", self._cell(name, group)
                if key in self.experiment.paper_values:
                    assert isinstance(number, IntervalEstimate)
                    beside[key] = number
        return beside

    def _layers(self) -> list[Table]:
        """A number of each layer by group, and its trend; nothing if layers were not recorded."""
        spec, rows = self.spec.get("layers", {"of": ""}), self.runs.rows
        start = f"{spec['of']}["
        layers = sorted({key for row in rows for key in row if key.startswith(start)})
        if not layers:
            return []
        cells: list[list[Cell]] = [
            [group, len(own), *(mean(column(own, layer)) for layer in layers)]
            for group, own in self.runs.groups.items()
        ]
        varied = column(rows, self.groups_spec["by"])
        ranks = (spearman(varied, column(rows, layer)) for layer in layers)
        cells.append([spec["trend"], len(rows), *map(estimate, ranks)])
        table = Table((self.groups_spec["heading"], "n", *layers), cells)
        return [titled(spec["title"], spec["caption"], table)]

    def _ratios(self) -> list[Table]:
        if "ratios" not in self.spec:
            return []
        groups: Groups = self.runs.groups
        return [ratios(groups, self.spec["ratios"]["over"], self.spec["ratios"]["of"])]


def outcome(experiment: Experiment, rows: Sequence[Row], **extra: Any) -> Outcome:
    """What the runs say by the experiment's recipe, which may name `extra` numbers and texts."""
    return Recipe(experiment, rows).outcome(**extra)


def reasons(spec: Spec, runs: GroupedRuns, fields: Mapping[str, Any]) -> list[str]:
    """As the section `reasons` says; nothing for so few networks that a correlation says nothing.

    It has a `measure` and its `name` in sentences, and perhaps another column for the `gap`, a
    sentence that comes `first`, or `each: true`, for a text on every group.
    """
    measure, name, gap = spec["measure"], spec["name"], spec.get("gap", GAP)
    said = []
    for group, rows in runs.groups.items() if spec.get("each") else [(None, runs.rows)]:
        if len(rows) < FEW:
            continue
        if "first" in spec:
            said.append(filled(spec["first"], fields))
        if all(any(row.get(each) is not None for row in rows) for each in CONFOUNDERS):
            text = why([{**row, GAP: row[gap]} for row in rows], measure, name)
            said.append(text if group is None else f"{group}: {text}")
    return said
