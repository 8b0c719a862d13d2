"""spiritlevel, as a user calls it."""

from __future__ import annotations

from tools import (
    DEFAULT,
    DENSITY,
    DIAGONAL,
    EXACT,
    GGN,
    LARGEST,
    LAYERS,
    STEPS,
    TOLERANCES,
    Answer,
    Library,
    Way,
)
from torch import Tensor, nn

import spiritlevel as sl

ENOUGH = 1000  # probes at most, to 1 %; the default is meant for larger tolerances
PROBES = 200  # for a reference


class Spiritlevel(Library):
    name = "spiritlevel"
    package = "spiritlevel"

    def ways(self, question: str) -> list[Way]:
        return [Way("", lambda seed, products: self.answer(question, seed))]

    def answer(self, question: str, seed: int) -> Answer:
        model, data = self.model, self.data
        if question == LARGEST:
            return float(sl.eigenvalues(model, data, seed=seed).values[0])
        if question == DENSITY:
            found = sl.density(model, data, num_vectors=1, steps=STEPS, seed=seed)
            return float(found.moment(1)[0])
        if question == DIAGONAL:
            return sl.diagonal(model, data, kind="hessian", seed=seed).values
        name = "curvature.ggn_trace" if question == GGN else "curvature.trace"
        if question == EXACT:
            # a network that is one linear layer is all head, which has a closed form
            name = "head.trace" if isinstance(model, nn.Linear) else name
            report = sl.measure(model, data, measures=name, method="exact", seed=seed)
            if not report[name].exact:
                raise ValueError("not certified as exact")
        elif question == DEFAULT:
            report = sl.measure(model, data, measures=name, seed=seed)
        else:
            rtol = TOLERANCES[question]
            precision = {"rtol": rtol} if rtol > 0.01 else {"rtol": rtol, "max_passes": ENOUGH}
            report = sl.measure(model, data, measures=name, seed=seed, **precision)
        if question == LAYERS:
            found = report.layers[name]
            return {layer: Tensor([value.value]).double()[0] for layer, value in found.items()}
        return report[name].value


def reference(model: nn.Module, data: tuple[Tensor, Tensor], rtol: float) -> sl.Report:
    """Traces to a small tolerance, or as near to it as some probes lead, where none are exact."""
    names = ["curvature.trace", "curvature.ggn_trace"]
    return sl.measure(model, data, measures=names, rtol=rtol, max_passes=PROBES, seed=17)
