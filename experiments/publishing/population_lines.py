"""What each measure says about the gap in a population that repeats its training settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from spiritlevel.measures.confounders import MEASURED_ALONG
from spiritlevel.records.content import Cell, CorrelationCell
from spiritlevel_lab.claims.experiment import Row
from spiritlevel_lab.claims.population import CONFOUNDERS, GAP, measured
from spiritlevel_lab.claims.settings import partial_of, levels_of
from spiritlevel_lab.claims.trained import NotAsked
from spiritlevel_lab.statistics import Correlation, Judged, Levels, Within

from .results import ScaleResult

LOSS = "train_loss"
WITHIN = "within settings, mean"
OVER_ALL = "over all, interval over settings"
CAUTIOUS = "over all, widest interval"


@dataclasses.dataclass(frozen=True)
class MeasureLine:
    """What one measure says about the gap in one population."""

    population: str
    measure: str
    levels: Levels
    equal_loss: Judged  # with the training loss held fixed, and the widest interval
    equal_both: Judged  # and the uncertainty as well

    @property
    def is_flatness(self) -> bool:
        """Whether it measures flatness; weight norm and confidence do not."""
        return self.measure.partition("[")[0] not in MEASURED_ALONG

    @property
    def rises(self) -> bool:
        """Whether the gap clearly rises with it over all networks, counting settings."""
        return self.levels.clustered.low > 0

    @property
    def falls(self) -> bool:
        """Whether the gap clearly falls with it."""
        return self.levels.clustered.high < 0

    @property
    def views(self) -> Mapping[str, CorrelationCell]:
        """Its correlation with the gap, each way that it is looked at."""
        looked_at: dict[str, Correlation | Judged | Within] = {
            WITHIN: self.levels.within,
            "between settings": self.levels.between,
            OVER_ALL: self.levels.clustered,
            CAUTIOUS: self.levels.judged,
            "training loss held fixed": self.equal_loss,
            "loss and 1 − ‖p‖² held fixed": self.equal_both,
        }
        return {view: CorrelationCell(e.value, e.low, e.high) for view, e in looked_at.items()}

    @property
    def cells(self) -> Mapping[str, Cell]:
        """As a row of the population's table, by column."""
        within = self.levels.within
        inside, *others = self.views.items()
        return {
            "measure": self.measure,
            **dict([inside]),
            "positive within": f"{within.num_positive} of {within.n}",
            **dict(others),
        }


@dataclasses.dataclass(frozen=True)
class MeasuredPopulation:
    """Networks of several seeds for each setting, and what each measure says of their gap."""

    result: ScaleResult
    lines: Sequence[MeasureLine]


def populations(scales: Sequence[ScaleResult]) -> list[MeasuredPopulation]:
    """Of the results of an experiment those with seeds enough to look within settings."""
    found = [MeasuredPopulation(result, lines_of(result)) for result in scales]
    return [each for each in found if any(line.levels.within.n for line in each.lines)]


def judged_rows(result: ScaleResult) -> Sequence[Row]:
    """The runs that the claim is judged by."""
    trained = result.experiment.trained
    rows = result.record.rows
    return rows if isinstance(trained, NotAsked) else trained.split(rows).judged


def lines_of(result: ScaleResult) -> list[MeasureLine]:
    """A line for each measure; none unless networks of one setting are repeated."""
    experiment, rows = result.experiment, judged_rows(result)
    if result.outcome.agrees == "untrained" or not experiment.settings or experiment.rows_of:
        return []
    lines = []
    for name in measured(rows, experiment.measures):
        found = levels_of(rows, name, GAP, experiment.settings)
        if found is not None:
            fixed = (
                partial_of(rows, name, GAP, given, experiment.settings)
                for given in ([LOSS], list(CONFOUNDERS))
            )
            lines.append(MeasureLine(experiment.name, name, found, *fixed))
    return lines
