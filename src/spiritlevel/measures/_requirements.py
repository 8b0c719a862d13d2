"""What a measure asks of a network, its loss or its options before it can be computed.

A card names its requirements; a check raises with what was needed, what came and what to do. A
measure that was asked for by name is refused with that text, one that only matched a pattern is
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .._core import SpiritlevelError
from ..estimators.head_features import check_rows
from ..estimators.homogeneity import check_homogeneous
from ..estimators.jacobian import check_input, check_region
from ..estimators.paths import check_paths
from ..estimators.robustness import feature_layer
from ..estimators.work import Work
from ..losses import CrossEntropy
from ._inside import class_targets, initial, layer_inputs, rectifier
from ._layers import measured_weights

Check = Callable[[Work, str], object]


def softmax(work: Work, name: str) -> None:
    """A loss with class probabilities."""
    loss = work.surface.loss
    if not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} needs the loss 'cross_entropy'. Got {loss.name!r}. "
            "Leave it out of 'measures'."
        )


def head(work: Work, name: str) -> None:
    """A last linear map."""
    _ = work.head


def inputs(work: Work, name: str) -> None:
    """Layers whose every input goes through their own module."""
    if unseen := work.unseen_layers:
        raise SpiritlevelError(
            f"The measure {name!r} needs to see every input of a layer. The weight of "
            f"{', '.join(unseen)} is also used past its module (tied to another layer, or read by "
            "other code). Choose other 'layers', or measure relative.kappa, which needs no inputs."
        )


def target(work: Work, name: str) -> None:
    """A loss with classes, where the error is what may rise."""
    loss = work.surface.loss
    if work.options.target == "error" and not isinstance(loss, CrossEntropy):
        raise SpiritlevelError(
            f"The measure {name!r} with the option target='error' needs the loss 'cross_entropy', "
            f"which has classes to miss. Got {loss.name!r}. Use target='loss', or 'auto'."
        )


REQUIREMENTS: dict[str, Check] = {
    "class_targets": class_targets,
    "homogeneous": check_homogeneous,
    "initial": initial,
    "layer_inputs": layer_inputs,
    "rectifier": rectifier,
    "feature_layer": feature_layer,
    "float_inputs": check_input,
    "paths": check_paths,
    "region": check_region,
    "features": check_rows,
    "softmax": softmax,
    "head": head,
    "inputs": inputs,
    "matrix": measured_weights,
    "target": target,
}


def refuse(work: Work, name: str, requires: Iterable[str]) -> None:
    """Raise for the first requirement that is not met."""
    for requirement in requires:
        REQUIREMENTS[requirement](work, name)
