"""One population behind the report, the figures and the live page of a study with variants."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from pages.planted_stores import parts, planted, records
from spiritlevel.cli.app import app
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel_lab.pages import figures as studies
from spiritlevel_lab.pages.report.study import page_of
from spiritlevel_lab.pages.watch import Watched
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.population_statistics import default_target, statistics
from spiritlevel_lab.population.storage.store import Counts

pytestmark = pytest.mark.sampled(3)  # the others at night

VARIANTS = {
    "plain": {"weight_decay": 0.0},
    "decay": {"weight_decay": 0.01},
    "a third": {"weight_decay": 0.1},  # by name it would come first, in the study it comes last
}
NAMES = ("relative.kappa", "norms.weight", "softmax.gini")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """3 variants × 2 learning rates × 3 seeds: 16 runs are finished, one failed, one waits."""
    folder = tmp_path_factory.mktemp("variants")
    with planted(
        folder, grid={"lr": [0.1, 0.01]}, variants=VARIANTS, names=NAMES, failed=1, pending=1
    ) as opened:
        yield opened


@pytest.fixture(scope="module")
def population(store):
    return Population.of(store)


def watched(store) -> dict:
    return json.loads(Watched(store.folder).answer(NAMES[0]))["study"]


def points_of(rows, x="x", y="y") -> list[tuple[float, float]]:
    return sorted((row[x], row[y]) for row in rows)


# -- what it holds ----------------------------------------------------------------------------


def test_rows_have_settings_last_epoch_targets_and_measures(population, store):
    assert list(population.axes) == ["variant", "lr"]
    assert population.varied == ["variant", "lr", "seed"]
    assert population.measures == sorted(NAMES)
    assert population.counts == store.counts() == Counts(pending=1, done=16, failed=1)
    assert (len(population.rows), len(population.done), len(population.ended)) == (18, 16, 17)
    row = population.done[0]
    epochs = [each for each in store.rows("epochs") if each["run"] == row["run"]]
    assert population.epochs[row["run"]] == epochs
    assert (row["variant"], row["lr"], row["seed"]) == ("plain", 0.1, 0)
    assert row["epoch"] == 4
    assert row["gap"] == epochs[-1]["test_loss"] - epochs[-1]["train_loss"]
    assert row["test_error"] == 1.0 - epochs[-1]["test_accuracy"]
    for measurement in store.rows("measurements"):
        if measurement["run"] == row["run"]:
            name, layer, value = (measurement[key] for key in ("measure", "layer", "value"))
            kept = population.layers[name][row["run"]][layer] if layer else row[name]
            assert kept == value


def test_groups_keep_the_order_of_the_study_and_numbers_ascend(population):
    assert {name: len(runs) for name, runs in population.groups("variant").items()} == {
        "plain": 6,
        "decay": 6,
        "a third": 4,
    }
    assert list(population.groups("lr")) == ["0.01", "0.1"]
    for value, rows in population.grouped_rows("variant").items():
        assert {row["variant"] for row in rows} == {value}


def test_a_column_has_a_number_for_every_finished_run(population):
    assert population.column("gap") == [row["gap"] for row in population.done]
    row = population.done[0]
    short = Population(["lr"], [{k: v for k, v in row.items() if k != NAMES[0]}], list(NAMES))
    assert math.isnan(short.column(NAMES[0])[0])
    with pytest.raises(SpiritlevelError, match=r"'column' must be one of .* Did you mean 'gap'"):
        population.column("gab")


def test_a_population_and_its_store_give_the_same_statistics(population, store):
    from_store = statistics(store)
    assert from_store.to_json() == statistics(population).to_json()
    assert from_store.n == 17
    assert default_target(population) == default_target(store) == "gap"


def test_cost_grows_with_the_runs_alone():
    """Each row of a table is looked at once, however many runs there are."""

    class Looked(list):
        times = 0

        def __iter__(self):
            Looked.times += 1
            return super().__iter__()

    run = {"status": "done", "axes": '{"lr": 0.1}', "seed": 0} | dict.fromkeys(
        ("outcome", "num_train", "num_test", "attempt", "seconds", "machine", "error")
    )
    runs = [run | {"id": str(i)} for i in range(50)]
    rows = Looked({"run": str(i), "measure": "m", "layer": "", "value": 1.0} for i in range(50))
    found = Population.from_tables(["lr"], runs=runs, epochs=(), measurements=rows)
    assert Looked.times == 1
    assert len(found.done) == 50


# -- three views of one store -----------------------------------------------------------------


def test_report_figures_and_watch_show_the_same_runs(population, store):
    """Every finished run with its variant, its measure and its gap; none is lost on the way."""
    expected = points_of(population.done, NAMES[0], "gap")
    assert len(expected) == 16

    table = records(parts(page_of(store))["scatter-values"])
    np.testing.assert_allclose(points_of(table, NAMES[0], "gap"), expected, rtol=1e-5)
    assert {row["variant"] for row in table} == set(VARIANTS)

    ax = studies.measure_against(store, NAMES[0], view="linear", colour="variant")
    drawn = [
        (float(x), float(y))
        for line in ax.lines
        if line.get_linestyle() == "None"  # marks, not the line through them
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]
    assert sorted(drawn) == expected

    points = watched(store)["points"]
    assert points_of(points) == expected
    by_gap = {row["gap"]: (row["variant"], row["lr"]) for row in population.done}
    assert {p["y"]: (p["axes"]["variant"], p["axes"]["lr"]) for p in points} == by_gap


def test_values_of_a_setting_stand_in_one_order_in_all_views(store):
    order = list(VARIANTS)
    chart = parts(page_of(store))["scatter"]
    [setting] = [each for each in chart.data["settings"] if each["name"] == "variant"]
    assert setting["labels"] == order
    ax = studies.measure_against(store, NAMES[0], colour="variant")
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == [f"{name} (n = {n})" for name, n in zip(order, (6, 6, 4), strict=True)]
    assert watched(store)["axes"] == [
        {"name": "variant", "values": order},
        {"name": "lr", "values": [0.1, 0.01]},
    ]


def test_figures_of_a_study_with_variants_on_the_command_line(store, tmp_path):
    arguments = ["study", "figures", store.folder, "--out", tmp_path, "--colour", "variant"]
    result = CliRunner().invoke(app, [*map(str, arguments), "--format", "svg"])
    assert result.exit_code == 0, result.stderr
    written = {path.stem for path in tmp_path.iterdir()}
    assert {"gap-linear", "boxes-variant", "training-variant", "boxes-lr"} <= written
    for name in VARIANTS:
        assert f"<!-- {name} -->" in (tmp_path / "gap-linear.svg").read_text("utf-8")


def test_watch_lists_variants_of_recent_and_failed_runs(store):
    study = watched(store)
    assert {run["axes"]["variant"] for run in study["recent"]} == set(VARIANTS)
    [failure] = study["failures"]
    assert failure["axes"]["variant"] == "a third"
