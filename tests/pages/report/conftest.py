"""Results made of known numbers, under names that a test chooses."""

from typing import Any

import pytest
import torch

from opened_pages import browser as browser
from opened_pages import named_rows_of as named_rows_of
from opened_pages import open_page as open_page
from opened_pages import pytest_runtest_teardown as pytest_runtest_teardown
from opened_pages import pytest_sessionfinish as pytest_sessionfinish
from spiritlevel.engine.weight_space.density import SpectralDensity
from spiritlevel.results import Audit, Comparison, Cost, Measurement, Report, Scale, Status
from spiritlevel.verbs.spectra import Eigenvalues, Spectrum

SETTINGS = {
    "loss": "cross_entropy",
    "layers": ["first", "last"],
    "num_samples": 1200,
    "seed": 0,
    "dtype": "float64",
    "confidence": 0.95,
    "torch": "2.0",
}


def measured(name: str, value: float, **fields: Any) -> Measurement:
    fields = {"exact": True, "cost": Cost(forwards=1200, backwards=3600)} | fields
    return Measurement(name, value, settings=fields.pop("settings", SETTINGS), **fields)


def reported(measurements: list[Measurement], layers: dict[str, Any] | None = None) -> Report:
    by_name = {m.name: m for m in measurements}
    return Report(by_name, layers=layers or {}, settings=SETTINGS, cost=Cost(forwards=2400))


@pytest.fixture
def a_report():
    """Six measures, one of each way to be found; `trace` and `layer` name one measure and layer."""

    def make(trace: str = "curvature.trace", layer: str = "first", text: str = "") -> Report:
        estimate = {"exact": False, "stderr": 0.5, "interval": (9.0, 11.0), "text": text}
        residual = {"exact": False, "residual": 0.25, "data_stderr": 0.125}
        rho = {"settings": SETTINGS | {"rho": 0.05}}
        unfinished = {"exact": False, "stderr": 2.0, "status": Status.NOT_CONVERGED}
        return reported(
            [
                measured(trace, 10.0, **estimate),
                measured("relative.kappa", 2.5, data_stderr=0.75),
                measured("curvature.lambda_max", 3.0, **residual),
                measured("sharpness.average", 7.0, **unfinished, **rho),
                measured("head.trace", float("inf"), status=Status.NONFINITE, exact=False),
                measured("curvature.ggn_trace", 4.0, exact=False, stderr=1.0, status=Status.GGN),
            ],
            layers={
                trace: {
                    layer: measured(trace, 8.0, **estimate),
                    "last": measured(trace, 2.0),
                },
                "relative.kappa": {layer: measured("relative.kappa", 2.5)},
            },
        )

    return make


@pytest.fixture
def an_audit():
    """One measure that rescaling multiplies by 25, one that nothing moves, and a confounder."""

    def values(trace: str, first: float, gini: float) -> Report:
        return reported(
            [
                measured(trace, first),
                measured("relative.kappa", 2.0),
                measured("softmax.gini", gini),
                measured("sharpness.worst", first / 4, exact=False, residual=50.0),
            ],
            layers={trace: {"last": measured(trace, first)}},
        )

    def make(trace: str = "curvature.trace", move: str = "layer_rescale") -> Audit:
        return Audit(
            values(trace, 4.0, 0.5),
            {
                move: [values(trace, 8.0, 0.5), values(trace, 100.0, 0.5)],
                "logit_temperature": [values(trace, 4.0, 0.25)],
            },
            moves={move: "multiply 'a' by α", "logit_temperature": "multiply the head by 2"},
            absent={"batchnorm_absorb": "there is no BatchNorm"},
        )

    return make


@pytest.fixture
def a_comparison():
    """Equal confidence turns the order by ρ round, and the trace is forbidden."""

    def values(rho: float, kappa: float, gini: float) -> Report:
        return reported(
            [
                measured("curvature.trace", 7.0),
                measured("neuron.rho_sum", rho, data_stderr=0.5),
                measured("relative.kappa", kappa),
                measured("softmax.gini", gini),
            ]
        )

    unchanged = Scale("unchanged", "no symmetry changes it")
    scales = {
        "curvature.trace": Scale("changes", "9 times under layer_rescale"),
        "neuron.rho_sum": unchanged,
        "relative.kappa": unchanged,
    }

    def make(first: str = "sgd", second: str = "adam", *, match: bool = True) -> Comparison:
        matched = {first: {second: values(30.0, 5.0, 0.4)}}
        return Comparison(
            {first: values(10.0, 5.0, 0.2), second: values(20.0, 3.0, 0.4)},
            matched_pairs=matched if match else None,
            scales=scales,
            unmatched="" if match else "the head is <b>not</b> linear",
        )

    return make


@pytest.fixture
def a_spectrum():
    """Eigenvalues −1 and 4, the first not converged; three quarters of the density lie at 0."""

    def make(parameter: str = "weight", *, density: bool = True) -> Spectrum:
        pairs = Eigenvalues(
            values=[4.0, -1.0],
            residuals=[0.001, 0.5],
            converged=[True, False],
            vectors=torch.eye(2),
            names=(parameter,),
            cost=Cost(products=12000),
            settings=SETTINGS
            | {"matrix": "hessian", "sizes": {parameter: 400}, "which": "both", "max_passes": 10},
        )
        nodes = torch.tensor([[0.0, 4.0], [0.0, 2.0]]).double()
        weights = torch.tensor([[0.75, 0.25], [0.75, 0.25]]).double()
        return Spectrum(pairs, SpectralDensity(nodes, weights, size=400) if density else None)

    return make
