"""What Figs. 6 and 9 of paper 001 share: noise on the inputs during the first epoch."""

from __future__ import annotations

from collections.abc import Sequence

from ...claims.contrasts import falls, line, rises
from ...claims.numbers import mean
from ...claims.rows import column, grouped
from ...statistics import Correlation, spearman
from ..experiment import Row, Series

NOISE = "interventions.input_noise"
TRACE, JACOBIAN, GINI = "curvature.trace", "sensitivity.jacobian", "softmax.gini"
ACCURACIES = ("train_accuracy", "test_accuracy")
MEASURES = (TRACE, JACOBIAN, GINI)


def with_noise(rows: Sequence[Row], name: str) -> Correlation:
    """How a number follows the noise, over runs."""
    return spearman(column(rows, NOISE), column(rows, name))


def trend_in_words(trend: Correlation) -> str:
    """Whether the number falls, rises or does not clearly move, with the correlation."""
    verb = "falls" if falls(trend) else "rises" if rises(trend) else "does not clearly move"
    return f"{verb} (Spearman {trend})"


def noise_line(title: str, rows: Sequence[Row], name: str) -> Series:
    """Means with intervals by noise, divided by the mean without noise."""
    means = {noise: mean(column(group, name)) for noise, group in grouped(rows, NOISE).items()}
    unit = next((each.value for each in means.values()), 1.0)
    return line(title, list(means), list(means.values()), unit)
