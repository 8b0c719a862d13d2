"""Confidence of the softmax: the factor that every cross-entropy curvature contains."""

from __future__ import annotations

from .._core import Measurement
from ..estimators.exact import Needs
from ..estimators.work import Work
from ._registry import Measured, measure

SOFTMAX = Needs(softmax=True)


@measure(
    name="softmax.gini",
    summary="Mean Gini impurity of the predictions: 0 when certain, 1 − 1/C when undecided",
    formula=r"\operatorname{mean}_n \bigl(1 - \|p_n\|^2\bigr)",
    paper="Sharpness can be manipulated and misleading for generalization (Gini term)",
    invariant={"layer_rescale", "neuron_rescale", "unit_permute", "batch_split"},
    misleads=(
        "Not a flatness measure but the confounder of all of them: curvature falls with it even if "
        "only the logits were scaled up."
    ),
    needs=SOFTMAX,
    requires=("softmax",),
)
def gini(work: Work) -> Measured:
    """Exact to the last digits also where 1 − Σp² is 0 in floating point."""
    run = work.run(SOFTMAX)
    return Measured(
        Measurement(
            "softmax.gini",
            run.softmax.mean(["gini"]),
            exact=True,
            data_stderr=run.softmax.stderr(["gini"]),
            cost=run.cost,
            settings=work.settings(),
        )
    )
