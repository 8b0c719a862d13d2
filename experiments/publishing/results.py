"""What was recorded of an experiment at one scale, and what it says about the claim."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

from spiritlevel_lab.claims.experiment import Experiment, Outcome
from spiritlevel_lab.claims.scale import (
    WORDS,
    at_the_papers_scale,
    library_study,
    verdict_in_words,
)
from spiritlevel_lab.papers.judgement import judged
from spiritlevel_lab.papers.registry import find

from .recorded import Record, stem

CITED = {  # by author and year; by title where the copy we have names neither
    "000": "Taleghani et al.",
    "001": "“Sharpness can be manipulated”",
    "002": "Petzka et al. 2021",
    "003": "Petzka et al. 2019",
    "004": "“Flatness-Aware Regularization”",
}


@dataclasses.dataclass(frozen=True)
class ScaleResult:
    """What was recorded at one scale, and what it says about the claim."""

    experiment: Experiment
    record: Record
    outcome: Outcome

    @classmethod
    def of(cls, record: Record, experiment: Experiment | None = None) -> ScaleResult:
        """The result of a record, analysed as its experiment says, or another that looks at it."""
        study = library_study(record.name, record.preset)
        experiment = (experiment or find(record.name)).at(
            record.preset, comparable=at_the_papers_scale(study)
        )
        return cls(experiment, record, judged(experiment, record.rows))

    @property
    def stem(self) -> str:
        """The name of its figure, without the ending."""
        return stem(self.experiment.name, self.record.preset)

    @property
    def category(self) -> str:
        """The verdict, one of a few."""
        study = library_study(self.record.name, self.record.preset)
        return verdict_in_words(self.outcome.agrees, study)

    @property
    def verdict(self) -> str:
        """The verdict, with why there is none."""
        met = self.outcome.met
        return f"{self.category}: {met} met the criterion" if met else self.category


def cited(experiment: Experiment) -> str:
    """Where the claim stands, by author and year.

    >>> cited(find("002-fig-5"))
    'Petzka et al. 2021, Fig. 5'
    """
    return f"{CITED[experiment.name.partition('-')[0]]}, {experiment.source}"


def scale_in_words(record: Record) -> str:
    """To go on with "It was run"."""
    return f"with the preset {record.preset}" if record.preset else "without a preset"


def tally(results: Sequence[ScaleResult]) -> str:
    """One sentence; of each experiment one result."""
    counts = Counter(result.category for result in results)
    said = ", ".join(f"{counts[word]} {word}" for word in WORDS if counts[word])
    return f"Of {len(results)} that were run: {said or 'none yet'}."
