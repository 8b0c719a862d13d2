"""Arguments that no function can use are refused in our own words, however large they are."""

import contextlib
import math
import re

import numpy
import pytest
import torch

import spiritlevel as sl
from hostile.records import data, network
from results.refusals import INF, NAN, refused
from spiritlevel.cli.inputs import parse_memory
from spiritlevel.errors import LONGEST, NotFinite, SpiritlevelError, brief
from spiritlevel.measures.options import A_LENGTH, Options, declared_options
from spiritlevel.study import Study
from spiritlevel.training.monitor.rows import open_sinks

HUGE = 10**5000  # more digits than Python writes
BITS = "a whole number of 16,610 bits"
LONG = "x" * 100_000
HALF = "\ud800"  # of a character
LENGTHS = [each.name for each in declared_options().values() if each.wanted == A_LENGTH]
WORDS = ("arithmetic", "method", "loss", "head", "layers", "measures")
ARRAYS = [numpy.array(["full", "x"]), numpy.array([1, 2]), torch.tensor([1, 2])]


def name_of(value):
    """In the name of a test: pytest itself would write the whole number."""
    return brief(value)[:40]


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "came"),
    [
        (INF, "inf, of type float"),
        (NAN, "nan, of type float"),
        (-INF, "-inf, of type float"),
        (3000.5, r"3000\.5, of type float"),
        (1e300, r"1e\+300, of type float"),
        (True, "True, of type bool"),
        ("9" * 400, "'999.*9', of type str"),
        (2**63, "9223372036854775808, of type int"),
        (HUGE, f"{BITS}, of type int"),
    ],
    ids=name_of,
)
def test_memory_that_is_no_number_of_bytes(memory, came):
    need = r"'memory' argument of measure must be a whole number of bytes below 2\*\*63, or None"
    refused(rf"{need}\. Got {came}\.$", memory=memory)


@pytest.mark.parametrize("verb", [sl.measure, sl.preflight, sl.eigenvalues, sl.density, sl.pruning])
def test_memory_may_be_written_as_a_float(verb):
    assert verb(network(0), data(), memory=3e6) is not None


@pytest.mark.parametrize("text", ["9" * 400, "9999999999999T", "0", "0.5", "3X"])
def test_memory_on_the_command_line(text):
    with pytest.raises(SpiritlevelError, match=rf"less than 2\*\*63 bytes\. Got '{text[:90]}") as e:
        parse_memory(text)
    assert len(str(e.value)) < 400


# -- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("array", ARRAYS, ids=["texts", "numbers", "tensor"])
@pytest.mark.parametrize("name", WORDS)
def test_an_array_where_a_word_is_expected(name, array):
    text = refused(rf"The '{name}' argument of measure must be", **{name: array})
    assert f"Got {brief(array)}, of type {type(array).__name__}." in text


@pytest.mark.parametrize("name", ["target", "bandwidth", "kernel"])
def test_an_array_where_an_option_is_a_word(name):
    with pytest.raises(SpiritlevelError, match=rf"option '{name}' must be .* Got array\(\[1, 2\]"):
        Options(**{name: ARRAYS[1]})


@pytest.mark.parametrize("name", WORDS)
def test_a_long_text_is_shown_in_part(name):
    words = " ".join(["word"] * 20_000)
    for given in (LONG, words):
        text = refused("measure|loss|layers|head|method|arithmetic", **{name: given})
        assert len(text) <= LONGEST
        assert given[:50] in text
        assert "..." in text


OTHERS = ("bandwidth", "kernel", "weight_decay")  # a word, 0 or None instead of a length


# -- large numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [HUGE, -HUGE, [HUGE], (HUGE, 2)], ids=name_of)
def test_bits_and_groups_with_more_digits_than_python_writes(value):
    for name in ("bits", "group_size"):
        with pytest.raises(SpiritlevelError, match=f"'{name}' argument .* Got .*{BITS}"):
            sl.quantization(network(0), data(), **{name: value})


def test_a_pattern_that_is_a_large_number():
    with pytest.raises(SpiritlevelError, match=f"must be a text. Got {BITS}. See `spirit"):
        sl.cards(HUGE)


@pytest.mark.parametrize("name", ["max_passes", "memory", "arithmetic", "method"])
def test_arguments_that_are_large_numbers(name):
    refused(f"'{name}' argument of measure must be .* Got {BITS}, of type int", **{name: HUGE})


@pytest.mark.parametrize("name", [*LENGTHS, *OTHERS, "draws", "m", "failure"])
def test_options_that_are_large_numbers(name):
    with pytest.raises(SpiritlevelError, match=f"option '{name}' must be .* Got {BITS}. It is"):
        Options(**{name: HUGE})


@pytest.mark.parametrize("name", [*LENGTHS, *OTHERS])
def test_lengths_whose_powers_are_no_numbers(name):
    for value in (1e300, 1e-300, math.nan, *([] if name == "weight_decay" else [0.0])):
        match = f"option '{name}' must be .* from 1e-30 to 1e.30. Got {re.escape(repr(value))}. It"
        with pytest.raises(SpiritlevelError, match=match):
            Options(**{name: value})


