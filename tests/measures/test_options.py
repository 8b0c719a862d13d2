"""Options of measures: who declares them, what they take, and what is said about the others."""

import copy
import dataclasses
import pickle

import pytest
from torch import nn

import spiritlevel as sl
from spiritlevel.analysis import reference_problems as problems
from spiritlevel.measures import EVERY, Measured, Measurement, Option, measure
from spiritlevel.measures import options as known
from spiritlevel.need import number, one_of

REFUSED = sl.SpiritlevelError


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setitem(measure.__globals__, "_CARDS", dict(measure.__globals__["_CARDS"]))
    monkeypatch.setattr(known, "_DECLARED", dict(known._DECLARED))


def radius(default=0.1):
    return Option("radius", default, number(above=0), "a number above 0", "size of the ball")


def register(name, *options, module=__name__):
    """A measure whose value is that of its first option."""

    def function(workspace):
        """As said."""
        value = workspace.options.radius
        return Measured(Measurement(name, float(value), exact=True))

    function.__module__ = module
    measure(
        name=name,
        summary="The radius",
        formula="r",
        paper="none",
        invariant=EVERY,
        misleads="Always.",
        options=options,
    )(function)


def found(name, **options):
    problem = problems.softmax_regression()
    return sl.measure(problem.model, problem.data, measures=name, options=options)[name]


def test_a_measure_reads_its_own_option_and_the_record_holds_it():
    register("mine.ball", radius())
    assert found("mine.ball").value == 0.1
    given = found("mine.ball", radius=0.3)
    assert given.value == given.settings["radius"] == 0.3
    assert sl.Options(radius=2).radius == 2
    assert sl.cards("mine.ball")[0].options == ("radius",)


def test_several_measures_share_an_option_as_it_is_or_by_its_name():
    shared = radius()
    register("mine.ball", shared)
    register("mine.sphere", shared, module="another")
    register("mine.shell", "radius", "rho", module="a_third")
    assert found("mine.sphere", radius=0.3).settings["radius"] == 0.3
    assert found("mine.shell").settings["rho"] == 0.05


def test_a_value_that_is_none_is_refused_with_what_the_option_is():
    register("mine.ball", radius())
    text = (
        r"The option 'radius' must be a number above 0\. Got -1\. It is size of the ball; default 0"
    )
    with pytest.raises(REFUSED, match=text):
        found("mine.ball", radius=-1)


def test_a_default_that_the_option_itself_refuses():
    with pytest.raises(REFUSED, match=r"The option 'radius' must be a number above 0\. Got -1"):
        radius(default=-1)


@pytest.mark.parametrize("name", ["my radius", "_radius", ""])
def test_a_name_that_cannot_be_written_as_an_argument(name):
    with pytest.raises(REFUSED, match=r"name of an option must be a word such as 'radius'\. Got '"):
        Option(name, 1, number(), "a number", "anything")


def test_an_option_that_no_measure_has():
    with pytest.raises(
        REFUSED, match=r"'options' argument has no option 'roh'\. Did you mean 'rho'"
    ):
        found("softmax.gini", roh=1)
    with pytest.raises(REFUSED, match=r"sl\.Options has no option 'roh'\. Did you mean 'rho'\?"):
        sl.Options(roh=1)


def test_one_name_for_two_options_of_different_modules():
    register("mine.ball", radius())
    with pytest.raises(REFUSED, match=r"'radius' is declared twice.* in another\. Choose another"):
        register("mine.sphere", radius(default=1), module="another")


def test_a_cell_that_is_run_again_may_change_the_option():
    register("mine.ball", radius())
    register("mine.sphere", radius(default=1))
    assert found("mine.ball").value == found("mine.sphere").value == 1


def test_options_made_before_a_measure_was_registered_have_its_default():
    made = sl.Options(rho=1.0)
    register("mine.ball", radius())
    assert made.radius == 0.1
    with pytest.raises(AttributeError, match="no measure has an option 'raduis'"):
        _ = made.raduis


def test_options_are_values():
    made = sl.Options(rho=1.0)
    assert made == sl.Options(rho=1.0) != sl.Options()
    assert "rho=1.0" in repr(made)
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.rho = 2.0
    for again in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert again == made


def test_numbers_of_numpy_become_those_of_python():
    numpy = pytest.importorskip("numpy")
    made = sl.Options(rho=numpy.float32(0.5), m=numpy.int64(3))
    assert (type(made.rho), type(made.m)) == (float, int)


def test_words_and_models():
    register("mine.ball", Option("shape", "a", one_of("ab"), "a or b", "its shape"), radius())
    assert sl.Options(shape="b").shape == "b"
    with pytest.raises(REFUSED, match=r"'initial' must be a model or its state_dict\. Got 'int'"):
        sl.Options(initial=3)
    assert isinstance(sl.Options(initial=nn.Linear(2, 1)).initial, nn.Linear)


@pytest.mark.parametrize(
    ("region", "need"),
    [
        (3, "in pixels"),
        ((1, 2, 3), "in pixels"),
        ("abcd", "in pixels"),
        ((-1, 0, 2, 2), "with a positive size"),
        ((0, 0, 0, 2), "with a positive size"),
    ],
)
def test_regions_that_are_none(region, need):
    with pytest.raises(REFUSED, match=rf"'region' must be \(top, left, height, width\) {need}"):
        sl.Options(region=region)
    assert sl.Options(region=[0, 1, 2.0, 3]).region == (0, 1, 2, 3)
