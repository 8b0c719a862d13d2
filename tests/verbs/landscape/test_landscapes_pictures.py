"""Pictures of slices, and `spiritlevel landscape`."""

import itertools
import json
import math
import re

import pytest
import torch
from typer.testing import CliRunner

from spiritlevel.cli.app import app
from spiritlevel.inputs.checkpoints import load_checkpoint, save_checkpoint
from spiritlevel.inputs.data import digits
from spiritlevel.inputs.models import build
from spiritlevel.pages.figures import save
from spiritlevel.pages.figures.landscapes import contour_levels
from spiritlevel.pages.figures.landscapes import landscape as draw
from spiritlevel.results import Cost
from spiritlevel.verbs.landscape import Axis, Landscape, Mark, grid, landscape

pytestmark = pytest.mark.sampled(2)  # the others at night

HOSTILE = "<img src=x onerror=alert(1)> $x$"
SMALL = ["--model", "mlp", "--model-arg", "hidden=8", "--samples", "60", "--dtype", "float64"]


def record(losses, *, dimensions=1, errors=None, eigenvalue=None, names=("the network",)):
    """On the grid −1, −0.5, 0, 0.5, 1 along each axis."""
    path = len(names) > 1
    slope = None if eigenvalue is None else 0.25
    axes = [
        Axis(f"axis {i}", (-1.0, -0.5, 0.0, 0.5, 1.0), 2.0, eigenvalue, 0.0, slope)
        for i in range(dimensions)
    ]
    places = [(0.0,) * dimensions, (1.0,) + (0.0,) * (dimensions - 1), (0.0, 1.0)]
    return Landscape(
        directions="path" if path else "random",
        axes=tuple(axes),
        losses=tuple(losses),
        errors=errors,
        marks=tuple(map(Mark, names, places)),
        notes=(),
        settings={"num_samples": 10},
        cost=Cost(forwards=50),
    )


def test_a_line_shows_loss_error_rate_and_parabola():
    found = record([4, 1, 0.5, 1, 4], errors=(0.5, 0.25, 0.0, 0.25, 0.5), eigenvalue=2.0)
    ax = draw(found)
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert list(lines["loss"].get_ydata()) == [4, 1, 0.5, 1, 4]
    assert list(lines["parabola"].get_ydata()) == [1.25, 0.625, 0.5, 0.875, 1.75]
    (beside,) = (other for other in ax.figure.axes if other is not ax)
    (rate,) = beside.get_lines()
    assert list(rate.get_ydata()) == [50, 25, 0, 25, 50]
    assert beside.get_ylabel() == "error rate (%)"
    assert ax.get_ylabel() == "mean loss"
    assert ax.get_xlabel() == "axis 0 (length 2, λ = 2)"
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown == ["loss", "parabola", "error rate"]


def test_a_line_has_gaps_where_nothing_is_finite():
    ax = draw(record([math.inf, 1, 0.5, 1, math.nan]))
    loss = ax.get_lines()[0].get_ydata()
    assert [math.isnan(value) for value in loss] == [True, False, False, False, True]
    low, high = ax.get_ylim()
    assert 0 < low < 0.5
    assert 1 < high < 2


def test_a_map_has_the_first_axis_across():
    heights = [[1 + x**2 + 10 * y for y in range(5)] for x in range(5)]
    ax = draw(record(itertools.chain(*heights), dimensions=2))
    # at the left edge the loss rises upwards from 1 to 41, at the bottom from 1 to 17
    contours = ax.collections[1]
    level = list(contours.levels).index(10.0)
    pieces = contours.get_paths()[level].to_polygons(closed_only=False)  # its number cuts it
    left = min(tuple(point) for piece in pieces for point in piece)
    assert left == pytest.approx([-1.0, -1 + 0.5 * 0.9])  # 1 + 10y = 10 at y = 0.9 steps
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("axis 0 (length 2)", "axis 1 (length 2)")
    assert ax.get_title(loc="left") == ""
    bar = next(other for other in ax.figure.axes if other is not ax)
    assert bar.get_ylabel() == "mean loss"


def test_a_map_says_what_its_grey_is():
    losses = [float(i) for i in range(24)] + [math.nan]
    assert draw(record(losses, dimensions=2)).get_title(loc="left") == "grey: not finite"


def test_a_map_of_one_height_is_drawn():
    drawn = save(draw(record([2.0] * 25, dimensions=2)).figure, "png")
    assert drawn.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (1e-9, 1e30), (-3.0, 500.0), (0.5, 0.5), (1e-3, 7.0), (2.0, 39.9)]
)
def test_contours_enclose_the_range_and_are_few(low, high):
    levels = contour_levels(low, high)
    assert levels[0] <= low
    assert levels[-1] >= high
    assert levels == sorted(set(levels))
    assert 2 <= len(levels) <= 13


