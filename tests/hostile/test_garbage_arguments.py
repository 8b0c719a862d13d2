"""Every verb refuses a wrong argument in our own words, whatever it is."""

import inspect
import random

import pytest

import spiritlevel as sl
from hostile import garbage
from hostile.records import data, network
from spiritlevel.ground.errors import LONGEST

pytestmark = pytest.mark.sampled(2)  # the others at night

TRACE = "curvature.trace"
LEFT_OUT = ("forward", "progress", "on_report")  # functions of the user


def verbs():
    """Each verb with arguments that work and take little time."""
    net, x_y = network(0), data()
    return {
        sl.measure: {"model": net, "data": x_y, "measures": TRACE},
        sl.preflight: {"model": net, "data": x_y, "measures": TRACE},
        sl.eigenvalues: {"model": net, "data": x_y, "max_passes": 5},
        sl.density: {"model": net, "data": x_y, "num_vectors": 1, "steps": 2},
        sl.landscape: {"model": net, "data": x_y, "points": 3},
        sl.audit: {"model": net, "data": x_y, "measures": TRACE},
        sl.compare: {
            "models": {"a": net, "b": network(1)},
            "data": x_y,
            "measures": TRACE,
            "match_confidence": False,
        },
        sl.cards: {},
        sl.operator: {"model": net, "data": x_y},
        sl.diagonal: {"model": net, "data": x_y, "num_probes": 2},
        sl.quantization: {"model": net, "data": x_y, "bits": (4,), "check": False},
        sl.pruning: {"model": net, "data": x_y, "check": False},
    }


def places() -> list[tuple[int, str, int]]:
    """Every argument of every verb with every wrong value, as numbers that do not change."""
    return [
        (verb, name, value)
        for verb, function in enumerate(verbs())
        for name in inspect.signature(function).parameters
        if name not in LEFT_OUT
        for value in range(len(garbage.values()))
    ]


def attempt(place: tuple[int, str, int]) -> str:
    number, name, which = place
    verb, arguments = list(verbs().items())[number]
    value = garbage.values()[which]
    try:
        verb(**(arguments | {name: value}))
    except sl.SpiritlevelError as error:
        return str(error)
    except Exception as error:
        text = f"{verb.__name__}({name}={garbage.name(value)}) raised {type(error).__name__}"
        raise AssertionError(f"{text}: {error}") from error
    return ""


def test_arguments_that_work():
    for verb, arguments in verbs().items():
        assert verb(**arguments) is not None, verb.__name__


def test_some_wrong_arguments():
    texts = list(map(attempt, random.Random(5).sample(places(), 200)))
    assert sum(map(bool, texts)) > 100  # meta: most of them are wrong
    assert max(map(len, texts)) <= LONGEST
    assert all("Got" in text or "must" in text or "No " in text for text in texts if text)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(20))
def test_all_wrong_arguments(part):
    for place in places()[part::20]:
        attempt(place)


@pytest.mark.parametrize("name", ["model", "data", "loss", "measures", "layers", "memory", "seed"])
def test_the_error_names_the_argument(name):
    wrong = garbage.Strange()
    with pytest.raises(sl.SpiritlevelError, match=r"Strange") as caught:
        sl.measure(**({"model": network(0), "data": data()} | {name: wrong}))
    assert name in str(caught.value) or "data" in str(caught.value)
