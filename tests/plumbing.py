"""Fixtures and rules of all tests, those of the instrument and those of the laboratory."""

import contextlib
import datetime
import functools
import gc
import json
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import chromium

# A shell that starts the tests in the background has them ignore Ctrl-C, and some tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def generator() -> Any:
    import torch  # here, for the process that only hands tests to workers does without

    return torch.Generator().manual_seed(0)


@pytest.fixture
def no_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where more than elementwise functions bend: these would take columns or probes instead."""
    from spiritlevel.engine import row_probing
    from spiritlevel.engine.precision import Precision

    monkeypatch.setattr(Precision, "takes_elements", lambda *_: False)
    monkeypatch.setattr(row_probing, "instead_of", lambda *_: None)


@pytest.fixture
def only_probes(no_elements: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in larger networks: the small ones of tests would take every direction instead."""
    from spiritlevel.engine.weight_space.probes import WeightProbes

    monkeypatch.setattr(WeightProbes, "directions", None)


@pytest.fixture(scope="module")  # while it runs, so does an event loop that others stumble over
def browser() -> Iterator[Any]:
    """Debian's Chromium, or a skip that says what is missing."""
    with chromium.started() as running:
        yield running


def pytest_collection(session: pytest.Session) -> None:
    """Before the first file of tests is imported."""
    options = session.config.option
    if getattr(options, "dist", "no") != "no" and not hasattr(session.config, "workerinput"):
        return  # this process only hands tests to workers
    gc.disable()  # nothing that is imported or collected goes away again
    import torch

    # Tests choose their dtype themselves; one thread, so that sums run in one order.
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):  # an extra
        import typer.main

        # Making all commands from their signatures takes longer than most of them.
        typer.main.get_command = functools.cache(typer.main.get_command)


def pytest_collection_finish() -> None:
    """Whatever was imported stays: the collector need not walk through it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(5000)  # tests that look at memory collect themselves


# -- what a run of the tests leaves to the night -----------------------------------------------


CASES_APART = 2
# The risk is in the numbers: what shows them, and what drives runs, is tried in part by day.
OUTER_ROOMS = (
    *("tests/cli", "tests/inputs", "tests/pages", "lab/tests/commands", "lab/tests/experiments"),
    *("lab/tests/claims", "lab/tests/pages", "lab/tests/papers", "lab/tests/population"),
)
OUTER_TESTS_APART = 4


@pytest.hookimpl(tryfirst=True)  # before those of the night are taken out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked sampled(n), every 2n-th case runs at once, and the others at night.

    Of a file that is marked as a whole, every n-th test runs at once, and of any other file of an
    outer room every fourth. What a planted break needs to be noticed by day is not left to the
    night.
    """
    if config.option.all_samples:
        return
    breaks = json.loads(pathlib.Path(__file__).with_name("planted_breaks.json").read_text("utf-8"))
    by_day = {each["by_day"] for each in breaks if "by_day" in each}
    noticing = {name for each in breaks for name in each["tests"]}
    numbers: dict[tuple[Any, str], int] = {}
    for item in items:
        file, function = item.path.stem, getattr(item, "originalname", item.name)
        node, mark = next(item.iter_markers_with_node("sampled"), (None, None))
        if mark is not None:
            whole_file = isinstance(node, pytest.Module)
            apart = mark.args[0] * (1 if whole_file else CASES_APART)
        elif any(item.path.is_relative_to(config.rootpath / room) for room in OUTER_ROOMS):
            if {file, function, f"{file}::{function}"} & noticing:
                continue
            whole_file, apart = True, OUTER_TESTS_APART
        else:
            continue
        key = item.path, "" if whole_file else function
        numbers[key] = numbers.get(key, -1) + 1
        if numbers[key] % apart and f"{file}::{item.name}" not in by_day:
            item.add_marker("nightly")


# -- the random networks of a night (tests/fuzz): those of another date are other networks ---------

NETWORKS_IN_A_TEST = 50


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("fuzz")
    group.addoption("--fuzz-cases", type=int, default=5000, help="random networks of a night")
    group.addoption("--all-samples", action="store_true", help="leave no case to the night")
    group.addoption("--fuzz-offset", type=int, help="number of the first (default: from the date)")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.fuzz_offset is None:  # chosen once, so that all workers take the same
        config.option.fuzz_offset = int(f"{datetime.date.today():%Y%m%d}") * 10_000


def pytest_report_header(config: pytest.Config) -> str:
    return f"random networks of a night: --fuzz-offset={config.option.fuzz_offset}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "night" in metafunc.fixturenames:
        options, step = metafunc.config.option, NETWORKS_IN_A_TEST
        end = options.fuzz_offset + options.fuzz_cases
        parts = [range(i, min(i + step, end)) for i in range(options.fuzz_offset, end, step)]
        metafunc.parametrize("night", parts, ids=lambda part: f"{part.start}-{part.stop - 1}")
