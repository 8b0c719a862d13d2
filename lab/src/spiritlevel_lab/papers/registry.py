"""The experiments by name, as their files have them.

The documents of `studies/NAME.yaml` are divided by `---`. The first is the study, and all that a
run's settings come from; the others say what a paper claims, by which rule it is judged, what is
done and what is scaled down. Their `analysis` is the recipe that makes an outcome of the runs, and
`code` the function that does what no recipe says. A claim that looks at the runs of another one's
study stands behind that one and takes over what it does not say itself.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from spiritlevel.ground.errors import SpiritlevelError, suggestion

from ..claims.experiment import Analysis, Experiment, Row
from ..claims.findings import POST_HOC
from ..claims.numbers import CUT_OFF
from ..claims.trained import Limit, NotAsked, TrainedWhen
from ..population.registry import StudyFile
from ..population.settings.keys import check_keys, read_yaml
from .recipes.recipe import SECTIONS, outcome
from .scale_text import ScaleTexts

DIVIDER = "\n---\n"
NAME = re.compile(r"^name: (.+)$", re.MULTILINE)
TAKEN_OVER = ("trained", "settings", "scaled_down")  # from the first claim of a study
COPIED = ("name", "title", "source", "claim", "catalogue", "takes_times", "paper_runs", "outcomes")
COLUMNS = ("columns", "measures", "layers", "settings")
KNOWN = (
    *(*COPIED, *COLUMNS, "trained", "rule", "thresholds", "set_up", "scaled_down"),
    *("paper_values", "analysis", "code", "outcomes"),
)
SENTENCES = {"post_hoc": POST_HOC, "mean_correlations": CUT_OFF}  # that several texts share


def names() -> list[str]:
    """The names of all experiments, in the order of the papers."""
    return sorted(claim_documents())


@functools.cache
def find(name: str) -> Experiment:
    """The experiment of this name."""
    documents = claim_documents()
    if name not in documents:
        raise SpiritlevelError(
            f"The experiment {name!r} must be one of {', '.join(sorted(documents))}."
            f"{suggestion(name, documents)}"
        )
    return read_experiment(documents[name])


def of_study(study: str) -> list[Experiment]:
    """The experiments that are judged by the runs of a study, that of its own name first."""
    return [find(name) for name, each in claim_documents().items() if each.study == study]


@dataclasses.dataclass(frozen=True)
class StudyPart:
    """The study of a file, without the claims behind it."""

    file: StudyFile

    @property
    def name(self) -> str:
        """The file name, with its suffix."""
        return self.file.name

    def read_text(self, encoding: str | None = None) -> str:
        """The text of the study, which is the first document."""
        study, divider, _ = self.file.read_text(encoding).partition(DIVIDER)
        return study + "\n" if divider else study


@dataclasses.dataclass(frozen=True)
class ClaimDocument:
    """The text of a claim, the study whose runs it looks at, and the first claim on that study."""

    study: str
    text: str
    first: str

    @property
    def name(self) -> str:
        """The name of the experiment."""
        found = NAME.search(self.text)
        assert found is not None
        return found[1]


def study_parts() -> list[StudyPart]:
    """All studies of the papers."""
    folder = resources.files(__package__) / "studies"
    return [StudyPart(file) for file in folder.iterdir()]


@functools.cache
def claim_documents() -> dict[str, ClaimDocument]:
    """The claims, by the name of their experiment."""
    documents = {}
    for part in sorted(study_parts(), key=lambda part: part.name):
        study = part.name.removesuffix(".yaml")
        _, *claims = part.file.read_text(encoding="utf-8").split(DIVIDER)
        for text in claims:
            document = ClaimDocument(study, text, claims[0])
            documents[document.name] = document
    return documents


def read_experiment(document: ClaimDocument) -> Experiment:
    """The experiment that a document describes."""
    fields: dict[str, Any] = read_yaml(document.text, source=document.name)
    check_keys(f"claim {document.name}", fields, KNOWN)
    check_keys(f"analysis of {document.name}", fields.get("analysis", {}), SECTIONS)
    if document.text != document.first:
        first = read_yaml(document.first, source=document.study)
        fields = {key: first[key] for key in TAKEN_OVER if key in first} | fields
    thresholds = fields.get("thresholds", {})
    copied = {key: fields[key] for key in COPIED if key in fields}
    copied |= {key: _columns(fields[key]) for key in COLUMNS if key in fields}
    if "outcomes" in fields:
        columns = _columns(fields["outcomes"]["columns"])
        copied["outcomes"] = {**fields["outcomes"], "columns": columns}
    values: Mapping[str, Any] = fields.get("paper_values", {})
    return Experiment(
        **copied,
        analysis=_analysis(fields["code"]) if "code" in fields else outcome,
        recipe=fields.get("analysis", {}),
        trained=_trained(fields["trained"]),
        trained_in={
            preset: TrainedWhen(**_criterion({**fields["trained"], **own}))
            for preset, own in fields["trained"].get("in", {}).items()
        },
        rule=fields["rule"].format(**thresholds, **SENTENCES),
        set_up=fields["set_up"].format(**thresholds, **SENTENCES),
        scaled_down=ScaleTexts(document.study, fields["scaled_down"]),
        paper_values={name: _paper_value(each) for name, each in values.items()},
        thresholds=thresholds,
        rows_of="" if document.name == document.study else document.study,
    )


def _paper_value(printed: float | list[float]) -> float:
    """A number, or the mean of those that the paper prints for its runs."""
    return sum(printed) / len(printed) if isinstance(printed, list) else printed


def _columns(patterns: Sequence[str]) -> tuple[str, ...]:
    return tuple(itertools.chain.from_iterable(map(_spelled, patterns)))


def _spelled(pattern: str) -> list[str]:
    """The columns that a pattern stands for: each combination of what its braces list.

    >>> _spelled("task.{accuracy,loss}/{low,high}")
    ['task.accuracy/low', 'task.accuracy/high', 'task.loss/low', 'task.loss/high']
    """
    pieces = [piece.split(",") for piece in re.split(r"[{}]", pattern)]
    return ["".join(chosen) for chosen in itertools.product(*pieces)]


def _trained(spec: Mapping[str, Any]) -> TrainedWhen | NotAsked:
    if "not_asked" in spec:
        return NotAsked(spec["not_asked"])
    return TrainedWhen(**_criterion(spec))


def _criterion(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a criterion is made of; what a preset does not say itself is that of the claim."""
    fields = {key: value for key, value in spec.items() if key != "in"}
    fields["limits"] = tuple(
        Limit(**{**limit, "reached": tuple(limit.get("reached", ()))}) for limit in spec["limits"]
    )
    return fields | ({"asked": _has(spec["asked"])} if "asked" in spec else {})


def _has(wanted: Mapping[str, Sequence[Any]]) -> Callable[[Row], bool]:
    """Whether a run has one of the wanted values in each of the columns."""

    def asked(row: Row) -> bool:
        return all(row[column] in values for column, values in wanted.items())

    return asked


def _analysis(code: str) -> Analysis:
    """A function of this package; imported now, so that a wrong name is found now."""
    module, _, function = code.rpartition(".")
    analyse: Analysis = getattr(importlib.import_module(f".{module}", __package__), function)
    return analyse
