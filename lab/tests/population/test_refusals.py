"""What cannot work is refused before training; what was trained is kept when measuring fails."""

import time

import numpy
import pytest
import torch
from torch.nn import functional as F

import spiritlevel as sl
from population.tiny_study import lasting, tiny
from spiritlevel.inputs.checkpoints import load_checkpoint
from spiritlevel.inputs.models import build
from spiritlevel_lab import Store, execute, resume
from spiritlevel_lab.population import control
from spiritlevel_lab.population.population_statistics import statistics
from spiritlevel_lab.population.runs import running
from spiritlevel_lab.population.runs.epochs import BatchChanges
from spiritlevel_lab.population.runs.run_data import load_data
from spiritlevel_lab.population.runs.running import run_one
from spiritlevel_lab.population.settings.sections import InterventionSettings
from spiritlevel_lab.population.storage.claims import new_worker

ONE = {"grid": {}, "seeds": 1}
WRONG_LAYER = {"layers": "hed"}


def refusal(**changes) -> str:
    with pytest.raises(sl.SpiritlevelError) as caught:
        control.check(tiny(**(ONE | changes)))
    return str(caught.value)


def words_of_measure(**options) -> str:
    [settings] = tiny(**ONE).runs()
    data = load_data(settings)
    model = build("mlp", hidden=4, seed=0)
    with pytest.raises(sl.SpiritlevelError) as caught:
        sl.measure(model.eval(), (data.x, data.y), measures=["head.trace"], **options)
    return str(caught.value)


# -- measure_options -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"method": "exakt"},
        {"rtol": -1},
        {"confidence": 95},
        {"max_passes": 0},
        {"options": {"rho": -1}},
        {"layers": "hed"},
        {"layers": ["fc1", "fc7*"]},
        {"head": "nope"},
        {"head": "fc1"},
    ],
    ids=str,
)
def test_options_are_refused_in_the_words_of_measure_with_their_place_in_the_study(options):
    text = refusal(measure_options=options, measures=["head.trace"])
    assert text.startswith("The study's measure_options")
    assert text.endswith(words_of_measure(**options))


@pytest.mark.parametrize("options", [{"layers": 5}, {"layers": []}, {"head": 3}], ids=str)
def test_layers_and_heads_that_are_no_names_are_refused(options):
    [(key, value)] = options.items()
    text = refusal(measure_options=options)
    assert f"measure_options.{key} must be" in text
    assert f"Got {value!r}" in text


def test_every_value_of_a_grid_of_options_is_looked_at():
    assert "Got -1" in refusal(grid={"measure_options.rtol": [0.1, -1]})
    assert "'hed'" in refusal(grid={"measure_options.layers": ["fc1", "hed"]})


def test_measures_while_training_need_the_named_head_too():
    late = {"measures": ["norms.weight"], "measure_options": {"head": "fc1"}}
    control.check(tiny(**ONE, **late))  # which nothing asks for
    assert "'fc1'" in refusal(**late, measure_every=1, epoch_measures=["head.trace"])


def test_options_that_work_pass():
    for options in ({"layers": "head"}, {"layers": ["fc*"]}, {"head": "head", "method": "exact"}):
        control.check(tiny(**ONE, measure_options=options))
    # The weights before training are the study's to give.
    control.check(tiny(**ONE, measures=["norms.distance"], measure_options={"layers": "fc1"}))


# -- networks and data -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"name": "lenet5"}, ("shape (1, 8, 8)", "size=28")),
        ({"name": "mlp", "inputs": 63}, ("{'inputs': 63}", "shape (1, 8, 8)", "inputs=64")),
        ({"name": "mlp", "outputs": 5}, ("at least 10 outputs", "shape (5,)", "outputs=10")),
        ({"name": "resnet18", "width": 4}, ("{'width': 4}", "channels=3")),
        ({"name": "text_transformer", "classes": 10}, ("shape (1, 8, 8)", "vocabulary=1000")),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_network_that_cannot_take_the_data_is_refused(model, said):
    text = refusal(model=model)
    assert all(words in text for words in (f"model {model['name']!r}", "'digits'", *said))
    with pytest.raises((RuntimeError, IndexError, sl.SpiritlevelError)):  # it cannot be trained
        run_one(tiny(**ONE, model=model).runs()[0])


