"""What is seen while a network trains: validation data, measures along the way, rules that stop."""

import itertools
import math

import pytest
import torch
from safetensors.torch import load

import spiritlevel as sl
from spiritlevel.study import Store, control, run
from spiritlevel.study.export import export
from spiritlevel.study.models import build
from spiritlevel.study.population import Population
from spiritlevel.study.run_results import EpochRow, MeasurementRow
from spiritlevel.study.runs.outcomes import Ending
from spiritlevel.study.runs.run_data import load_data
from spiritlevel.study.runs.running import run_one
from study.tiny_study import tiny

VALIDATED = {"name": "digits", "samples": 60, "validation": 20}


def only(**changes):
    [settings] = tiny(**({"grid": {}, "seeds": 1} | changes)).runs()
    return settings


# -- test data -------------------------------------------------------------------------------


def test_a_part_of_the_test_data_is_the_same_in_every_run():
    whole = load_data(only())
    study = tiny(grid={}, seeds=2, data={"name": "digits", "samples": 60, "test_samples": 25})
    first, second = (load_data(settings) for settings in study.runs())
    assert (len(first.test_x), len(first.x)) == (25, 60)
    assert torch.equal(first.test_x, second.test_x)
    assert torch.equal(first.x, whole.x)
    labels = {
        tuple(x): int(y)
        for x, y in zip(whole.test_x.flatten(1).tolist(), whole.test_y, strict=True)
    }
    found = zip(first.test_x.flatten(1).tolist(), first.test_y, strict=True)
    assert [labels[tuple(x)] for x, _ in found] == first.test_y.tolist()
    assert run_one(study.runs()[0]).num_test == 25


def test_more_test_samples_than_there_are_are_refused():
    data = {"name": "digits", "test_samples": 501}
    with pytest.raises(
        sl.SpiritlevelError, match=r"data\.test_samples must be at most 500.*Got 501"
    ):
        load_data(only(data=data))


# -- validation data -------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "count"), [(0.25, 15), (7, 7), (59, 59)])
def test_validation_data_are_a_part_of_the_training_data_and_no_longer_in_them(given, count):
    whole = load_data(only())
    data = load_data(only(data={"name": "digits", "samples": 60, "validation": given}))
    x, y = data.validation
    assert (len(x), len(data.x)) == (count, 60 - count)
    together = torch.cat([x, data.x]).flatten(1), torch.cat([y, data.y])
    found = sorted((*r, int(c)) for r, c in zip(together[0].tolist(), together[1], strict=True))
    wanted = sorted((*r, int(c)) for r, c in zip(whole.x.flatten(1).tolist(), whole.y, strict=True))
    assert found == wanted


def test_the_part_is_the_same_in_every_run_and_its_labels_are_right():
    noise = {"label_noise": 1.0}
    clean, noisy = (
        [load_data(s) for s in tiny(grid={}, seeds=2, data=VALIDATED, interventions=i).runs()]
        for i in ({}, noise)
    )
    for data in (*clean, *noisy):
        assert torch.equal(data.validation[0], clean[0].validation[0])
        assert torch.equal(data.validation[1], clean[0].validation[1])
    assert not torch.equal(clean[0].y, noisy[0].y)


def test_the_rows_hold_the_loss_on_validation_data():
    settings = only(data=VALIDATED)
    result = run_one(settings)
    model = build("mlp", hidden=4, seed=0)
    model.load_state_dict(load(result.checkpoint))
    x, y = load_data(settings).validation
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(x), y)
        accuracy = (model(x).argmax(1) == y).double().mean()
    assert math.isclose(result.epochs[-1].validation_loss, float(loss), rel_tol=1e-6)
    assert result.epochs[-1].validation_accuracy == float(accuracy)
    assert result.num_train == 40
    assert run_one(only()).epochs[-1].validation_loss is None


# -- measures along the way ------------------------------------------------------------------


