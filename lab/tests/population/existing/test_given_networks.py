"""Given networks against `sl.measure` by hand, and against the study that trained them."""

import csv
import functools
import math

import pytest
import torch
from torch.nn import functional as F

import command_line
import spiritlevel as sl
from population.existing.given_runs import networks, small, write, write_table
from spiritlevel.inputs.checkpoints import load_checkpoint, save_checkpoint
from spiritlevel.inputs.data import digits
from spiritlevel.inputs.models import build
from spiritlevel_lab import Population, Store, Study, run
from spiritlevel_lab.population.existing import measuring
from spiritlevel_lab.population.population_statistics import statistics

pytestmark = pytest.mark.sampled(2)  # the others at night

MODEL = ("--model", "mlp", "--model-arg", "hidden=6", "--dtype", "float64")
DATA = ("--data", "digits", "--samples", "80")
MEASURES = ("--measures", "relative.kappa,norms.weight,softmax.gini")
ROLES = ("--setting", "lr,batch_size", "--outcome", "accuracy")
ALL = (*MODEL, *DATA, *MEASURES, *ROLES)


command = functools.partial(command_line.run, "study")


def population(folder):
    with Store.open(folder) as store:
        return Population.of(store)


def samples(count=80):
    """The ones that `--samples` and a study's data.samples draw."""
    x, y = digits("train")
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:count]
    return x[chosen].double(), y[chosen]


def test_numbers_are_those_of_measure_by_hand(tmp_path):
    table = write(tmp_path / "runs")
    command("measure", table, *ALL, "--test", "digits", "--out", tmp_path / "store")
    found = population(tmp_path / "store")
    assert found.measures == ["norms.weight", "relative.kappa", "softmax.gini"]
    assert [row["status"] for row in found.rows] == ["done"] * 8
    data, (x, y) = samples(), digits("test")
    for row, (name, (_, given)) in zip(found.rows, networks().items(), strict=True):
        model = small().double()
        load_checkpoint(model, tmp_path / "runs" / name)
        report = sl.measure(model.eval(), data, measures=found.measures, seed=given["seed"])
        for measure in found.measures:
            # The same samples in another order: round-off of a sum.
            assert row[measure] == pytest.approx(report[measure].value, rel=1e-12)
        for layer, value in found.layers["relative.kappa"][row["run"]].items():
            by_hand = report.layers["relative.kappa"][layer].value
            assert value == pytest.approx(by_hand, rel=1e-12)
        with torch.no_grad():
            loss = float(F.cross_entropy(model(data[0]), data[1]))
            test_loss = float(F.cross_entropy(model(x.double()), y))
            accuracy = float((model(x.double()).argmax(dim=1) == y).double().mean())
        assert row["train_loss"] == pytest.approx(loss, rel=1e-12)
        assert row["gap"] == pytest.approx(test_loss - loss, abs=1e-12)
        assert row["test_error"] == pytest.approx(1 - accuracy, abs=1e-12)
        assert {key: row[key] for key in ("lr", "batch_size", "seed", "accuracy")} == {
            key: given[key] for key in ("lr", "batch_size", "seed", "accuracy")
        }
        assert (row["network"], row["num_train"], row["num_test"]) == (name, 80, 500)


def same(left, right, path=""):
    """Equal up to round-off, all the way down."""
    if isinstance(left, dict):
        assert left.keys() == right.keys(), path
        for key in left.keys() - {"errors"}:  # of an epoch's loss none is recorded
            same(left[key], right[key], f"{path}.{key}")
    elif isinstance(left, list):
        assert len(left) == len(right), path
        for i, pair in enumerate(zip(left, right, strict=True)):
            same(*pair, f"{path}[{i}]")
    elif isinstance(left, float) and math.isfinite(left):
        assert left == pytest.approx(right, rel=1e-8, abs=1e-8), path
    else:
        assert left == right, path