def test_more_outputs_than_classes_train_unless_labels_are_mixed():
    wide = {"name": "mlp", "hidden": 4, "outputs": 12}
    control.check(tiny(**ONE, model=wide))
    assert run_one(tiny(**ONE, model=wide).runs()[0]).error is None
    mixed = {"model": wide, "interventions": {"mixup": 0.2}}
    assert "exactly 10 outputs" in refusal(**mixed)
    with pytest.raises(RuntimeError):
        run_one(tiny(**ONE, **mixed).runs()[0])


def test_test_data_of_another_shape_and_batches_that_cannot_be_changed_are_refused(tmp_path):
    flat, other = tmp_path / "flat.npz", tmp_path / "other.npz"
    numpy.savez(flat, x=numpy.zeros((40, 64), "float32"), y=numpy.arange(40) % 10)
    numpy.savez(other, x=numpy.zeros((9, 65), "float32"), y=numpy.zeros(9, "int64"))
    text = refusal(data={"name": str(flat), "test": str(other)})
    assert f"the test data {str(other)!r}" in text
    assert "shape (65,)" in text
    same = {"name": str(flat), "test": str(flat)}
    assert "crop_flip" in refusal(data=same, interventions={"crop": 1})


def test_a_task_has_its_own_use_of_network_and_data():
    odd = {"name": "mlp", "inputs": 63}
    task = "spiritlevel_lab.population.runs.tasks:task_result"  # not registered: needs permission
    control.check(tiny(**ONE, model=odd, task=task), allow_code=True)


# -- what was trained is kept ----------------------------------------------------------------


def healthy(folder, executor):
    """The same training, measured without trouble."""
    with Store.create(folder, tiny(seeds=2)) as store:
        execute(store, executor=executor)
        ids = [(run.training.lr, run.seed, run.id) for run in store.settings()]
        return {
            (lr, seed): (store.checkpoint(id_).read_bytes(), epochs_of(store, id_))
            for lr, seed, id_ in ids
        }


def epochs_of(store, id_):
    rows = [row for row in store.rows("epochs") if row["run"] == id_]
    return [{key: row[key] for key in row if key != "run"} for row in rows]


@pytest.mark.parametrize("executor", ["local", "vmap"])
def test_checkpoint_and_epochs_stay_where_measuring_fails(tmp_path, executor):
    expected = healthy(tmp_path / "healthy", executor)
    study = tiny(seeds=2, measure_options=WRONG_LAYER)
    with Store.create(tmp_path / "failing", study) as store:
        for _ in range(2):  # a second try leaves the same, once
            store.retry_failed()
            execute(store, executor=executor)
            assert (store.counts().failed, store.counts().total) == (4, 4)
            assert store.rows("measurements") == []
            for run, row in zip(store.settings(), store.rows("runs"), strict=True):
                assert "'hed'" in row["error"]
                weights, epochs = expected[run.training.lr, run.seed]
                assert store.checkpoint(run.id).read_bytes() == weights
                assert epochs_of(store, run.id) == epochs
        path = store.checkpoint(run.id)
    model = build("mlp", hidden=4, seed=7)
    load_checkpoint(model, path)
    data = load_data(run)
    with torch.no_grad():  # by hand
        loss = float(F.cross_entropy(model(data.x), data.y))
    assert loss == pytest.approx(epochs[-1]["train_loss"], rel=1e-5)


