"""Verbs from a setup: what users see of them, and how wrong calls are refused."""

from __future__ import annotations

import inspect
import pathlib
import typing
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.measures import setup as setups
from spiritlevel.measures.setup import AllShared, OnLayers, Setup
from spiritlevel.measures.verb import verb
from spiritlevel.model.arguments import ArgumentCheck
from spiritlevel.need import is_whole

if TYPE_CHECKING:
    from typing_extensions import Unpack

VERBS = [sl.measure, sl.preflight, sl.audit, sl.compare, sl.eigenvalues, sl.density, sl.landscape]
VERBS += [sl.neurons, sl.operator, sl.diagonal, sl.activation_curvature]
VERBS += [sl.quantization, sl.pruning]
NAMES = [each.__name__ for each in VERBS]
KINDS = [kind for kind in vars(setups).values() if typing.is_typeddict(kind)]


@verb(num=ArgumentCheck(is_whole, "a whole number"))
def doubled(setup: Setup, model, data, *, num: int = 1, **shared: Unpack[OnLayers]) -> int:
    """Twice the number."""
    return 2 * num + setup.seed


def plain(
    model,
    data,
    *,
    num=1,
    loss="",
    layers=None,
    head=None,
    forward=None,
    memory=None,
    seed=0,
    distributed=True,
    progress=None,
):
    """What a function of the same arguments says."""


plain.__name__ = plain.__qualname__ = "doubled"
PAIR = nn.Linear(2, 2), (torch.zeros(3, 2), torch.zeros(3).long())


def test_it_is_called_with_its_setup():
    assert doubled(*PAIR, num=4, seed=3) == 11


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1,), {}),
        ((1, 2, 3), {}),
        ((1, 2), {"colour": 3}),
        ((1, 2), {"rtol": 0.1}),  # of other verbs
        ((1, 2), {"model": 3}),
        ((1, 2), {"setup": 3}),
    ],
)
def test_pythons_own_errors_stay(args, kwargs):
    texts = []
    for function in (plain, doubled):
        with pytest.raises(TypeError) as error:
            function(*args, **kwargs)
        texts.append(str(error.value))
    assert texts[0] == texts[1]


def test_an_argument_without_a_check_is_refused():
    with pytest.raises(TypeError, match="needs a check of unchecked's argument 'num'"):

        @verb()
        def unchecked(setup, model, data, *, num: int = 1, **shared: Unpack[OnLayers]): ...


@pytest.mark.parametrize("number", range(len(VERBS)), ids=NAMES)
def test_every_verb_is_checked_and_flat(number):
    shown, body = inspect.signature(VERBS[number]), inspect.unwrap(VERBS[number])
    assert next(iter(inspect.signature(body).parameters)) == "setup"  # so `verb` made it
    for parameter in shown.parameters.values():
        assert parameter.annotation is not parameter.empty
        assert parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    assert VERBS[number].__annotations__.keys() == shown.parameters.keys() | {"return"}
    assert VERBS[number].__doc__ == body.__doc__


def test_these_are_all_verbs():
    root = pathlib.Path(sl.__file__).parent
    made = [path for path in root.rglob("*.py") if "\n@verb(" in path.read_text("utf-8")]
    assert sum(path.read_text("utf-8").count("\n@verb(") for path in made) == len(VERBS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_keywords_are_the_fields_of_a_setup(kind):
    fields = inspect.signature(Setup).parameters
    for name, annotation in kind.__annotations__.items():
        assert getattr(annotation, "__forward_arg__", annotation) == fields[name].annotation, name


def test_all_shared_keywords_are_all_fields():
    assert AllShared.__optional_keys__ == inspect.signature(Setup).parameters.keys()


def test_a_setup_can_be_passed_on():
    network, data = PAIR
    setup = Setup(seed=3, layers="weight", rtol=0.5)
    assert setup.keywords(OnLayers)["seed"] == 3
    assert "rtol" not in setup.keywords(OnLayers)
    assert doubled(network, data, **Setup(seed=3).keywords(OnLayers)) == 5
    assert Setup(**setup.keywords(AllShared)).rtol == 0.5


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"num": 1.5}, "The 'num' argument of doubled must be a whole number. Got 1.5, of type"),
        ({"seed": "a"}, "The 'seed' argument of doubled must be a whole number of Python"),
        ({"memory": -1}, "The 'memory' argument must be a positive number of bytes. Got -1."),
    ],
)
def test_wrong_values_are_refused(wrong, text):
    with pytest.raises(sl.SpiritlevelError) as error:
        doubled(*PAIR, **wrong)
    assert str(error.value).startswith(text)
