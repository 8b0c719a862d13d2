"""Chromium, with every page it opens watched: no error, no request, no dialog.

And results made of known numbers, under names that a test chooses.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import chromium
from spiritlevel.engine.weight_space.density import SpectralDensity
from spiritlevel.results import Audit, Comparison, Cost, Measurement, Report, Status
from spiritlevel.verbs.spectra import Eigenvalues, Spectrum

LOCAL = ("data:", "blob:", "about:")
SETTINGS = {
    "loss": "cross_entropy",
    "layers": ["first", "last"],
    "num_samples": 1200,
    "seed": 0,
    "dtype": "float64",
    "confidence": 0.95,
    "torch": "2.0",
}


# -- one browser for this folder ---------------------------------------------------------------

HERE = pathlib.Path(__file__).parent
RUNNING = contextlib.ExitStack()
STARTED: list[Any] = []


@pytest.fixture
def browser() -> Any:
    """Debian's Chromium, started once for all files here: it takes as long as most of the tests."""
    if not STARTED:
        STARTED.append(RUNNING.enter_context(chromium.started()))
    return STARTED[0]


def close_browser() -> None:
    STARTED.clear()
    RUNNING.close()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """While it runs, so does an event loop that the tests of other folders stumble over."""
    if nextitem is None or HERE not in nextitem.path.parents:
        close_browser()


def pytest_sessionfinish() -> None:
    close_browser()


# -- pages ---------------------------------------------------------------------------------------


class Opener:
    """`open_page(html, width=1280, dark=False) -> page`; `offences` are raised after the test."""

    def __init__(self, browser: Any, folder: pathlib.Path) -> None:
        self.browser, self.folder = browser, folder
        self.contexts: list[Any] = []
        self.offences: list[str] = []

    def __call__(self, html: str, *, width: int = 1280, dark: bool = False) -> Any:
        context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            accept_downloads=True,
        )
        self.contexts.append(context)
        page = context.new_page()
        path = self.folder / f"page-{len(self.contexts)}.html"
        path.write_text(html, encoding="utf-8")

        def refuse(dialog: Any) -> None:
            self.offences.append(f"dialog: {dialog.message}")
            dialog.dismiss()

        def request(request: Any) -> None:
            if not request.url.startswith((*LOCAL, path.as_uri())):
                self.offences.append(f"request: {request.url}")

        def console(message: Any) -> None:
            if message.type in ("error", "warning"):
                self.offences.append(f"console {message.type}: {message.text}")

        page.on("dialog", refuse)
        page.on("request", request)
        page.on("console", console)
        page.on("pageerror", lambda error: self.offences.append(f"error: {error}"))
        page.goto(path.as_uri())
        return page


@pytest.fixture
def open_page(browser: Any, tmp_path: pathlib.Path) -> Iterator[Opener]:
    opener = Opener(browser, tmp_path)
    yield opener
    for context in opener.contexts:
        context.close()
    assert opener.offences == []


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
    """Trace and κ disagree, and equal confidence turns the order of the trace round."""

    def values(trace: float, kappa: float, gini: float) -> Report:
        return reported(
            [
                measured("curvature.trace", trace, data_stderr=0.5),
                measured("relative.kappa", kappa),
                measured("softmax.gini", gini),
            ]
        )

    def make(first: str = "sgd", second: str = "adam", *, match: bool = True) -> Comparison:
        matched = {first: values(9.0, 5.0, 0.2), second: values(2.0, 3.0, 0.2)}
        return Comparison(
            {first: values(10.0, 5.0, 0.2), second: values(20.0, 3.0, 0.4)},
            matched=matched if match else None,
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


def rows_of(page: Any, identifier: str) -> list[list[str]]:
    """The cells that a reader sees in a table, row by row."""
    return page.eval_on_selector_all(
        f"#{identifier} tbody tr:not([hidden])",
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))",
    )


@pytest.fixture(name="rows_of")
def _rows_of():
    return rows_of