def fail_at_the_end(monkeypatch, count):
    """So many networks run out of memory when they are measured after training."""
    measure, left = running.api.measure, [count]

    def failing(*arguments, measures, **options):
        if "head.trace" in measures and left[0] > 0:
            left[0] -= 1
            raise MemoryError("no room")
        return measure(*arguments, measures=measures, **options)

    monkeypatch.setattr(running.api, "measure", failing)


def test_a_resumed_study_ends_as_if_nothing_had_failed(tmp_path, monkeypatch):
    study = tiny(seeds=3, measure_every=1, epoch_measures=["norms.weight"])
    with Store.create(tmp_path / "plain", study) as store:
        execute(store)
    fail_at_the_end(monkeypatch, 2)
    with Store.create(tmp_path / "failing", study) as store:
        execute(store)
        assert (store.counts().done, store.counts().failed) == (4, 2)
        assert len(store.rows("epochs")) == 6 * 2
        assert len(store.rows("epoch_measurements")) == 6 * 2 * 3  # the whole and two layers
        errors = [row["error"] for row in store.rows("runs") if row["status"] == "failed"]
        assert [error.partition(" (")[0] for error in errors] == ["MemoryError: no room"] * 2
        kendall = statistics(store)["head.trace"].kendall
        assert (kendall.n, kendall.excluded) == (4, 2)
    resume(tmp_path / "failing").close()
    assert lasting(tmp_path / "failing") == lasting(tmp_path / "plain")


def test_a_worker_that_lost_its_run_leaves_no_rows_of_it(tmp_path):
    study = tiny(**ONE, measure_options=WRONG_LAYER)
    with Store.create(tmp_path / "study", study) as store:
        late = store.claim("elsewhere/1/x", lease=60)
        time.sleep(0.02)
        taken = store.claim(new_worker(), lease=0.01)
        result = run_one(late.settings)
        assert "'hed'" in result.error
        assert not store.finish(late, result)
        assert store.rows("epochs") == []
        assert store.counts().running == 1
        assert store.finish(taken, result)
        assert [row["epoch"] for row in store.rows("epochs")] == [1, 2]
        assert store.counts().failed == 1


# -- cropping --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["crop", "crop_flip"])
@pytest.mark.parametrize("value", [1.5, -1, "wide"])
def test_pixels_are_whole(key, value):
    with pytest.raises(sl.SpiritlevelError, match=rf"{key} must be a whole number of pixels"):
        tiny(interventions={key: value})


def test_images_are_moved_once_only():
    with pytest.raises(sl.SpiritlevelError, match="Got both, 1 and 2: leave one out"):
        tiny(interventions={"crop": 1, "crop_flip": 2})
    tiny(grid={"interventions.crop": [0, 2]}, interventions={"crop_flip": False})


def test_the_id_of_a_run_that_was_made_before_stays():
    [settings] = tiny(**ONE, interventions={"crop_flip": 4}).runs()
    assert settings.interventions == InterventionSettings(crop_flip=4.0)
    assert '"crop_flip":4.0' in settings.canonical
    assert tiny(**ONE, interventions={"crop": 0}).runs()[0].id == tiny(**ONE).runs()[0].id


@pytest.mark.parametrize(("key", "mirrored"), [("crop", False), ("crop_flip", True)])
def test_crop_moves_images_and_mirrors_none(key, mirrored):
    x = torch.rand(40, 1, 5, 5, generator=torch.Generator().manual_seed(0)) + 0.1
    change = BatchChanges(
        InterventionSettings(**{key: 1.0}),
        num_classes=10,
        generator=torch.Generator().manual_seed(1),
    )
    moved, _ = change(x, torch.zeros(40, dtype=torch.long))
    plain, places = 0, set()
    for before, after in zip(x, moved, strict=True):
        padded = torch.zeros(1, 7, 7)
        padded[:, 1:6, 1:6] = before
        for top in range(3):
            for left in range(3):
                if torch.equal(padded[:, top : top + 5, left : left + 5], after):
                    plain += 1
                    places.add((top, left))
    assert len(places) > 4
    assert (plain < 40) == mirrored
