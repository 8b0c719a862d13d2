"""All figures of a study: complete, legible, the same bytes each time."""

import dataclasses
import itertools
import json
import xml.etree.ElementTree

import pytest
from typer.testing import CliRunner

import spiritlevel as sl
from population.tiny_study import tiny
from spiritlevel.cli.app import app
from spiritlevel.pages import figures as plots
from spiritlevel_lab import Store, run
from spiritlevel_lab.pages.figures import studies
from spiritlevel_lab.population.population import Population

pytestmark = pytest.mark.sampled(4)  # the others at night

EVIL = "<img src=x onerror=alert(1)>$\\frac{1}$"


def test_every_view_is_there(population, statistics):
    found = plots.study_figures(population, statistics)
    assert list(found.drawn) == [
        "gap-linear",
        "gap-log",
        "gap-density",
        "correlations",
        "agreement",
        "training",
        "training-optimizer",
        "boxes-optimizer",
        "training-lr",
        "boxes-lr",
        "boxes-optimizer-lr",
        "layers",
        "bound",
    ]
    assert found.left_out == {}


def test_what_a_study_cannot_show_is_said(population, statistics):
    rows = [row | {"momentum": 0.9} for row in population.rows]
    poor = dataclasses.replace(
        population, rows=rows, axes=["momentum"], measures=["norms.weight"], layers={}
    )
    found = plots.study_figures(poor, statistics)
    assert found.left_out == {
        "training-momentum": "values of momentum in the runs: 1; drawn are 2 to 12",
        "boxes-momentum": "values of momentum in the runs: 1; drawn are 2 to 12",
        "layers": "none of the measures has layers",
        "bound": "the study has no bound.generalization",
    }


def test_patterns_choose_measures_and_unknown_ones_are_refused(population, statistics):
    found = plots.study_figures(population, statistics, measures=["*.kappa", "norms.*"])
    figure = found.drawn["gap-linear"]()
    assert [ax.get_xlabel() for ax in figure.axes] == ["relative.kappa", "norms.weight"]
    labels = [label.get_text() for label in found.drawn["correlations"]().axes[0].get_yticklabels()]
    assert sorted(labels) == ["norms.weight", "relative.kappa"]
    with pytest.raises(sl.SpiritlevelError, match=r"no measure 'norm.weight'. Did you mean 'norms"):
        plots.study_figures(population, statistics, measures=["norm.weight"])
    with pytest.raises(sl.SpiritlevelError, match=r"'colour' must be .* Did you mean 'lr'"):
        plots.study_figures(population, statistics, colour="lrr")


def test_more_values_than_colours_and_shapes_are_refused(population, statistics):
    rows = [row | {"seed": i} for i, row in enumerate([*population.rows, *population.rows])]
    there = dataclasses.replace(population, rows=rows, axes=["seed"])
    with pytest.raises(sl.SpiritlevelError, match=r"at most 49 values.* 'seed' has 60. Choose an"):
        plots.study_figures(there, statistics, colour="seed")
    assert plots.study_figures(there, statistics).drawn["gap-linear"]().legends == []


def test_many_panels_go_to_pages_that_are_nearly_alike():
    items = [str(i) for i in range(26)]
    pages = list(studies._pages("boxes", items, lambda ax, item: ax.set_xlabel(item)))
    assert [name for name, _ in pages] == ["boxes", "boxes-2", "boxes-3"]
    figures = [make() for _, make in pages]
    assert [len(figure.axes) for figure in figures] == [9, 9, 8]
    assert [ax.get_xlabel() for figure in figures for ax in figure.axes] == items
    assert {figure.get_figwidth() for figure in figures} == {plots.PAGE}


def test_a_settings_name_leads_to_no_other_folder(population, statistics):
    rows = [row | {"model.../../x": row["lr"]} for row in population.rows]
    there = dataclasses.replace(population, rows=rows, axes=["model.../../x"])
    names = plots.study_figures(there, statistics).drawn
    assert "boxes-model...-..-x" in names
    assert not any("/" in name for name in names)


# -- legible ---------------------------------------------------------------------------------


def hostile(population) -> Population:
    """Long and dangerous names, in every place that a user's file can fill."""
    new = {"relative.kappa": EVIL, "norms.weight": "_a.measure_with_a_name_that_goes_on_and_on"}
    values = {"sgd": "_sgd", "adam": "<b>adam</b>\nand more", "adamw": "x" * 60}
    rows = [
        {new.get(key, key): value for key, value in row.items()}
        | {"optimizer": values[row["optimizer"]]}
        for row in population.rows
    ]
    names = [new.get(name, name) for name in population.measures]
    layers = {
        EVIL: {
            run: {EVIL: 1.0} | {f"features.block{i}.conv": i + 1.0 for i in range(30)}
            for run in population.epochs
        }
    }
    return dataclasses.replace(population, rows=rows, measures=names, layers=layers)


def boxes(figure, labels) -> list:
    renderer = figure.canvas.get_renderer()
    seen = [label for label in labels if label.get_text() and label.get_visible()]
    return [label.get_window_extent(renderer) for label in seen]