def test_statistics_are_those_of_the_study_that_trained_them(tmp_path):
    trained = Study(
        name="trained",
        model={"name": "mlp", "hidden": 6},
        data={"name": "digits", "samples": 80},
        training={"epochs": 2, "dtype": "float64"},
        grid={"lr": [0.05, 0.5], "batch_size": [10, 40]},
        seeds=2,
        measures=["relative.kappa", "norms.weight", "softmax.gini", "norms.distance"],
    )
    rows = []
    with run(trained, tmp_path / "trained") as store:
        expected = statistics(store, target="gap").to_dict()
        by_error = statistics(store, target="error_gap").to_dict()
        for settings in store.settings():
            start = tmp_path / f"start{settings.seed}.safetensors"
            save_checkpoint(build("mlp", seed=settings.seed, hidden=6).double(), start)
            rows.append(
                {"checkpoint": store.checkpoint(settings.id), "initial": start}
                | {"lr": settings.axes["lr"], "batch_size": settings.axes["batch_size"]}
                | {"seed": settings.seed}
            )
        before = Population.of(store)
    write_table(tmp_path / "runs.csv", rows)
    measures = ("--measures", ",".join(trained.measures), "--setting", "lr,batch_size")
    arguments = (*MODEL, *DATA, *measures, "--test", "digits", "--out", tmp_path / "given")
    command("measure", tmp_path / "runs.csv", *arguments)
    with Store.open(tmp_path / "given") as store:
        same(statistics(store, target="gap").to_dict(), expected)
        same(statistics(store, target="error_gap").to_dict(), by_error)
        after = Population.of(store)
    for one, other in zip(before.rows, after.rows, strict=True):
        for key in (*before.axes, "seed", *before.measures, "train_loss", "gap", "test_error"):
            assert one[key] == pytest.approx(other[key], rel=1e-9, abs=1e-12), key


def test_outcomes_of_a_table_take_the_place_of_evaluated_ones(tmp_path):
    found = networks()
    for i, (_, row) in enumerate(found.values()):
        row |= {"train_loss": 1.0 + i / 7, "test_accuracy": i / 9}
    table = write(tmp_path / "runs", found)
    command("measure", table, *ALL, "--out", tmp_path / "store")
    read = population(tmp_path / "store")
    assert list(read.targets) == ["test_error", "test_accuracy", "accuracy"]
    for i, row in enumerate(read.rows):
        assert row["train_loss"] == 1.0 + i / 7
        assert row["test_error"] == 1 - i / 9
        assert "error_gap" not in row  # not of two different origins
        assert 0 <= row["train_accuracy"] <= 1


# -- stopping, going on, adding -------------------------------------------------------------------


def attempts(folder):
    with Store.open(folder) as store:
        return [row["attempt"] for row in store.rows("runs")]


def test_an_interrupted_command_goes_on_where_it_stopped(tmp_path, monkeypatch):
    table, whole, stopped = write(tmp_path / "runs"), tmp_path / "whole", tmp_path / "stopped"
    command("measure", table, *ALL, "--out", whole)
    original, calls = measuring.measured, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(measuring, "measured", interrupted)
    result = command("measure", table, *ALL, "--out", stopped, code=130)
    assert "stopped; 3 of 8 runs done, 5 pending" in result.stderr
    command("measure", table, *ALL, "--out", stopped)
    assert sorted(attempts(stopped)) == [1] * 7 + [2]
    one, other = population(whole), population(stopped)
    for left, right in zip(one.rows, other.rows, strict=True):
        for key in (*one.measures, "train_loss", "accuracy"):
            assert left[key] == right[key]  # to the last bit
    monkeypatch.undo()
    shown = command("measure", table, *ALL, "--out", stopped).stdout
    assert "0 of them now" in shown


@pytest.mark.nightly  # processes take seconds to start
def test_resume_finishes_it_too_and_several_processes_agree(tmp_path):
    table = write(tmp_path / "runs")
    command("measure", table, *ALL, "--out", tmp_path / "one")
    command("measure", table, *ALL, "--out", tmp_path / "two", "--workers", 2)
    command("resume", tmp_path / "two")
    one, two = population(tmp_path / "one"), population(tmp_path / "two")
    free = ("seconds", "attempt", "machine")
    for left, right in zip(one.rows, two.rows, strict=True):
        assert {k: v for k, v in left.items() if k not in free} == {
            k: v for k, v in right.items() if k not in free
        }


def test_networks_and_outcomes_can_be_added_later(tmp_path):
    found, store = networks(), tmp_path / "store"
    names = list(found)
    write(tmp_path / "runs", {name: found[name] for name in names[:6]})
    command("measure", tmp_path / "runs" / "runs.csv", *ALL, "--out", store)
    for i, (_, row) in enumerate(found.values()):
        row |= {"accuracy": i / 100, "robustness": i * 0.5}
    write(tmp_path / "runs", found)
    more = (*ALL, "--outcome", "robustness", "--out", store)
    assert "2 of them now" in command("measure", tmp_path / "runs" / "runs.csv", *more).stdout
    rows = population(store).rows
    assert [row["robustness"] for row in rows] == [i * 0.5 for i in range(8)]
    assert [row["accuracy"] for row in rows] == [i / 100 for i in range(8)]
    assert attempts(store) == [1] * 8


