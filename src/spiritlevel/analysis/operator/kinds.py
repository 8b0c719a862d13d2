"""Which matrix is meant, and where two names mean the same one."""

from __future__ import annotations

from typing import Literal, get_args

from ...engine.weight_space.chunk_products import Operator
from ...errors import SpiritlevelError, suggestion
from ...model.arguments import ArgumentCheck, is_text
from ...model.losses import CrossEntropy
from ...model.surface import Surface
from ...need import need, one_of

Kind = Literal["hessian", "ggn", "fisher"]
KIND = ArgumentCheck(is_text, "'hessian', 'ggn' or 'fisher'")
# Negative log-likelihoods of a distribution in its natural parameters, up to a factor: for these
# the Fisher information of the model's own predictions is the Gauss–Newton matrix.
LIKELIHOODS = ("mse", "bce")


def check_kind(kind: str) -> None:
    """Refuse a matrix that is not known."""
    known = get_args(Kind)
    hint = suggestion(kind, known).lstrip()
    need("kind", kind, one_of(known), f"one of {', '.join(known)}", hint)


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
