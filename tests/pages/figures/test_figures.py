"""Pictures show the numbers they were given."""

import itertools
import math

import pytest

import spiritlevel as sl
from spiritlevel.inputs.data import digits
from spiritlevel.inputs.models import build
from spiritlevel.pages import figures as plots

pytestmark = pytest.mark.sampled(2)  # the others at night


@pytest.fixture(scope="module")
def reports() -> dict[str, sl.Report]:
    x, y = digits("test")
    return {
        f"net {seed}": sl.measure(build("mlp", seed=seed, hidden=(8,)).eval(), (x[:50], y[:50]))
        for seed in range(3)
    }


def lines_of(ax) -> dict:
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def test_points_stand_at_measure_and_outcome(reports):
    gaps = {"net 0": 0.1, "net 1": 0.3, "net 2": 0.2}
    errors = dict.fromkeys(gaps, 0.01)
    ax = plots.against(reports, gaps, "relative.kappa", errors=errors, path=("net 0", "net 2"))
    assert ax.get_xlabel() == "relative.kappa"
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    found = lines_of(ax)
    for name, report in reports.items():
        [(x, y)] = found[name].get_xydata()
        assert (x, y) == (report["relative.kappa"].value, gaps[name])
    looks = {(line.get_color(), line.get_marker()) for line in found.values()}
    assert len(looks) == 3


def test_outcomes_below_zero_get_a_linear_axis(reports):
    gaps = {"net 0": -0.1, "net 1": 0.3, "net 2": 0.2}
    assert plots.against(reports, gaps, "relative.kappa").get_yscale() == "linear"


def test_layers_are_drawn_in_order(reports):
    ax = plots.layers(reports, "relative.kappa")
    for name, line in lines_of(ax).items():
        expected = [m.value for m in reports[name].layers["relative.kappa"].values()]
        assert list(line.get_ydata()) == expected
    assert [label.get_text() for label in ax.get_xticklabels()] == ["fc1", "head"]


def test_layers_that_only_one_network_has_get_a_place_of_their_own(reports):
    def only(report: sl.Report, *names: str) -> sl.Report:
        layers = {"relative.kappa": {n: report.layers["relative.kappa"]["fc1"] for n in names}}
        return sl.Report(dict(report), layers=layers, settings=report.settings, cost=report.cost)

    one, other = only(reports["net 0"], "a", "c"), only(reports["net 1"], "$a$", "c")
    ax = plots.layers({"one": one, "_other": other}, "relative.kappa")
    places = {name.strip(): list(line.get_xdata()) for name, line in lines_of(ax).items()}
    assert places == {"one": [0, 1], "_other": [2, 1]}
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "c", r"\$a\$"]


def test_layers_of_a_measure_without_layers_are_refused(reports):
    with pytest.raises(sl.SpiritlevelError, match=r"'net 0' has no layers of 'softmax\.gini'"):
        plots.layers(reports, "softmax.gini")


def test_moves_are_relative_to_factor_one():
    ax = plots.moves([0.1, 1.0, 10.0], {"a": [4.0, 2.0, 8.0], "b": [3.0, 3.0, 3.0]})
    found = {name: list(line.get_ydata()) for name, line in lines_of(ax).items()}
    assert found == {"a": [2.0, 1.0, 4.0], "b": [1.0, 1.0, 1.0]}


def boxes(ax) -> dict:
    renderer = ax.figure.canvas.get_renderer()
    return {text.get_text(): text.get_window_extent(renderer) for text in ax.texts}


def test_names_beside_crowded_points_do_not_overlap(reports):
    many = {f"network {i}": reports[f"net {i % 3}"] for i in range(7)}
    gaps = {name: 0.1 * (1 + 0.15 * i) for i, name in enumerate(many)}
    ax = plots.against(many, gaps, "relative.kappa")
    plots.settle(ax.figure)
    plots.label_points(ax)
    found = boxes(ax)
    assert set(found) == set(many)
    frame = ax.get_window_extent()
    for box in found.values():
        assert frame.x0 - 1 <= box.x0
        assert box.x1 <= frame.x1 + 1
    for a, b in itertools.combinations(found.values(), 2):
        assert not a.overlaps(b)


def test_names_at_line_ends_do_not_overlap(reports):
    many = {f"network {i}": reports["net 0"] for i in range(5)}  # five lines on top of each other
    ax = plots.layers(many, "relative.kappa")
    plots.settle(ax.figure)
    plots.label_ends(ax)
    for a, b in itertools.combinations(boxes(ax).values(), 2):
        assert not a.overlaps(b)


def test_spread_keeps_order_distance_and_centre():
    positions = [0.0, 0.5, 0.6, 4.0, 20.0]
    moved = plots.spread(positions, 2.0)
    assert all(b - a >= 2.0 - 1e-12 for a, b in itertools.pairwise(moved))
    assert moved[-1] == 20.0
    assert math.isclose(sum(moved), sum(positions))


@pytest.mark.parametrize(
    ("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_same_figure_gives_the_same_bytes(reports, kind, start):
    drawn = [plots.save(plots.layers(reports, "relative.kappa").figure, kind) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith(start)


def test_colours_differ_for_the_colour_blind():
    # Luminance alone separates no two of seven; colour and shape together must.
    looks = {tuple(plots.style(i).values()) for i in range(7)}
    assert len(looks) == len({c for c, _ in looks}) == len({m for _, m in looks}) == 7
    assert len({tuple(plots.style(i).values()) for i in range(49)}) == 49