def test_what_is_measured_after_an_epoch_is_what_a_shorter_run_ends_with():
    training = {"epochs": 5, "batch_size": 20, "momentum": 0.9}
    result = run_one(only(training=training, measure_every=2))
    assert sorted({m.epoch for m in result.epoch_measurements}) == [2, 4]
    for epochs in (2, 4):
        shorter = run_one(only(training=training | {"epochs": epochs}))
        found = [m for m in result.epoch_measurements if m.epoch == epochs]
        assert [vars(m) for m in found] == [
            vars(m) | {"epoch": epochs} for m in shorter.measurements
        ]


NETS = """
from torch import nn
def net():
    layers = nn.Flatten(), nn.BatchNorm1d(64), nn.Dropout(0.5), nn.Linear(64, 10)
    return nn.Sequential(*layers)
"""


def test_measuring_leaves_the_training_alone(tmp_path, monkeypatch):
    # Dropout draws from torch's global generator, running statistics are part of the weights.
    (tmp_path / "watched_nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    fields = {"model": "watched_nets:net", "measures": ["head.trace"]}
    plain = run_one(only(**fields))
    watched = run_one(only(**fields, measure_every=1, epoch_measures=["sharpness.average"]))
    assert watched.checkpoint == plain.checkpoint
    assert watched.epochs == plain.epochs
    assert {m.measure for m in watched.epoch_measurements} == {"sharpness.average"}
    assert {m.measure for m in watched.measurements} == {"head.trace"}


def test_the_store_keeps_and_exports_them(tmp_path):
    with run(tiny(grid={}, seeds=2, measure_every=1), tmp_path) as store:
        rows = store.rows("epoch_measurements")
        last = [row for row in rows if row["epoch"] == 2]
        for row in last:
            del row["epoch"]
        assert last == store.rows("measurements")
        paths = export(store, tmp_path / "tables")
    assert [path.rpartition("/")[2] for path in paths][-1] == "epoch_measurements.csv"
    assert len((tmp_path / "tables" / "epoch_measurements.csv").read_text().splitlines()) == (
        1 + len(rows)
    )


def test_a_diverged_epoch_is_not_measured():
    result = run_one(
        only(
            model={"name": "mlp", "hidden": []},
            training={"lr": 1e38, "epochs": 9},
            measure_every=1,
        )
    )
    assert result.outcome == "diverged"
    finite = [row.epoch for row in result.epochs if math.isfinite(row.train_loss)]
    assert sorted({m.epoch for m in result.epoch_measurements}) == finite


# -- rules that stop -------------------------------------------------------------------------


def row(epoch: int, validation: float | None = None) -> EpochRow:
    return EpochRow(epoch, 1.0, 0.5, 1.0, 0.5, validation, None)


def kappa(value: float) -> list[MeasurementRow]:
    return [
        MeasurementRow("head.kappa", "fc", 7.0, None, None, True, "ok", ""),
        MeasurementRow("head.kappa", "", value, None, None, True, "ok", ""),
    ]


def ends(stop, losses, values, epochs: int = 20) -> tuple[int, str]:
    """The epoch at which training ends, and why."""
    [run] = tiny(grid={}, seeds=1, data=VALIDATED, training={"epochs": epochs}, stop=stop).runs()
    ending = Ending(run.stop, epochs)
    for epoch in range(1, epochs + 1):
        loss = losses(epoch) if losses else None
        measured = kappa(values(epoch)) if values else None
        if outcome := ending.after(row(epoch, loss), measured):
            return epoch, outcome
    raise AssertionError


def test_the_rules_stop_where_the_paper_says():
    stuck = lambda epoch: 1.0 if epoch == 3 else 2.0  # noqa: E731
    level = lambda epoch: max(10.0 / epoch, 2.0)  # noqa: E731 (still from epoch 5 on)
    moving = lambda epoch: 2.0**epoch  # noqa: E731
    patience = {"patience": 4}
    assert ends({"rule": "loss"} | patience, stuck, None) == (7, "loss_rule")
    assert ends({"rule": "flatness"} | patience, stuck, level) == (9, "flatness_rule")
    assert ends({"rule": "flatness"} | patience, stuck, moving) == (20, "epochs")
    assert ends({"rule": "both"} | patience, stuck, level) == (9, "both_rule")
    assert ends({"rule": "both"} | patience, lambda e: 1 / e, level) == (20, "epochs")
    assert ends({"rule": "trend"} | patience, stuck, level) == (8, "trend_rule")
    # Jumps of 5 % around one level: no two epochs are alike, and there is no trend.
    jumping = lambda epoch: 2.0 * (1.05 if epoch % 2 else 1.0)  # noqa: E731
    assert ends({"rule": "flatness"}, stuck, jumping)[1] == "epochs"
    assert ends({"rule": "trend", "patience": 12}, stuck, jumping) == (12, "trend_rule")


def test_a_rule_on_flatness_counts_measured_epochs():
    ending = Ending(only(stop={"rule": "flatness", "patience": 2}).stop, 9)
    seen = [ending.after(row(e), kappa(1.0) if e % 2 else None) for e in range(1, 6)]
    assert seen == ["", "", "", "", "flatness_rule"]


def test_a_rule_brings_its_measure_along_and_the_rows_show_why_it_stopped():
    stop = {"rule": "flatness", "patience": 2, "tolerance": 0.9}
    settings = only(training={"epochs": 30, "batch_size": 20}, stop=stop)
    assert (settings.measure_every, settings.epoch_measures) == (1, ("head.kappa",))
    result = run_one(settings)
    assert result.outcome == "flatness_rule"
    found = [m.value for m in result.epoch_measurements if m.layer == ""]
    assert len(found) == len(result.epochs) < 30
    changes = [abs(b - a) / a for a, b in itertools.pairwise(found)]
    assert all(change < 0.9 for change in changes[-2:])
    named = only(stop=stop | {"measure": "head.trace"}, measure_every=2)
    assert (named.measure_every, named.epoch_measures) == (2, None)  # it is among the measures
    added = only(stop=stop, measure_every=2, epoch_measures=["norms.weight"])
    assert added.epoch_measures == ("norms.weight", "head.kappa")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"stop": {"rule": "lost"}}, "must be one of none, loss, flatness, both, trend"),
        ({"stop": {"rule": "loss"}}, "there is none. Add for example `validation: 0.1` to data"),
        ({"stop": {"patience": 3}}, "stop.patience has no effect without stop.rule"),
        ({"stop": {"rule": "trend", "patience": 3}}, "at least 4 for the rule 'trend'. Got 3"),
        ({"epoch_measures": ["head.trace"]}, "has no effect without measure_every"),
        ({"measure_every": 0}, "measure_every must be a whole number of at least 1. Got 0"),
        ({"measure_every": 1, "epoch_measures": []}, "epoch_measures must name at least one"),
        ({"data": {"name": "digits", "validation": 1.5}}, "must be a share of the training data"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused(changes, text):
    with pytest.raises(sl.SpiritlevelError) as caught:
        tiny(**changes)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"data": VALIDATED | {"validation": 60}}, "must leave samples for both parts. Got 60"),
        ({"measure_every": 1, "epoch_measures": ["head.trac"]}, "Did you mean"),
        ({"stop": {"rule": "trend", "measure": "head.kapa"}}, "Did you mean"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_every_run_would_fail_on_is_refused_before_the_first(changes, text):
    with pytest.raises(sl.SpiritlevelError) as caught:
        control.check(tiny(**changes))
    assert text in str(caught.value)


def test_no_rule_is_the_same_run_as_none():
    assert only(stop={"rule": "none", "patience": 3}).id == only().id


def test_statistics_and_tables_have_the_validation_columns_where_there_are_any(tmp_path):
    with run(tiny(grid={}, seeds=1, data=VALIDATED), tmp_path / "with") as store:
        assert Population.of(store).rows[0]["validation_loss"] > 0
    with Store.create(tmp_path / "without", tiny(grid={}, seeds=1)) as store:
        control.execute(store)
        assert "validation_loss" not in Population.of(store).rows[0]
