"""The page of a study: its numbers against scipy and numpy, and its words."""

import numpy as np
import pytest
import scipy.stats
from typer.testing import CliRunner

from pages.planted_stores import column, parts, planted, records, unfinished
from spiritlevel import SpiritlevelError
from spiritlevel.cli.app import app
from spiritlevel.pages.report import render
from spiritlevel.records.content import Cards
from spiritlevel_lab import Study
from spiritlevel_lab.pages.report.study import _measured_with, page_of
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.population_statistics import statistics
from spiritlevel_lab.population.storage import checksums

pytestmark = pytest.mark.sampled(2)  # the others at night


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    with unfinished(tmp_path_factory.mktemp("small")) as store:
        yield store


@pytest.fixture(scope="module")
def page(small):
    return page_of(small)


@pytest.fixture(scope="module")
def done(small):
    return Population.of(small).done


# -- numbers ----------------------------------------------------------------------------------


def test_coefficients_are_those_of_scipy(page, done):
    rows = {(r["measure"], r["coefficient"]): r for r in records(parts(page)["coefficients"])}
    names = {"relative.kappa", "bound.generalization", "softmax.gini", "norms.weight"}
    assert {name for name, _ in rows} == names
    for name in names:
        x, y = column(done, name), column(done, "gap")
        for title, found in {
            "Pearson r": scipy.stats.pearsonr(x, y),
            "Spearman ρ": scipy.stats.spearmanr(x, y),
            "Kendall τ": scipy.stats.kendalltau(x, y),
        }.items():
            row = rows[name, title]
            assert row["n"] == 21
            assert row["value"].value == pytest.approx(found.statistic, rel=1e-9)
            assert row["p"] == pytest.approx(found.pvalue, rel=0.05)  # two digits are shown
        ends = scipy.stats.pearsonr(x, y).confidence_interval()
        of_pearson = rows[name, "Pearson r"]["value"]
        assert (of_pearson.low, of_pearson.high) == pytest.approx(ends, rel=1e-9)


