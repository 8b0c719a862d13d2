"""The exactness certificate: is a layer's Hessian block its Gauss–Newton block?

H = GGN + Σ_c ∂ℓ/∂z_c · ∇²z_c. The second part vanishes where the outputs are piecewise linear in
the layer's weights (ReLU, max pooling, eval-mode BatchNorm, residual sums). Every chunk of the data
is asked for it, by the graph that autograd recorded for that chunk (`model.linearity`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping


@dataclasses.dataclass(frozen=True)
class Certificate:
    """Whether the outputs are piecewise linear in a parameter, on all the data."""

    linear: bool
    reason: str = ""


def certify(parameters: Iterable[str], bends: Mapping[str, str]) -> dict[str, Certificate]:
    """One certificate per parameter; `bends` names those that bend the outputs, and by what."""
    return {
        name: Certificate(False, f"the outputs bend along it (through {bends[name]})")
        if name in bends
        else Certificate(True)
        for name in parameters
    }