@pytest.mark.parametrize(("dimensions", "kind"), [(1, "pdf"), (2, "svg"), (2, "png")])
def test_the_same_slice_gives_the_same_bytes(dimensions, kind):
    found = record(range(5**dimensions), dimensions=dimensions)
    assert save(draw(found).figure, kind) == save(draw(found).figure, kind)


@pytest.mark.parametrize("dimensions", [1, 2])
def test_names_are_text(dimensions):
    names = (HOSTILE, "_b", "c")[: 1 + dimensions]
    found = record(range(1, 1 + 5**dimensions), dimensions=dimensions, names=names)
    ax = draw(found)
    written = save(ax.figure, "svg").decode()
    assert "<img" not in written
    texts = [note.get_text() for note in ax.texts]
    assert r"<img src=x onerror=…" in texts
    assert ax.get_xlabel().startswith("<img src=x onerror=… → ")
    dollars = record(range(1, 6), names=("$x$", "b"))
    assert r"\$x\$" in [note.get_text() for note in draw(dollars).texts]


# -- the command -------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(app, ["landscape", *map(str, arguments)])


@pytest.fixture
def two(tmp_path):
    """Two checkpoints of one network."""
    paths = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    for seed, path in enumerate(paths):
        save_checkpoint(build("mlp", seed=seed, hidden=8), path)
    return paths


def network(path):
    model = build("mlp", seed=0, hidden=8)
    load_checkpoint(model, path)
    return model.double().eval()


def samples():
    x, y = digits("train")
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(x), generator=generator)[:60].sort().values
    return x[chosen].double(), y[chosen]


def test_it_shows_what_plain_torch_finds_at_both_ends(tmp_path, two):
    out, picture = tmp_path / "between.json", tmp_path / "between.svg"
    first, second = two
    done = run(
        *SMALL,
        "--checkpoint",
        first,
        "--to",
        second,
        "--points",
        5,
        "--json",
        out,
        "--plot",
        picture,
    )
    assert done.exit_code == 0, done.stderr
    assert "planned: 5 points, one forward per point and sample (60 samples)" in done.stdout
    found = Landscape.from_json(out.read_text())
    x, y = samples()
    for t, path in ((0.0, first), (1.0, second)):
        expected = float(torch.nn.functional.cross_entropy(network(path)(x).detach(), y))
        assert found.at(t) == pytest.approx(expected, rel=1e-12)
        assert f"loss {expected:.4g} at {path.stem}" in done.stdout
    assert picture.read_text().lstrip().startswith("<?xml")


def test_a_plane_goes_to_stdout_as_nothing_but_json():
    done = run(*SMALL, "--directions", "eigen", "--dimensions", 2, "--points", 3, "--json", "-")
    assert done.exit_code == 0, done.stderr
    found = Landscape.from_json(done.stdout)
    assert len(found.losses) == 9
    assert found.axes[0].eigenvalue > found.axes[1].eigenvalue > 0


def test_ctrl_c_keeps_the_points_and_says_how_to_go_on(tmp_path, two, monkeypatch):
    cache, out = tmp_path / "slice.jsonl", tmp_path / "slice.json"
    arguments = [*SMALL, "--checkpoint", two[0], "--points", 9, "--cache", cache]
    calls, heights = itertools.count(), grid.heights

    def interrupted(*positional, **options):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return heights(*positional, **options)

    with monkeypatch.context() as patch:
        patch.setattr(grid, "heights", interrupted)
        done = run(*arguments)
    assert done.exit_code == 130
    said = " ".join(done.stderr.split())
    assert re.search(r"kept in \S+slice\.jsonl\. Run the same command again to continue", said)
    done = run(*arguments, "--json", out)
    assert done.exit_code == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["settings"]["points_from_cache"] == 8
    assert found["losses"] == list(landscape(network(two[0]), samples(), points=9).losses)


def test_ctrl_c_without_a_cache_says_so(monkeypatch):
    def interrupted(*positional, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(grid, "heights", interrupted)
    done = run(*SMALL)
    assert done.exit_code == 130
    assert "give --cache PATH to keep them" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--plot", "slice.bmp"], "one of the endings .png, .svg, .pdf. Got 'slice.bmp'"),
        (["--directions", "down"], "must be one of random, eigen. Got 'down'"),
        (["--points", "1"], "must be at least 2"),
        (["--to", "nowhere.pt"], "The checkpoint 'nowhere.pt' must exist"),
    ],
)
def test_errors_are_one_line(arguments, text):
    done = run(*SMALL, *arguments)
    assert done.exit_code == (2 if done.stderr.startswith("error: Invalid value") else 1)
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