def test_the_strongest_correlation_comes_first_and_what_has_none_last(page, tmp_path):
    rows = records(parts(page)["correlations"])
    sizes = [abs(row["ρ"].value) for row in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert "out" not in rows[0]  # of every measure the same run is left out
    with planted(tmp_path, names=("norms.weight", "softmax.gini", "relative.kappa")) as store:
        with store._writing():
            store._connection.execute(
                "UPDATE measurements SET value = 1 WHERE measure = 'norms.weight'"
            )
            checksums.seal_all(store._connection)
        *_, last = records(parts(page_of(store))["correlations"])
    assert (last["measure"], last["ρ"]) == ("norms.weight", None)


def test_statistics_may_be_given(page, small):
    assert page_of(small, statistics=statistics(small)) == page


def test_lines_are_those_of_scipy(page, done):
    for row in records(parts(page)["regressions"]):
        line = scipy.stats.linregress(column(done, row["measure"]), column(done, "gap"))
        assert row["slope"] == pytest.approx(line.slope, rel=1e-5)
        assert row["intercept"] == pytest.approx(line.intercept, rel=1e-5)
        assert row["stderr (slope)"] == pytest.approx(line.stderr, rel=1e-5)
        assert row["R²"] == pytest.approx(line.rvalue**2, rel=1e-4)


def test_every_pair_has_its_line_and_correlation(page, done):
    data = parts(page)["scatter"].data
    names = ["gap", "error_gap", "test_error", "test_loss"]
    assert [t["name"] for t in data["targets"]] == names
    for measure, pairs in zip(data["measures"], data["pairs"], strict=True):
        for target, pair in zip(data["targets"], pairs, strict=True):
            x, y = column(done, measure["name"]), column(done, target["name"])
            assert measure["values"] == pytest.approx(list(x), rel=1e-5)
            assert target["values"] == pytest.approx(list(y), rel=1e-5)
            straight, bent = scipy.stats.linregress(x, y), scipy.stats.linregress(np.log(x), y)
            assert pair["line"] == pytest.approx([straight.slope, straight.intercept])
            assert pair["log_line"] == pytest.approx([bent.slope, bent.intercept])
            rho = f"{scipy.stats.spearmanr(x, y).statistic:+.2f}".replace("-", "−")
            if target["name"] == "test_loss":  # is no outcome that measures are judged by here
                assert pair["text"] == "n = 21, 1 left out."
            else:
                assert pair["text"].startswith(f"Spearman's ρ = {rho} [")
                assert pair["text"].endswith("after Holm's correction, n = 21.")


def test_measures_with_each_other(page, done):
    data = parts(page)["heatmap"].data
    for i, one in enumerate(data["rows"]):
        for j, other in enumerate(data["columns"]):
            if i == j:
                assert data["values"][i][j] is None
                continue
            rho = scipy.stats.spearmanr(column(done, one), column(done, other)).statistic
            assert data["values"][i][j] == pytest.approx(rho, rel=1e-5)
            assert data["notes"][i][j] == "n = 21"
    assert len(parts(page)["heatmap-values"].rows) == 6


def test_boxes_hold_the_quartiles(page, done):
    data = parts(page)["boxes"].data
    axes, shown = (control["options"] for control in data["controls"])
    assert axes == ["optimizer", "lr"]
    assert [box["name"] for box in data["views"]["1,0"]] == [
        "0.002",
        "0.005",
        "0.01",
        "0.02",
        "0.05",
        "0.1",
    ]
    for key, boxes in data["views"].items():
        axis, name = axes[int(key.split(",")[0])], shown[int(key.split(",")[1])]
        for box in boxes:
            values = [row[name] for row in done if str(row[axis]) == box["name"]]
            assert box["n"] == len(values)
            assert box["five"] == pytest.approx(
                list(np.quantile(values, [0, 0.25, 0.5, 0.75, 1])), rel=1e-5
            )


def test_layers_hold_the_medians(page, small):
    table = records(parts(page)["layers-values"])
    rows = [r for r in small.rows("measurements") if r["layer"] == "fc2"]
    for row in table:
        if row["layer"] == "fc2":
            values = [r["value"] for r in rows if r["measure"] == row["measure"]]
            assert row["median"] == pytest.approx(np.median(values), rel=1e-5)
            assert row["n"] == 21


def test_curves_keep_the_last_value_of_runs_that_stopped(tmp_path):
    with planted(tmp_path, seeds=3, epochs=5) as store:
        runs = [row["id"] for row in store.rows("runs")]
        with store._writing():
            store._connection.execute("DELETE FROM epochs WHERE run = ? AND epoch > 2", (runs[0],))
            checksums.seal_all(store._connection)
        data = parts(page_of(store))["dynamics"].data
        losses = {run: [] for run in runs}
        for row in store.rows("epochs"):
            losses[row["run"]].append(row["test_loss"])
    at = [[v[min(epoch, len(v) - 1)] for v in losses.values()] for epoch in range(5)]
    [series] = [s for s in data["views"]["0,0"]["series"] if "test" in s["name"]]
    for name, share in (("low", 0.25), ("y", 0.5), ("high", 0.75)):
        assert series[name] == pytest.approx(np.quantile(at, share, axis=1), rel=1e-5)


def test_measures_while_training_are_a_choice(tmp_path):
    with planted(tmp_path) as store:
        rows = [
            (row["id"], epoch, "relative.kappa", "", float(i * epoch))
            for i, row in enumerate(store.rows("runs"))
            for epoch in (2, 4)
        ]
        with store._writing():
            store._connection.executemany(
                "INSERT INTO epoch_measurements VALUES (?, ?, ?, ?, ?, NULL, NULL, 1, 'ok', '')",
                rows,
            )
            checksums.seal_all(store._connection)
        data = parts(page_of(store))["dynamics"].data
    assert data["controls"][1]["options"] == ["loss", "accuracy", "relative.kappa"]
    view = data["views"]["0,2"]
    assert view["x"] == [2, 4]
    assert view["series"][0]["y"] == [11.0, 22.0]  # medians of 0…11 times 2 and 4


# -- words ------------------------------------------------------------------------------------


def test_lead_names_the_surest_measure_and_its_fate(page, done):
    x, y = column(done, "relative.kappa"), column(done, "gap")
    rho = scipy.stats.spearmanr(x, y).statistic
    assert page.lead.startswith(
        "Networks with a larger relative.kappa have a larger gap of the losses"
    )
    assert "gap of the accuracies" in page.lead
    assert "test error" in page.lead
    why, judged = page.highlights
    for said in (f"ρ = {rho:+.2f} [", "4 measures", "train_loss", "softmax.gini", "norms.weight"):
        assert said in why
    assert judged == "Judged over 21 networks of 11 settings."


def test_lead_says_that_there_is_nothing(tmp_path):
    grid = {"lr": [0.1, 0.05, 0.02, 0.01, 0.005, 0.002]}
    names = ("noise", "softmax.gini", "norms.weight")
    with planted(tmp_path, grid=grid, seeds=2, names=names) as store:
        with store._writing():  # of the only one that goes with the gap, the order is undone
            store._connection.execute(
                "UPDATE measurements SET value = unicode(run) + value / 1e3 WHERE measure = 'noise'"
            )
            checksums.seal_all(store._connection)
        found = page_of(store)
    assert found.lead.startswith("None of 3 measures is clearly associated with the gap")
    assert "12 networks of 6 settings" in found.highlights[-1]


def test_a_confounder_that_explains_it_is_named(tmp_path):
    grid = {"lr": [0.1, 0.05, 0.02, 0.01, 0.005, 0.002]}
    names = ("relative.kappa", "softmax.gini")
    with planted(tmp_path, grid=grid, seeds=8, names=names) as store:
        values = {
            row["run"]: row["value"]
            for row in store.rows("measurements")
            if row["measure"] == "relative.kappa" and not row["layer"]
        }
        jitter = np.random.default_rng(1)
        with store._writing():  # the other is the cause, the first its noisy copy
            store._connection.executemany(
                "UPDATE measurements SET value = ? WHERE run = ? AND measure = ? AND layer = ''",
                [(v, run, "softmax.gini") for run, v in values.items()]
                + [(v + 0.2 * jitter.normal(), run, "relative.kappa") for run, v in values.items()],
            )
            checksums.seal_all(store._connection)
        found = page_of(store, target="gap")
    row = {r["measure"]: r for r in records(parts(found)["correlations"])}["relative.kappa"]
    assert row["verdict"].startswith(
        "rises with the target; given the confounders: no clear association"
    )
    assert abs(row["ρ given"].value) < 0.5 < row["ρ"].value


def test_what_is_missing_is_said(page):
    [section] = [section for section in page.sections if section.id == "missing"]
    said = " ".join(section.parts[0].paragraphs)
    assert "not finished: 2 of 24" in said
    assert "failed: 1." in said
    [failure] = records(parts(page)["failures"])
    assert failure["error"] == "the <b>loss</b> & more"
    assert len(parts(page)["runs"].rows) == 24
    assert page.settings["runs"] == "21 done, 1 failed, 2 pending"
    assert page.settings["n"] == "21 runs with a finite gap are judged"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, ""),
        ({"samples": None, "layers": "head"}, "samples: all, layers: head"),
        ({"samples": 50, "options": {"delta": 0.2}}, "samples: 50, delta: 0.2"),
    ],
)
def test_what_was_measured_is_said(asked, said):
    assert _measured_with(Study("s", measure_options=asked)) == said


