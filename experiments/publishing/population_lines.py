"""What each measure of flatness says about three outcomes, in populations that repeat settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from spiritlevel.measures.confounders import MEASURED_ALONG
from spiritlevel_lab.claims.experiment import Row
from spiritlevel_lab.claims.population import OVER_ALL, WITHIN, measured
from spiritlevel_lab.claims.rows import OUTCOMES, with_outcomes
from spiritlevel_lab.claims.settings import levels_of, widest_of
from spiritlevel_lab.claims.trained import NotAsked
from spiritlevel_lab.statistics import Judged, Within

from .results import ScaleResult

LEVELS = (WITHIN, OVER_ALL)
View = tuple[str, str]  # level and outcome


@dataclasses.dataclass(frozen=True)
class MeasureLine:
    """What one measure of flatness says in one population, on both levels, of each outcome."""

    measure: str
    views: Mapping[View, Judged | Within]

    def side(self, view: View) -> str:
        """What flatter networks have of the outcome: "smaller", "larger", or "unclear"."""
        found = self.views[view]
        if found.low > 0:
            return "smaller"
        return "larger" if found.high < 0 else "unclear"


@dataclasses.dataclass(frozen=True)
class MeasuredPopulation:
    """Networks of several seeds for each setting, and what each measure of flatness says."""

    result: ScaleResult
    num_networks: int
    num_settings: int
    lines: Sequence[MeasureLine]


def populations(results: Sequence[ScaleResult]) -> list[MeasuredPopulation]:
    """Of the results those that are judged, with seeds enough to look within settings."""
    return [found for result in results if (found := population(result)) is not None]


def population(result: ScaleResult) -> MeasuredPopulation | None:
    """None for an experiment that repeats no setting, looks at another's runs or is not judged."""
    experiment = result.experiment
    if result.outcome.met or not experiment.settings or experiment.rows_of:
        return None
    rows = with_outcomes(judged_rows(result))
    lines, num_settings = [], 0
    for name in measured(rows, experiment.measures):
        if name.partition("[")[0] in MEASURED_ALONG:
            continue
        found = {
            outcome: levels_of(rows, name, outcome, experiment.settings) for outcome in OUTCOMES
        }
        known = {outcome: each for outcome, each in found.items() if each is not None}
        if any(each.within.n for each in known.values()):
            num_settings = max(each.within.num_settings for each in known.values())
            views: dict[View, Judged | Within] = {}
            for outcome, each in known.items():
                views[WITHIN, outcome] = each.within
                views[OVER_ALL, outcome] = widest_of(each)
            lines.append(MeasureLine(name, views))
    return MeasuredPopulation(result, len(rows), num_settings, lines) if lines else None


def judged_rows(result: ScaleResult) -> Sequence[Row]:
    """The runs that the claim is judged by."""
    trained = result.experiment.trained
    rows = result.record.rows
    return rows if isinstance(trained, NotAsked) else trained.split(rows).judged
