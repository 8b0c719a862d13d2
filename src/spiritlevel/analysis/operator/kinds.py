"""Which matrix is meant, and where two names mean the same one."""

from __future__ import annotations

from typing import Literal, get_args

from ...engine.weight_space.chunk_products import Operator
from ...errors import SpiritlevelError, brief, suggestion
from ...model.arguments import Check, is_text
from ...model.losses import CrossEntropy
from ...model.surface import Surface

Kind = Literal["hessian", "ggn", "fisher"]
KIND = Check(is_text, "'hessian', 'ggn' or 'fisher'")
# Negative log-likelihoods of a distribution in its natural parameters, up to a factor: for these
# the Fisher information of the model's own predictions is the Gauss–Newton matrix.
LIKELIHOODS = ("mse", "bce")


def check_kind(kind: str) -> None:
    """Refuse a matrix that is not known."""
    if kind not in get_args(Kind):
        raise SpiritlevelError(
            f"The 'kind' argument must be one of {', '.join(get_args(Kind))}. Got {brief(kind)}."
            f"{suggestion(kind, get_args(Kind))}"
        )


def matrix_of(kind: Kind, surface: Surface) -> Operator:
    """The matrix that products are taken with; a Fisher matrix must be defined for the loss."""
    if kind != "fisher":
        return kind
    loss = surface.loss
    if not isinstance(loss, CrossEntropy) and loss.name not in LIKELIHOODS:
        raise SpiritlevelError(
            "The 'kind' argument 'fisher' needs a loss that is a log-likelihood: cross-entropy, "
            f"mse or bce. Got the loss {loss.name!r}, for which the model predicts no "
            "distribution. Use kind='ggn'."
        )
    return "ggn"