def test_sections_without_data_are_left_out(tmp_path):
    plain = planted(
        tmp_path, grid={"lr": [0.1]}, seeds=5, names=("relative.kappa",), layers=(), epochs=1
    )
    with plain as store:
        found = page_of(store)
    sections = {section.id: section.folded for section in found.sections}
    assert sections == {
        "outcomes-section": False,
        "correlations-section": False,
        "scatter-section": False,
        "independent-section": True,
        "runs-section": True,
        "cards": True,
    }
    assert "1 measures" not in f"{found.lead} {found.highlights}"


def test_runs_that_all_diverged_give_a_page(tmp_path):
    with planted(tmp_path, names=(), epochs=2) as store:
        with store._writing():
            store._connection.execute("UPDATE epochs SET train_loss = 'nan', test_loss = 'nan'")
            checksums.seal_all(store._connection)
            store._connection.execute("UPDATE runs SET outcome = 'diverged' WHERE status = 'done'")
        found = page_of(store)
    assert found.lead.startswith("No run of this study was measured")
    assert "diverged: 12." in found.sections[0].parts[0].paragraphs[0]
    assert "runs" in parts(found)


def test_a_study_without_finished_runs_is_refused(tmp_path):
    with (
        planted(tmp_path, pending=12) as store,
        pytest.raises(SpiritlevelError, match="no finished"),
    ):
        page_of(store)


def test_a_measure_can_be_the_target(small):
    found = page_of(small, target="norms.weight")
    assert "norms.weight" not in [row["measure"] for row in records(parts(found)["correlations"])]
    assert parts(found)["scatter"].data["targets"][0]["name"] == "norms.weight"


def test_bound_is_counted_against_the_gap(page, done):
    [section] = [section for section in page.sections if section.id == "bound-section"]
    above = sum(row["bound.generalization"] >= row["gap"] for row in done)
    assert (
        section.parts[0]
        .paragraphs[0]
        .startswith(f"The bound lies at or above the gap in {above} of 21 runs")
    )


def test_unknown_measures_have_no_card(tmp_path):
    with planted(tmp_path, names=("relative.kappa", "mine.own")) as store:
        found = page_of(store)
    [cards] = [p for s in found.sections for p in s.parts if isinstance(p, Cards)]
    assert cards.names == ["relative.kappa"]


def test_same_study_same_bytes(small, page):
    assert render(page_of(small)) == render(page)


def test_command_writes_the_page(small, tmp_path):
    path = tmp_path / "report.html"
    arguments = ["study", "report", str(small.folder), "--html", str(path)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert path.read_text(encoding="utf-8") == render(page_of(small))
