"""A measurement, and what was measured, in the words and columns that every page uses."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...records import content
from ...records.content import Cards, Cell, Column, Section, Text, Uncertain, number
from ...results import Measurement, Status
from ...verbs.comparison.ranking import standard_error
from . import cards

VALUE = Column("value", digits=content.VALUE)
STATUS = Column(
    "status",
    "exact: the quantity itself up to round-off. estimated: from random probes. within its "
    "residual: by a search or an iteration that has converged. of the GGN: of the Gauss–Newton "
    "matrix, which stands in for the Hessian. not converged: less certain than was asked for. not "
    "confirmed: computed exactly, but a second look came to another value.",
)
LOW = Column(
    "from",
    "Lower end of the interval that the method gives; empty for an exact value.",
    digits=content.VALUE,
)
HIGH = Column(
    "to",
    "Upper end of the interval that the method gives; empty for an exact value.",
    digits=content.VALUE,
)
DATA = Column(
    "± data",
    "Sampling error: how much other data would change the value; a dash where it is not known.",
    digits=content.ERROR,
)
COUNT = Column("n", "Samples it was measured on.")
NOTE = Column("note")
COLUMNS = (VALUE, STATUS, LOW, HIGH, DATA, COUNT, NOTE)
SHORT_COLUMNS = tuple(
    dataclasses.replace(column, digits=content.SHORT) if column in (VALUE, LOW, HIGH) else column
    for column in COLUMNS
)

NOT_TRAINED = (
    "This network is not trained: its weights are random, so these values do not describe a "
    "minimum."
)
PERHAPS_NOT_TRAINED = (
    "No checkpoint was loaded. Unless the model's own code loads weights, they are random, and "
    "these values do not describe a minimum."
)
CERTAIN = 0.1  # Gini impurity below which a network is called certain
WORDS = {
    Status.GGN: "of the GGN",
    Status.NOT_CONVERGED: "not converged",
    Status.UNCONFIRMED: "not confirmed",
    Status.NONFINITE: "not finite",
}
SETTINGS = {  # what a page says of the settings, in this order
    "num_samples": "samples (n)",
    "loss": "loss",
    "layers": "layers",
    "method": "method",
    "rtol": "requested relative error",
    "confidence": "confidence of intervals",
    "dtype": "number format",
    "computed_in": "computed in",
    "device": "device",
    "seed": "seed",
    "torch": "torch",
}


def status_text(m: Measurement) -> str:
    """How far the value can be trusted, in words."""
    if m.status in WORDS:
        return WORDS[m.status]
    if m.exact:
        return "exact"
    return "within its residual" if m.stderr is None else "estimated"


def interval(m: Measurement) -> tuple[float, float] | None:
    """What the method leaves open, in the value's digits; None where that is not known."""
    ends = m.interval
    if ends is None:
        off = 0.0 if m.exact else m.residual
        if off is None:
            return None
        ends = m.value - off, m.value + off
    error = m.with_errors.error
    return Uncertain(ends[0], error), Uncertain(ends[1], error)


def with_data(m: Measurement) -> tuple[float, float] | None:
    """The interval from the method and the samples together, as ranks use it; None: not known."""
    confidence = float(m.settings.get("confidence", 0.95))
    factor = statistics.NormalDist().inv_cdf(0.5 + confidence / 2)
    half = factor * standard_error(m) + (m.residual or 0.0)
    return None if math.isinf(half) else (m.value - half, m.value + half)


def cells(m: Measurement) -> list[Cell]:
    """The row that goes below `COLUMNS` and `SHORT_COLUMNS`."""
    low, high = (None, None) if m.exact else interval(m) or (None, None)
    count = m.settings.get("num_samples")
    counted = None if count is None else int(count)
    return [m.with_errors, status_text(m), low, high, m.data_stderr, counted, m.text or None]


def with_interval(m: Measurement) -> str:
    """The value with its interval, in a sentence."""
    ends = interval(m)
    value = number(m.with_errors, VALUE.digits)
    if m.exact or ends is None:
        return f"{value} ({status_text(m)})"
    low, high = (number(end, VALUE.digits) for end in ends)
    return f"{value} (between {low} and {high})"


def settings_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings in the box at the top."""
    return {title: _setting(settings[key]) for key, title in SETTINGS.items() if key in settings}


def other_settings(m: Measurement, shared: Mapping[str, Any]) -> str:
    """What a measure was set to beyond what all were."""
    extra = {key: value for key, value in m.settings.items() if key not in shared}
    return ", ".join(f"{key} = {_setting(value)}" for key, value in extra.items())


def caveats(names: Iterable[str]) -> Section:
    """When each measure misleads, from its card."""
    lines = [f"{card.name}: {card.misleads}" for card in cards.cards_of(names)]
    return Section("caveats", "When these numbers mislead", [Text(lines, bullets=True)])


def about(names: Sequence[str]) -> list[Section]:
    """The last sections of a page: when its measures mislead, and their cards."""
    return [caveats(names), Section("cards", "The measures", [Cards(names)])]


def listing(names: Iterable[str]) -> str:
    """Names in a sentence.

    >>> listing(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


def subject_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Model, checkpoint, data, loss and accuracy, where they are known."""
    subject = settings.get("subject", {})
    known: dict[str, str] = {}
    if model := subject.get("model"):
        known["model"] = " ".join(map(str, [model, *subject.get("model_arguments", [])]))
        if "checkpoint" in subject:  # a report made in Python does not know where weights are from
            known["checkpoint"] = str(subject["checkpoint"] or _weights(subject))
    if data := subject.get("data"):
        known["data"] = str(data)
    return known | performance(settings)


def performance(settings: Mapping[str, Any]) -> dict[str, str]:
    """Loss and accuracy on the data, where they are known."""
    subject, known = settings.get("subject", {}), {}
    if subject.get("mean_loss") is not None:
        known["loss"] = number(float(subject["mean_loss"]))
    if subject.get("accuracy") is not None:
        known["accuracy"] = f"{100 * float(subject['accuracy']):.4g} %"
    return known


def warning(settings: Mapping[str, Any]) -> str:
    """That the network is not trained, or may not be; "" where a checkpoint was loaded."""
    subject = settings.get("subject", {})
    if "trained" not in subject or subject["trained"]:
        return ""
    return PERHAPS_NOT_TRAINED if subject["trained"] is None else NOT_TRAINED


def certainty(gini: float, classes: int) -> str:
    """How certain the predictions are, in a sentence."""
    most = 1 - 1 / classes
    words = {CERTAIN / 10: "very certain", CERTAIN: "certain", 0.9 * most: "not very certain"}
    word = next((word for limit, word in words.items() if gini < limit), "uncertain")
    return (
        f"The network is {word}: the mean Gini impurity of its predictions (softmax.gini) is "
        f"{number(gini)}, between 0 (certain) and {number(most)} (uniform)."
    )


def _weights(subject: Mapping[str, Any]) -> str:
    return "none; as the code makes it" if subject.get("trained") is None else "none: NOT TRAINED"
