"""What an experiment of a paper is, and what came out of it: plain data, nothing that draws."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spiritlevel.records.content import Cell as Cell
from spiritlevel.records.content import Figure as Figure
from spiritlevel.records.content import IntervalEstimate
from spiritlevel.records.content import Panels as Panels
from spiritlevel.records.content import Series as Series
from spiritlevel.records.content import Table as Table

from .findings import Agreement, Finding
from .trained import NotAsked, TrainedWhen

Row = Mapping[str, Any]  # a run: its axes, seed, ends of training and measures
PAPERS = {  # titles, by the number that names of experiments start with
    "000": "An accurate flatness measure to estimate the generalization performance of CNN models",
    "001": "Sharpness can be manipulated and misleading for generalization",
    "002": "Relative Flatness and Generalization",
    "003": "A Reparameterization-Invariant Flatness Measure for Deep Neural Networks",
    "004": "Flatness-Aware Regularization for Robust Generalization in Deep Neural Networks",
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What the runs say about the claim. `reproduced_values` are ours by the paper's keys."""

    table: Table
    findings: Sequence[Finding]  # the claim, part by part
    agrees: Agreement  # of all parts together; the rule says how
    conclusion: str  # one sentence
    figure: Figure | Panels | None = None
    why: str = ""  # what stands between a measure and the gap, in a sentence or two
    more: Sequence[Table] = ()  # what is shown and not judged, each with its title and caption
    reproduced_values: Mapping[str, IntervalEstimate] = dataclasses.field(default_factory=dict)
    left_out: str = ""  # which networks are not judged because they are not trained
    met: str = ""  # how many met the criterion, where too few did for a verdict
    outcomes: Table | None = None  # of a population: the three outcomes side by side


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper. The study of the same name makes its runs, or that of another.

    Args:
        name: "002-fig-3": paper, then table or figure; also the name of the study in the library.
        title: what is looked at, in a few words.
        source: where in the paper: "Fig. 3".
        claim: what the paper says, in one sentence.
        analysis: from the experiment and rows of finished runs to the outcome.
        recipe: what the analysis makes of the runs, as the file has it.
        trained: when a network counts as trained for this claim; others are never judged.
        columns: what is kept of each run in the recorded results.
        catalogue: keep all other measures that the runs have, too.
        rule: in words, when the claim counts as reproduced; settled before the runs were made.
        thresholds: the numbers that the rule names, for the analysis.
        set_up: what is done, in a sentence or two.
        scaled_down: by preset, how it differs from the paper; "" is the study without a preset.
        settings: the columns that make up a setting, as far as a preset varies them; networks that
            agree in all of them differ by their seed alone and are not independent. None: nothing
            is repeated.
        measures: which ones it rests on; the page says from their cards when they mislead.
        layers: measures that are recorded of each layer, too, as MEASURE[LAYER].
        paper_values: the numbers the paper gives; `Outcome.reproduced_values` has the same names.
        takes_times: of its runs, which others beside them would change; run them one at a time.
        paper_runs: how many the paper has, where its preset repeats them with more seeds.
        rows_of: the experiment whose recorded runs it looks at; "" for its own.
        trained_in: by preset, the criterion of those that have stated one of their own.
        outcomes: of a claim on a population: the `columns` whose correlations with all three
            outcomes stand side by side, perhaps `by` the values of another column.
        comparable: whether the runs are of networks and data like the paper's, so that its numbers
            can be compared with.
    """

    name: str
    title: str
    source: str
    claim: str
    analysis: Analysis
    trained: TrainedWhen | NotAsked
    columns: tuple[str, ...]
    rule: str
    set_up: str
    scaled_down: Mapping[str, str]
    measures: tuple[str, ...]
    paper_values: Mapping[str, float] = dataclasses.field(default_factory=dict)
    thresholds: Mapping[str, float] = dataclasses.field(default_factory=dict)
    recipe: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    catalogue: bool = False
    takes_times: bool = False
    layers: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    paper_runs: int | None = None
    rows_of: str = ""
    trained_in: Mapping[str, TrainedWhen] = dataclasses.field(default_factory=dict)
    outcomes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    comparable: bool = True

    def at(self, preset: str | None, *, comparable: bool) -> Experiment:
        """As it judges the runs of one preset; None where the settings are of none."""
        trained = self.trained_in.get(preset or "", self.trained)
        return dataclasses.replace(self, trained=trained, comparable=comparable)

    def analyse(self, rows: Sequence[Row]) -> Outcome:
        """What these rows of finished runs say, by the rule."""
        return self.analysis(self, rows)

    @property
    def study(self) -> str:
        """The name of the study that makes its runs."""
        return self.rows_of or self.name

    @property
    def paper(self) -> str:
        """The title of the paper."""
        return PAPERS[self.name.partition("-")[0]]


Analysis = Callable[[Experiment, Sequence[Row]], Outcome]


def titled(title: str, caption: str, table: Table) -> Table:
    """The table with a heading, and a caption that says what is in it."""
    return dataclasses.replace(table, title=title, caption=caption)