@pytest.mark.parametrize("value", [1e30, 1e-30])
@pytest.mark.parametrize("name", [*LENGTHS, *OTHERS])
def test_the_outermost_lengths_end_in_numbers_or_in_a_reason(name, value):
    reading = [card.name for card in sl.cards() if name in card.options]
    assert reading
    overflows = contextlib.suppress(NotFinite)
    for measure in reading:
        with overflows:
            sl.measure(network(0), data(), measures=measure, options={name: value}, max_passes=9)


@pytest.mark.parametrize("name", ["draws", "restarts", "ascent_steps", "splits"])
def test_counts_that_would_never_end(name):
    match = f"option '{name}' must be .* at most 1,000,000. Got 1099511627776. It is"
    with pytest.raises(SpiritlevelError, match=match):
        Options(**{name: 2**40})


def test_draws_of_an_audit_that_would_fill_the_memory():
    match = r"'draws' argument of audit must be from 1 to 10,000: .* Got 1099511627776\. Three"
    with pytest.raises(SpiritlevelError, match=match):
        sl.audit(network(0), data(), draws=2**40)


@pytest.mark.parametrize("draws", [True, 2.0, "3", HUGE], ids=name_of)
def test_draws_of_an_audit_that_are_no_whole_number(draws):
    came = BITS if draws == HUGE else repr(draws)
    with pytest.raises(SpiritlevelError, match=f"'draws' argument of audit .* Got {came}, of type"):
        sl.audit(network(0), data(), draws=draws)


# -- other networks, and files -------------------------------------------------------------------


def state(change):
    return {name: change(weight) for name, weight in network(1).state_dict().items()}


@pytest.mark.parametrize(
    ("to", "match"),
    [
        (3, "a state dict, or a list .* Got int"),
        (torch.tensor(1.0), "a state dict, or a list .* Got Tensor"),
        (torch.empty((), device="meta"), "a state dict, or a list .* Got Tensor"),
        (numpy.array(1.0), "a state dict, or a list .* Got ndarray"),
        (torch.device("meta"), "a state dict, or a list .* Got device"),
        (iter(int, 1), "a state dict, or a list .* Got int"),
        (network(1).to("meta"), "has '0.weight' .* on the device 'meta', without values"),
        (state(lambda w: w.to("meta")), "has '0.weight' .* on the device 'meta', without values"),
        (state(lambda w: w.to_sparse()), "has '0.weight' .* it is torch.sparse_coo"),
        (state(lambda w: 3), "has under '0.weight' a value of type int, not a tensor"),
        (state(lambda w: w.numpy()), "has under '0.weight' a value of type ndarray"),
        ({HUGE: torch.zeros(1)}, f"has {BITS}, which the model does not have"),
    ],
    # the same in every process that collects them
    ids=[
        "number",
        "tensor",
        "meta",
        "array",
        "device",
        "endless",
        "network",
        "state",
        "sparse",
        "numbers",
        "arrays",
        "huge",
    ],
)
def test_a_landscape_to_what_is_no_network(to, match):
    with pytest.raises(SpiritlevelError, match=f"The 'to' argument must be .*{match}"):
        sl.landscape(network(0), data(), to=to, points=3)


@pytest.mark.parametrize("to", [3, {HUGE: 1}, torch.empty(3, device="meta")], ids=name_of)
def test_a_monitor_to_what_is_no_file(to):
    with pytest.raises(SpiritlevelError, match="The 'to' argument must be a path") as caught:
        open_sinks(to, [])
    assert str(caught.value).endswith(f"Got {brief(to)}.")


def test_half_of_a_character_is_in_no_path():
    with pytest.raises(SpiritlevelError, match=r"'cache' argument .* Got '\\ud800', of type str"):
        sl.landscape(network(0), data(), points=3, cache=HALF)
    with pytest.raises(SpiritlevelError, match=r"'to' argument must be a path. Got '\\ud800.csv'"):
        open_sinks(f"{HALF}.csv", [])


def test_half_of_a_character_is_in_no_study():
    with pytest.raises(SpiritlevelError, match=r"description must be a text .* Got 'a\\udc80b'"):
        Study(name="x", description="a\udc80b", model="mlp", data="digits")


# -- how values are shown ------------------------------------------------------------------------


def test_what_fits_is_shown_whole():
    for value in ("tf32", 2**63, 0.5, [1, 2, 3], {"a": (1, None)}, "a path/" * 25):
        assert brief(value) == repr(value)


def test_what_does_not_fit_is_shown_in_part():
    assert brief({"a": [HUGE]}) == f"{{'a': [{BITS}]}}"
    assert len(brief(LONG)) == 200
    assert "\n" not in brief(torch.zeros(9, 9))


def test_an_error_is_short_whatever_its_text_repeats():
    assert str(SpiritlevelError("The 'x' must be > 0. Got -1.")) == "The 'x' must be > 0. Got -1."
    assert len(str(SpiritlevelError(f"Got {LONG!r}. Choose another."))) < 300
    shortened = str(SpiritlevelError(f"Got {'a b ' * 9_000}. Choose another."))
    assert shortened.startswith("Got a b ")
    assert shortened.endswith(". Choose another.")
    assert len(shortened) <= LONGEST
