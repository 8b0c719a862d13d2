"""The public face: what the top level holds, and how its verbs are called."""

import inspect
import pathlib
import re
import types

import pytest

import spiritlevel as sl
from spiritlevel import results

SRC = pathlib.Path(sl.__file__).parent
VERBS = {"audit", "cards", "compare", "density", "eigenvalues", "landscape", "measure", "neurons"}
VERBS |= {"activation_curvature", "diagonal", "operator", "preflight", "pruning", "quantization"}
CONSTRUCTED = {"ASAM", "FlatnessMonitor", "FlatnessPenalty", "FlatnessStopping", "HeadPenalty"}
CONSTRUCTED |= {"KappaPenalty", "NoiseSAM", "Options", "SAM"}
NETWORKS = {"merged"}  # gives a network to measure, not a record
ERRORS = {"MissingExtra", "SpiritlevelError"}
RECORDS = {"Measurement", "Report"}  # users write them in type hints, and read saved reports


def public(module):
    """What a user is offered: names load when they are first used."""
    offered = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    return {name for name, value in offered.items() if not isinstance(value, types.ModuleType)}


def test_the_top_level_holds_verbs_and_what_users_construct():
    assert public(sl) == VERBS | NETWORKS | CONSTRUCTED | ERRORS | RECORDS


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_a_record_is_the_same_in_both_places(name):
    assert getattr(sl, name) is getattr(results, name)


def test_every_record_that_a_verb_returns_is_in_results():
    for verb in VERBS - {"cards"}:
        returned = inspect.signature(getattr(sl, verb)).return_annotation
        for name in re.findall(r"[A-Z]\w+", returned):
            assert isinstance(getattr(results, name), type), verb


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_no_verb_hides_its_arguments(verb):
    parameters = inspect.signature(getattr(sl, verb)).parameters.values()
    assert not [p.name for p in parameters if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


@pytest.mark.parametrize(
    ("verb", "left_out"),
    [
        ("preflight", set()),
        ("neurons", {"measures", "options", "arithmetic", "budget"}),
        # its default method differs: the GGN, whose values have no noise; rounding would be some
        ("audit", {"method", "arithmetic"}),
        ("compare", {"model", "budget"}),
    ],
)
def test_shared_arguments_have_the_defaults_of_measure(verb, left_out):
    whole = inspect.signature(sl.measure).parameters
    shown = inspect.signature(getattr(sl, verb)).parameters
    for name in set(whole) - left_out:
        assert shown[name].default == whole[name].default, name
        assert shown[name].annotation.removeprefix("api.") == whole[name].annotation, name


def test_progress_has_one_shape():
    defined = [
        p
        for p in SRC.rglob("*.py")
        if re.search(r"^Progress\b.*=|^class Progress\b", p.read_text("utf-8"), re.M)
    ]
    assert [path.name for path in defined] == ["measurements.py"]
