"""Ends of training that depend on the steps of an epoch, against loops written by hand."""

import functools

import pytest
import torch
from torch.nn import functional as F

from population.tiny_study import tiny
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.models import build
from spiritlevel_lab import Store, execute
from spiritlevel_lab.population.runs.run_data import derived_generator, load_data
from spiritlevel_lab.population.runs.running import run_one

EPOCHS, BATCH = 8, 16  # 60 samples: the last batch is smaller, and counts as much as the others
TRAINING = {"epochs": EPOCHS, "batch_size": BATCH, "lr": 0.2, "dtype": "float64"}
MEASURE = "norms.weight"  # nothing here is about measures: the one that takes least


@functools.cache
def seen_by_hand(seed) -> list[dict[str, float]]:
    """What each epoch of plain SGD sees on average over its batches."""
    settings = tiny(training=TRAINING, grid={}, seeds=[seed]).runs()[0]
    data = load_data(settings)
    model = build("mlp", seed=seed, hidden=4).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.training.lr)
    generator = derived_generator(seed, "shuffling")
    epochs = []
    for _ in range(EPOCHS):
        losses, gradients, heads = [], [], []
        order = torch.randperm(len(data.x), generator=generator)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(data.x[batch]), data.y[batch])
            loss.backward()
            losses.append(loss.item())
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
            heads.append(model.head.weight.grad.clone())
            optimizer.step()
        epochs.append(
            {
                "running_loss": sum(losses) / len(losses),
                "gradient_norm": float(torch.stack(gradients).mean(0).norm()),
                "head_gradient": float(torch.stack(heads).mean(0).abs().max()),
            }
        )
    return epochs


@pytest.mark.parametrize("name", ["running_loss", "gradient_norm", "head_gradient"])
def test_training_ends_at_the_epoch_whose_steps_reach_the_level(name, tmp_path):
    values = [epoch[name] for epoch in seen_by_hand(0)]
    lowest = min(values[:5])
    for level in (lowest * (1 + 1e-9), lowest * (1 - 1e-9)):  # met, and just not met
        study = tiny(training=TRAINING, grid={}, seeds=2, stop={name: level}, measures=[MEASURE])
        wanted = []
        for run in study.runs():
            epochs = seen_by_hand(run.seed)
            met = [e for e in range(EPOCHS) if epochs[e][name] <= level]
            ends = met[0] + 1 if met else EPOCHS
            wanted.append((ends, name if met else "epochs"))
            result = run_one(run)
            assert (len(result.epochs), result.outcome) == wanted[-1]
        folder = tmp_path / f"{level > lowest}"
        with Store.create(folder, study) as store:
            execute(store, executor="vmap")
            rows = {row["id"]: row for row in store.rows("runs")}
            ended = {id_: 0 for id_ in rows}
            for epoch in store.rows("epochs"):
                ended[epoch["run"]] = max(ended[epoch["run"]], epoch["epoch"])
            assert {m["trained"] for m in store.machines().values()} == {"together"}
        found = [(ended[run.id], rows[run.id]["outcome"]) for run in study.runs()]
        assert found == wanted


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_fewer_evaluations_do_not_change_when_the_steps_end_training(together, tmp_path):
    level = max(seen_by_hand(0)[2]["running_loss"], seen_by_hand(1)[2]["running_loss"])
    training = {**TRAINING, "evaluate_every": 5}
    study = tiny(
        training=training, grid={}, seeds=2, stop={"running_loss": level}, measures=[MEASURE]
    )
    with Store.create(tmp_path, study) as store:
        execute(store, executor="vmap" if together else "local")
        rows, outcomes = store.rows("epochs"), store.rows("runs")
    for run in study.runs():
        losses = [epoch["running_loss"] for epoch in seen_by_hand(run.seed)]
        ends = next(e for e, loss in enumerate(losses, 1) if loss <= level)
        assert ends <= 3  # before the first evaluation that is asked for
        assert [row["epoch"] for row in rows if row["run"] == run.id] == [ends]
    assert {row["outcome"] for row in outcomes} == {"running_loss"}


def test_members_with_different_levels_end_by_their_own(tmp_path):
    study = tiny(
        training=TRAINING,
        grid={"stop.running_loss": [2.25, 1.0], "lr": [0.2, 0.1]},
        seeds=1,
        measures=[MEASURE],
    )
    alone = {run.id: run_one(run) for run in study.runs()}
    assert {result.outcome for result in alone.values()} == {"running_loss", "epochs"}
    with Store.create(tmp_path, study) as store:
        execute(store, executor="vmap")
        for row in store.rows("runs"):
            epochs = [e for e in store.rows("epochs") if e["run"] == row["id"]]
            wanted = alone[row["id"]]
            assert (row["outcome"], len(epochs)) == (wanted.outcome, len(wanted.epochs))


def test_without_such_an_end_nothing_is_part_of_the_id():
    [run] = tiny(grid={}, seeds=1, stop={"train_loss": 0.1}).runs()
    assert run.to_dict()["stop"] == {"train_loss": 0.1}
    [run] = tiny(grid={}, seeds=1, stop={"running_loss": 0.1}).runs()
    assert run.to_dict()["stop"] == {"running_loss": 0.1}


@pytest.mark.parametrize(
    ("stop", "training"),
    [
        ({"running_loss": 0.1}, {"method": "sam"}),
        ({"gradient_norm": 0.1}, {"penalty": 0.1}),
        ({"head_gradient": 0.1}, {"method": "asam"}),
    ],
)
def test_steps_that_see_something_else_are_refused(stop, training):
    with pytest.raises(SpiritlevelError, match="looks at the loss of plain steps"):
        tiny(stop=stop, training=training)