def test_a_store_with_other_networks_is_not_gone_on_with(tmp_path):
    found, store = networks(), tmp_path / "store"
    table = write(tmp_path / "runs", found)
    command("measure", table, *ALL, "--out", store)
    changed, gone = list(found)[2], list(found)[5]
    with torch.no_grad():
        found[changed][0].head.bias.add_(0.1)
    del found[gone]
    write(tmp_path / "runs", found)
    text = command("measure", table, *ALL, "--out", store, code=1).stderr
    assert "1 of its networks have other weights, another model" in text
    assert f"{changed!r}; 1 are no longer among those given: {gone!r}" in text
    assert attempts(store) == [1] * 8


def test_a_checkpoint_that_changes_meanwhile_is_refused(tmp_path, monkeypatch):
    table = write(tmp_path / "runs")
    monkeypatch.setattr(measuring, "measured", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    command("measure", table, *ALL, "--out", tmp_path / "store", code=130)
    monkeypatch.undo()
    torch.save(small().double().state_dict(), tmp_path / "runs" / list(networks())[3])
    command("resume", tmp_path / "store", code=1)
    text = command("status", tmp_path / "store").stdout
    assert "7 of 8 runs done, 1 failed" in text
    assert "has other weights than when the study was started" in " ".join(text.split())


def test_a_network_whose_loss_is_not_a_number_has_no_measures(tmp_path):
    found = networks()
    with torch.no_grad():
        next(iter(found.values()))[0].head.bias.fill_(math.nan)
    table = write(tmp_path / "runs", found)
    command("measure", table, *ALL, "--out", tmp_path / "store")
    first, *others = population(tmp_path / "store").rows
    assert first["outcome"] == "diverged"
    assert "relative.kappa" not in first
    assert all("relative.kappa" in row for row in others)
    with Store.open(tmp_path / "store") as store:
        assert statistics(store, target="accuracy")["relative.kappa"].spearman.n == 7


# -- what a store of given networks shows ----------------------------------------------------------


def test_report_watch_and_export(tmp_path):
    pytest.importorskip("plotly")
    store = tmp_path / "store"
    command("measure", write(tmp_path / "runs"), *ALL, "--out", store)
    shown = command("report", store, "--html", tmp_path / "page.html").stdout
    assert "No measure can be judged by the accuracy: any of lr and batch_size may" in shown
    assert "Judged over 8 networks of 4 settings" in shown
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "lr0.1_bs10_seed0.pt" in page
    assert "ended by" not in page
    watched = command_line.run("watch", store, "--json", "-")
    assert '"target": "accuracy"' in watched.stdout
    assert '"network": "lr0.1_bs10_seed0.pt"' in watched.stdout
    command("export", store, "--out", tmp_path / "tables")
    with (tmp_path / "tables" / "runs.csv").open(newline="") as file:
        assert [row["network"] for row in csv.DictReader(file)] == list(networks())


@pytest.mark.nightly  # drawing takes seconds
def test_figures(tmp_path):
    store = tmp_path / "store"
    command("measure", write(tmp_path / "runs"), *ALL, "--out", store)
    drawn = command("figures", store, "--out", tmp_path / "figures").stdout
    assert "training: the networks were given, and not trained here" in " ".join(drawn.split())
    assert (tmp_path / "figures" / "accuracy-linear.png").is_file()


def test_without_outcomes_they_are_measured_and_not_judged(tmp_path):
    table = write(tmp_path / "runs")
    arguments = (*MODEL, *DATA, *MEASURES, "--setting", "lr,batch_size", "--ignore", "accuracy")
    shown = command("measure", table, *arguments, "--out", tmp_path / "store").stdout
    assert "measured and nothing can be judged" in " ".join(shown.split())
    assert "no outcome is known of them" in command("report", tmp_path / "store", code=1).stderr
    command("measure", table, *ALL, "--out", tmp_path / "store")  # and now with one
    shown = command("report", tmp_path / "store").stdout
    assert "judged by the accuracy" in shown