def tick_labels(axis) -> list:
    """Those that are drawn: an axis knows of more, beyond its ends."""
    return [tick.label1 for tick in axis._update_ticks()]


def test_names_of_users_are_text_and_nothing_overlaps_or_leaves_the_page(population, statistics):
    there = hostile(population)
    row = statistics.measures["norms.weight"]
    rows = {name: dataclasses.replace(row, name=name) for name in there.measures}
    found = plots.study_figures(there, dataclasses.replace(statistics, measures=rows))
    for name in ("gap-log", "correlations", "agreement", "boxes-optimizer", "layers"):
        figure = found.drawn[name]()
        figure.draw_without_rendering()
        page = figure.bbox.padded(1)
        for ax in figure.axes:
            down, across = tick_labels(ax.yaxis), tick_labels(ax.xaxis)
            upright = [label for label in across if label.get_rotation() == 0]
            for labels in (down, upright):
                for a, b in itertools.pairwise(boxes(figure, labels)):
                    assert not a.overlaps(b), (name, a, b)
            written = [*down, *across, ax.xaxis.label, ax.yaxis.label, ax._left_title]
            for box in boxes(figure, written):
                assert page.containsx(box.x0), name
                assert page.containsx(box.x1), name
                assert page.containsy(box.y0), name
                assert page.containsy(box.y1), name
        svg = plots.save(figure, "svg").decode()
        tree = xml.etree.ElementTree.fromstring(svg)
        tags = {
            element.tag.split("}")[1] for element in tree.iter() if isinstance(element.tag, str)
        }
        assert "img" not in tags
        assert "<img" not in svg


def test_a_leading_underscore_does_not_keep_a_value_from_the_legend(population, statistics):
    figure = plots.study_figures(hostile(population), statistics, measures=["curvature.trace"])
    [legend] = figure.drawn["gap-linear"]().legends
    assert legend.get_texts()[0].get_text() == " _sgd"


def test_sizes_fit_a_paper(population, statistics):
    found = plots.study_figures(population, statistics)
    for make in (found.drawn[name] for name in ("gap-linear", "correlations", "bound")):
        figure = make()
        assert figure.get_figwidth() in (plots.COLUMN, plots.PAGE)
        assert figure.dpi == 300
        for ax in figure.axes:
            sizes = {text.get_fontsize() for text in (ax.xaxis.label, *ax.get_xticklabels())}
            assert all(5.5 <= size <= 8 for size in sizes)


# -- files -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF-")]
)
def test_the_same_study_gives_the_same_bytes(population, kind, start):
    drawn = [
        plots.measure_against(population, "relative.kappa", colour="optimizer") for _ in range(2)
    ]
    one, two = (plots.save(ax.figure, kind) for ax in drawn)
    assert one == two
    assert one.startswith(start)
    for mark in (b"Matplotlib", b"/CreationDate", b"dc:date"):  # what another day would change
        assert mark not in one


def test_fonts_in_a_pdf_are_truetype(population):
    content = plots.save(plots.bound(population).figure, "pdf")
    assert b"/CIDFontType2" in content
    assert b"/Type3" not in content


def test_other_kinds_of_file_are_refused(population):
    with pytest.raises(
        sl.SpiritlevelError, match=r"'kind' must be one of png, svg, pdf. Got 'gif'"
    ):
        plots.save(plots.bound(population).figure, "gif")


# -- the command line ------------------------------------------------------------------------


def figures(*args):
    return CliRunner().invoke(app, ["study", "figures", *map(str, args)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four runs that are done and two that wait."""
    folder = tmp_path_factory.mktemp("study")
    run(tiny(seeds=2), folder)
    Store.create(folder, tiny(seeds=3)).close()
    return folder


def test_figures_of_a_study_on_disk(trained, tmp_path):
    result = figures(trained, "--out", tmp_path, "--format", "svg", "--json", "-")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    names = {"gap-linear", "gap-log", "gap-density", "correlations", "agreement", "training"}
    names |= {"training-lr", "boxes-lr", "layers"}
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.svg" for name in names}
    assert sorted(found["written"]) == sorted(str(path) for path in tmp_path.iterdir())
    assert list(found["left_out"]) == ["bound"]
    assert "not drawn because failed or unfinished: 2 runs" in result.stderr
    with Store.open(trained) as store:
        rows = store.rows("epochs")
        ax = plots.training(store, "test_loss")  # a store will do as well as a population
    last = sorted(row["test_loss"] for row in rows if row["epoch"] == 2)
    assert ax.lines[0].get_ydata()[-1] == pytest.approx((last[1] + last[2]) / 2)


def test_the_command_refuses_in_one_line(trained, tmp_path):
    result = figures(trained, "--format", "gif")
    assert result.exit_code == 1
    assert result.stderr == "error: The --format must be one of png, svg, pdf. Got 'gif'.\n"
    with Store.create(tmp_path / "empty", tiny()):
        pass
    result = figures(tmp_path / "empty")
    assert result.exit_code == 1
    assert "has no finished run yet: there is nothing to draw" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "empty" / "figures").exists()
