"""One interval and one p for each measure and outcome, the same wherever a study is shown.

The study is one in which intervals that take the runs as independent are far narrower, and in which
some networks missed its criterion: a place that reads other numbers, or other networks, is seen.
"""

import csv
import io
import json
import re

import numpy as np
import pytest

from command_line import run as command
from pages.planted_stores import parts, planted, records
from spiritlevel.pages.report import render
from spiritlevel_lab import Store
from spiritlevel_lab.pages import figures
from spiritlevel_lab.pages.report.study import page_of
from spiritlevel_lab.pages.study_answer import answer
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.population_statistics import side_by_side, statistics
from spiritlevel_lab.population.storage import checksums

OUTCOMES = {
    "gap": "gap of the losses",
    "error_gap": "gap of the accuracies",
    "test_error": "test error",
}
MEASURES = ("relative.kappa", "norms.weight", "head.trace")
GRID = {"lr": [0.1, 0.05, 0.02, 0.01, 0.005, 0.002]}
ENDS = r"[+−]\d\.\d\d \[[+−]\d\.\d\d, [+−]\d\.\d\d\]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Settings decide both the measures and the gap; the last setting misses the criterion."""
    folder = tmp_path_factory.mktemp("one")
    noise = np.random.default_rng(5)
    stop = {"train_loss": 0.5}
    with planted(folder, grid=GRID, seeds=6, names=MEASURES, layers=(), stop=stop) as store:
        rates = {row["run"]: row["lr"] for row in Population.of(store).done}
        levels = dict(zip(GRID["lr"], noise.standard_normal((6, 3)).tolist(), strict=True))
        values = [
            (levels[lr][k] + 0.3 * noise.standard_normal(), run, name)
            for run, lr in rates.items()
            for k, name in enumerate(MEASURES)
        ]
        gaps = [
            (0.4 + 0.1 * levels[lr][0] + 0.05 * noise.standard_normal(), 0.3 * noise.random(), run)
            for run, lr in rates.items()
        ]
        reached = [("train_loss", run) for run, lr in rates.items() if lr != 0.002]
        with store._writing():
            write = store._connection.executemany
            write("UPDATE measurements SET value = ? WHERE run = ? AND measure = ?", values)
            write(
                "UPDATE epochs SET test_loss = train_loss + ?, test_accuracy = test_accuracy - ? "
                "WHERE run = ?",
                gaps,
            )
            write("UPDATE runs SET outcome = ? WHERE id = ?", reached)
            checksums.seal_all(store._connection)
    return folder


@pytest.fixture(scope="module")
def population(folder):
    with Store.open(folder) as store:
        return Population.of(store)


@pytest.fixture(scope="module")
def found(population):
    return statistics(population)


@pytest.fixture(scope="module")
def judged(population):
    """By outcome and measure: ρ with its ends, and p after Holm's correction."""
    expected = {}
    for outcome in OUTCOMES:
        rows = statistics(population, target=outcome).measures
        expected[outcome] = {
            name: ((row.judged.value, row.judged.low, row.judged.high), row.holm["judged"])
            for name, row in rows.items()
        }
    return expected


def shown(ends) -> str:
    value, low, high = (f"{each:+.2f}".replace("-", "−") for each in ends)
    return f"{value} [{low}, {high}]"


def test_runs_as_independent_would_be_seen(found):
    for row in found.measures.values():
        narrow = row.spearman.high - row.spearman.low
        assert row.judged.high - row.judged.low > narrow + 0.1
        assert row.judged.n == 30


def test_outcomes_beside_the_target_are_judged_as_targets_are(population, found, judged):
    beside = side_by_side(population, found, "gap")
    assert list(beside) == list(OUTCOMES)
    for outcome, associations in beside.items():
        for name, each in associations.items():
            ends = each.judged.value, each.judged.low, each.judged.high
            assert (ends, each.p) == judged[outcome][name]


@pytest.fixture(scope="module")
def page(folder):
    with Store.open(folder) as store:
        return page_of(store)


def test_tables_of_the_page(page, judged):
    table = records(parts(page)["outcomes-values"])
    for row in table:
        for outcome, word in OUTCOMES.items():
            ends, p = judged[outcome][row["measure"]]
            cell = row[f"ρ, {word}"]
            assert (cell.value, cell.low, cell.high) == ends
            assert row[f"p, {word}"] == pytest.approx(p, rel=0.06)
    for row in records(parts(page)["correlations"]):
        ends, p = judged["gap"][row["measure"]]
        assert (row["ρ"].value, row["ρ"].low, row["ρ"].high) == ends
        assert row["p Holm"] == pytest.approx(p, rel=0.06)


def test_the_first_picture_of_the_page(page, judged):
    data = parts(page)["outcomes"].data
    assert [panel["title"] for panel in data["panels"]] == list(OUTCOMES.values())
    for outcome, panel in zip(OUTCOMES, data["panels"], strict=True):
        for i, name in enumerate(data["rows"]):
            ends, p = judged[outcome][name]
            drawn = [panel[key][i] for key in ("values", "low", "high")]
            assert drawn == pytest.approx(ends, rel=1e-5)
            clear = (ends[1] > 0 or ends[2] < 0) and p <= 0.05
            assert panel["clear"][i] == clear
            assert shown(ends) in panel["notes"][i]


