"""What was measured, as a page says it: the network, its weights, its data, how well it does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import markup

NOT_TRAINED = (
    "This network is not trained: its weights are random, so these numbers are about no minimum."
)
PERHAPS_NOT_TRAINED = (
    "No checkpoint was loaded. Unless the model's own code loads weights, they are random, and "
    "these numbers are about no minimum."
)
CERTAIN = 0.1  # Gini impurity below which a network is called certain


def facts(settings: Mapping[str, Any]) -> dict[str, str]:
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
        known["loss"] = markup.number(float(subject["mean_loss"]))
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
    undecided = 1 - 1 / classes
    word = (
        "very certain"
        if gini < CERTAIN / 10
        else "certain"
        if gini < CERTAIN
        else "not very certain"
    )
    if gini > 0.9 * undecided:
        word = "undecided"
    return (
        f"The network is {word} of its predictions: their mean Gini impurity (softmax.gini) is "
        f"{markup.number(gini)}, between 0 (certain) and {markup.number(undecided)} (undecided)."
    )


def _weights(subject: Mapping[str, Any]) -> str:
    return "none; as the code makes it" if subject.get("trained") is None else "none: NOT TRAINED"
