"""Confidence of the softmax: the factor that every cross-entropy curvature contains."""

from __future__ import annotations

import functools

from ...engine.data_pass import Needs
from ...engine.workspace import Workspace
from ...records.measurements import Measurement
from ..registry import EVERY, Measured, measure
from ..requirements import softmax

SOFTMAX = Needs(softmax=True)
softmax_measure = functools.partial(
    measure, invariant=EVERY, direction=None, needs=SOFTMAX, requires=(softmax,)
)


@softmax_measure(
    name="softmax.gini",
    summary="Mean Gini impurity of the predictions: 0 when certain, 1 − 1/C when undecided",
    formula=r"\operatorname{mean}_n \bigl(1 - \|p_n\|^2\bigr)",
    paper="Sharpness can be manipulated and misleading for generalization (Gini term)",
    misleads=(
        "Not a flatness measure, but the confounder of all of them: curvature falls with it even "
        "if only the logits were scaled up."
    ),
    default=True,
)
def gini(workspace: Workspace) -> Measured:
    """Exact to the last digits also where 1 − Σp² is 0 in floating point."""
    return _mean(workspace, "gini")


@softmax_measure(
    name="softmax.entropy",
    summary="Mean entropy of the predictions in nats: 0 when certain, log C when undecided",
    formula=r"\operatorname{mean}_n \bigl(-\textstyle\sum_i p_{n,i} \log p_{n,i}\bigr)",
    paper="Sharpness can be manipulated and misleading for generalization (entropy of the output)",
    misleads="Like softmax.gini; unlike it, many classes of tiny probability can dominate it.",
)
def entropy(workspace: Workspace) -> Measured:
    """Exact to the last digits also for confident networks."""
    return _mean(workspace, "entropy")


@softmax_measure(
    name="softmax.confidence",
    summary="Mean probability of the most likely class",
    formula=r"\operatorname{mean}_n \max_i p_{n,i}",
    paper="Sharpness can be manipulated and misleading for generalization (confidence)",
    misleads=(
        "Confidence is not accuracy: the most likely class may be the wrong one. For a confident "
        "network the value is too close to 1 to show differences; softmax.gini shows them."
    ),
)
def confidence(workspace: Workspace) -> Measured:
    """The largest probability, whichever class it is of."""
    return _mean(workspace, "confidence")


def _mean(workspace: Workspace, row: str) -> Measured:
    run = workspace.run(SOFTMAX)
    return Measured(
        Measurement(
            f"softmax.{row}",
            run.softmax.mean([row]),
            exact=True,
            data_stderr=run.softmax.stderr([row]),
            cost=run.cost,
        )
    )