def test_captions_of_pairs(page, judged):
    data = parts(page)["scatter"].data
    for measure, pairs in zip(data["measures"], data["pairs"], strict=True):
        for target, pair in zip(data["targets"], pairs, strict=True):
            if target["name"] in OUTCOMES:
                ends, p = judged[target["name"]][measure["name"]]
                start = f"Spearman's ρ = {shown(ends)}; p = {p:.2g} after"
                assert pair["text"].startswith(start)
            else:
                assert "[" not in pair["text"]


def test_sentences_name_what_judges_and_who_is_not_judged(page, population, found, judged):
    said = answer(population, found, "gap")
    ends, p = judged["gap"][said.best.name]
    assert f"ρ = {shown(ends)}, p = {p:.2g} after Holm's" in said.why
    assert "6 of 36 networks did not come to a training loss of at most 0.5" in said.judged
    assert [page.lead, *page.highlights] == [said.found, said.why, said.judged]


def test_only_one_folded_section_takes_runs_as_independent(page, judged):
    allowed = {shown(ends) for of in judged.values() for ends, _ in of.values()}
    for section in page.sections:
        text = json.dumps(render_words(section), ensure_ascii=False)
        if section.id == "independent-section":
            assert section.folded
            assert not allowed & set(re.findall(ENDS, text))
        elif section.id != "correlations-section":  # has levels and confounders, too
            assert set(re.findall(ENDS, text)) <= allowed


def render_words(section):
    """All texts and cells of a section."""
    words = []
    for part in section.parts:
        for table in (part, getattr(part, "table", None)):
            words += [str(cell) for row in getattr(table, "rows", ()) for cell in row]
        words += [*getattr(part, "paragraphs", ()), getattr(part, "caption", "")]
        words.append(json.dumps(getattr(part, "data", {}), ensure_ascii=False))
    return words


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_terminal(folder, judged, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    text = command("study", "report", folder).stdout
    assert text.startswith("planted: ")
    assert max(map(len, text.splitlines())) <= width
    ends = {(*shown(e).partition(" ")[::2], p) for of in judged.values() for e, p in of.values()}
    for value, interval, p in ends:
        assert f"{value}, p {p:.2g}" in text.replace("*", "")
        assert interval in text
    found = set(re.findall(r"\[[+−]\d\.\d\d, [+−]\d\.\d\d\]", text))
    assert found == {interval for _, interval, _ in ends}


def test_the_verbose_terminal_and_print(folder, found, judged):
    for text in (
        str(found),
        command("study", "report", folder, "--verbose").stdout,
    ):
        before = text.split("If all runs were independent")[0]
        for name, (ends, p) in judged["gap"].items():
            assert re.search(rf"{re.escape(name)} .*{re.escape(shown(ends))} .*{p:.2g}", before)


def test_json(folder, judged, tmp_path):
    path = tmp_path / "found.json"
    command("study", "report", folder, "--json", path)
    data = json.loads(path.read_text())
    for outcome, of_outcome in judged.items():
        for name, (ends, p) in of_outcome.items():
            each = data["outcomes"][outcome][name]
            assert (tuple(each["judged"][key] for key in ("value", "low", "high")), each["p"]) == (
                ends,
                p,
            )
    for name, (ends, p) in judged["gap"].items():
        row = data["measures"][name]
        assert tuple(row["judged"][key] for key in ("value", "low", "high")) == ends
        assert row["p_holm"] == p
        assert not {"pearson", "spearman", "kendall", "regression"} & set(row)
    assert data["not_judged"].startswith("6 of 36 networks")


def test_pictures_in_files(population, found, judged):
    drawn = figures.study_figures(population, found).drawn
    panels = drawn["correlations"]().axes
    names = [label.get_text() for label in panels[0].get_yticklabels()]
    for outcome, ax in zip(OUTCOMES, panels, strict=True):
        assert ax.get_xlabel() == f"ρ with the {OUTCOMES[outcome]}"
        lines = [line for line in ax.lines if len(set(line.get_ydata())) == 1]
        points = [line for line in lines if line.get_marker() == "o"]
        spans = [line for line in lines if line.get_marker() == "None"]
        for name, point, span in zip(names, points, spans, strict=True):
            (value, low, high), p = judged[outcome][name]
            assert list(point.get_xdata()) == [value]
            assert list(span.get_xdata()) == [low, high]
            filled = point.get_markerfacecolor() != "white"
            assert filled == ((low > 0 or high < 0) and p <= 0.05)
    for view in ("gap-linear", "gap-log", "gap-density"):
        titles = [ax.get_title(loc="left") for ax in drawn[view]().axes]
        ends = {shown(e).replace(" ", " of 30 judged ", 1) for e, _ in judged["gap"].values()}
        said = {t.splitlines()[0].removeprefix("Spearman ρ ") for t in titles if "ρ" in t}
        assert said == ends


@pytest.mark.nightly
def test_csv_of_the_page(open_page, page, judged):
    opened = open_page(render(page))
    text = opened.evaluate(
        "() => spiritlevel.tables.csv(document.querySelector('#outcomes-values table'))"
    )
    for row in csv.DictReader(io.StringIO(text)):
        for outcome, word in OUTCOMES.items():
            ends, p = judged[outcome][row["measure"]]
            found = tuple(float(row[f"ρ, {word}{end}"]) for end in ("", " low", " high"))
            assert found == ends
            assert float(row[f"p, {word}"]) == pytest.approx(p, rel=0.06)
