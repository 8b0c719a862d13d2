"""A group that is interrupted goes on from its last snapshot, to the same bits."""

import itertools
import math
import types

import pytest

from population.tiny_study import lasting, tiny
from spiritlevel_lab import Store, execute
from spiritlevel_lab.population.executors import vmap
from spiritlevel_lab.population.run_results import History
from spiritlevel_lab.population.runs import training_snapshots
from spiritlevel_lab.population.runs.training_snapshots import packed, unpacked

OPTIMIZERS = ["sgd", "adam", "rmsprop"]


def study(**changes):
    """Four networks, of which two have ended where the others are interrupted."""
    fields = {
        "training": {"epochs": 4, "batch_size": 16, "momentum": 0.9, "schedule": "cosine"},
        "grid": {"epochs": [2, 4]},
        "seeds": 2,
        "measure_every": 2,
        "epoch_measures": ["head.kappa"],
    }
    return tiny(**(fields | changes))


@pytest.fixture
def interrupted(monkeypatch):
    """Snapshots after every epoch, and Ctrl-C in the middle of the third."""
    monkeypatch.setattr(training_snapshots, "EVERY", 0.0)
    monkeypatch.setattr(training_snapshots, "SHARE", math.inf)

    def start(folder, made):
        plain, epochs = vmap.train_together.__globals__["_train_epoch"], []

        def counted(stack, active, epoch):
            epochs.append(epoch)
            found = plain(stack, active, epoch)
            if epoch == 3 and epochs.count(3) == 1:
                raise KeyboardInterrupt
            return found

        monkeypatch.setitem(vmap.train_together.__globals__, "_train_epoch", counted)
        with Store.create(folder, made) as store:
            with pytest.raises(KeyboardInterrupt):
                execute(store, executor="vmap")
            assert store.counts().done == 0
        return epochs

    return start


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_rest_is_trained_and_the_bits_are_the_same(tmp_path, interrupted, optimizer):
    made = study()
    made = study(training=dict(made.training) | {"optimizer": optimizer})
    with Store.create(tmp_path / "whole", made) as store:
        execute(store, executor="vmap")
    epochs = interrupted(tmp_path / "cut", made)
    with Store.open(tmp_path / "cut") as store:
        execute(store, executor="vmap")
    assert epochs == [1, 2, 3, 3, 4]  # not from the start
    whole, cut = lasting(tmp_path / "whole"), lasting(tmp_path / "cut")
    assert whole.keys() == cut.keys()
    for table in whole:
        assert whole[table] == cut[table]
    assert not (tmp_path / "cut" / vmap.UNFINISHED).exists()


def test_a_rule_on_what_was_seen_goes_on_too(tmp_path, interrupted):
    made = study(
        grid={"lr": [1e-6, 0.1]},
        stop={"rule": "flatness", "patience": 3, "measure": "head.kappa"},
        measure_every=1,
    )
    with Store.create(tmp_path / "whole", made) as store:
        execute(store, executor="vmap")
        assert {row["outcome"] for row in store.rows("runs")} == {"flatness_rule", "epochs"}
    interrupted(tmp_path / "cut", made)
    with Store.open(tmp_path / "cut") as store:
        execute(store, executor="vmap")
    whole, cut = lasting(tmp_path / "whole"), lasting(tmp_path / "cut")
    assert all(whole[table] == cut[table] for table in whole)


@pytest.mark.parametrize("damage", ["cut short", "other networks", "code"])
def test_what_does_not_fit_is_not_used(tmp_path, interrupted, damage):
    made = study()
    epochs = interrupted(tmp_path / "cut", made)
    [file] = (tmp_path / "cut" / vmap.UNFINISHED).iterdir()
    if damage == "cut short":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "other networks":
        file.write_bytes(packed(unpacked(file) | {"trained": ["another"]}))
    else:
        file.write_bytes(packed({"epoch": pytest.fail}))
    with Store.open(tmp_path / "cut") as store:
        assert execute(store, executor="vmap").done == 4
    assert epochs == [1, 2, 3, 1, 2, 3, 4]


def test_saving_takes_a_small_share_of_the_time(tmp_path, monkeypatch):
    clock = itertools.count(100.0, 0.5)  # half a second between two looks at it
    watch = types.SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(training_snapshots, "time", watch)
    file = training_snapshots.SnapshotFile(tmp_path / "unfinished", "a", ["a"])
    looks = [file.due for _ in range(11)]
    assert looks == [False] * 9 + [True] * 2  # after five seconds
    file.save(training_snapshots.Snapshot(1, [History()], 1.0, {}))  # half a second
    looks = [file.due for _ in range(51)]
    assert looks == [False] * 49 + [True] * 2  # a fiftieth
