"""Normalized inputs, biases at zero and RMSprop, each against plain torch."""

import pytest
import torch
from safetensors.torch import load
from torch.nn import functional as F

from spiritlevel.errors import SpiritlevelError
from spiritlevel.study.models import build
from spiritlevel.study.runs.networks import build_model
from spiritlevel.study.runs.run_data import load_data
from spiritlevel.study.runs.running import run_one
from spiritlevel.study.runs.stacked import refusal_of
from study.test_training import assert_weights, by_hand, only
from study.test_vmap import SMALL, assert_same, training
from study.tiny_study import tiny

pytestmark = pytest.mark.sampled(2)  # the others at night


def data_of(**data):
    [run] = tiny(grid={}, seeds=1, data={"name": "digits", "samples": 60} | data).runs()
    return load_data(run)


def test_channels_have_the_mean_and_deviation_of_the_training_data():
    numpy = pytest.importorskip("numpy")
    plain, found = data_of(validation=10), data_of(validation=10, normalize=True)
    x = plain.x.double().numpy()
    mean, spread = numpy.mean(x), numpy.std(x)  # one channel
    pairs = [(plain.x, found.x), (plain.test_x, found.test_x)]
    for before, after in [*pairs, (plain.validation[0], found.validation[0])]:
        wanted = torch.from_numpy((before.double().numpy() - mean) / spread)
        torch.testing.assert_close(after.double(), wanted, rtol=1e-6, atol=1e-6)
    assert abs(float(found.x.mean())) < 1e-6
    assert torch.equal(plain.y, found.y)


def test_each_channel_has_its_own_and_a_constant_one_is_only_moved(tmp_path):
    numpy = pytest.importorskip("numpy")
    spreads, means = (numpy.array(each).reshape(3, 1, 1) for each in ([1, 5, 0], [2, -1, 7]))
    x = numpy.random.default_rng(0).normal(size=(20, 3, 4, 4)) * spreads + means
    x = x.astype("float32")
    y = numpy.arange(20) % 2
    path = tmp_path / "mine.npz"
    numpy.savez(path, x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    found = data_of(name=str(path), samples=None, normalize=True)
    spread, mean = torch.std_mean(found.x, dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(mean, torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(spread, torch.tensor([1.0, 1.0, 0.0]))


@pytest.mark.parametrize(
    "interventions", [{"auto_augment": "cifar10"}, {"leakage": "control"}], ids=str
)
def test_changes_of_batches_that_need_plain_images_are_refused(interventions):
    with pytest.raises(SpiritlevelError, match="needs images in"):
        tiny(data={"name": "digits", "normalize": True}, interventions=interventions)


def test_ids_do_not_hold_what_is_not_used():
    [run] = tiny(grid={}, seeds=1, model={"name": "mlp", "init_bias": "keep"}).runs()
    assert run.to_dict()["model"] == {"name": "mlp"}
    [run] = tiny(grid={}, seeds=1, data={"name": "digits", "normalize": False}).runs()
    assert run.to_dict()["data"] == {"name": "digits"}


@pytest.mark.parametrize(
    "scheme", ["xavier_normal", "kaiming_uniform", "uniform", "normal", "narrow_normal"]
)
def test_biases_start_at_zero_beside_every_scheme(scheme):
    models = []
    for bias in ("zero", "keep"):
        model = {"name": "lenet5", "init": scheme, "init_bias": bias}
        [run] = tiny(grid={}, seeds=1, model=model).runs()
        models.append(build_model(run, "cpu"))
    zero, keep = models
    own = build("lenet5", seed=0)
    for (name, a), (_, b), (_, c) in zip(
        zero.named_parameters(), keep.named_parameters(), own.named_parameters(), strict=True
    ):
        if name.endswith("bias"):
            assert not a.any()
            assert torch.equal(b, c)
        else:
            assert torch.equal(a, b)
            assert not torch.equal(a, c)


def test_scales_and_shifts_of_norm_layers_keep_their_start():
    [run] = tiny(
        grid={}, seeds=1, model={"name": "resnet18", "width": 4, "init_bias": "zero"}
    ).runs()
    model = build_model(run, "cpu")
    assert all(
        (m.weight == 1).all() for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)
    )


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_rmsprop_is_the_one_of_torch(decay):
    run = only(optimizer="rmsprop", lr=0.01, weight_decay=decay)
    model = build("mlp", seed=0, hidden=4)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, weight_decay=decay)

    def step(x, y, _):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    by_hand(run, model, step)
    assert_weights(run_one(run), model)


def test_rmsprop_together_is_rmsprop_alone(tmp_path):
    grid = {"lr": [0.01, 0.001], "weight_decay": [0.0, 0.1]}
    study = tiny(model=SMALL, training=training(optimizer="rmsprop"), grid=grid, seeds=2)
    assert_same(study, tmp_path, rtol=1e-9)


def test_normalized_networks_with_zero_biases_train_together_as_alone(tmp_path):
    study = tiny(
        model=SMALL | {"init": "xavier_normal", "init_bias": "zero"},
        data={"name": "digits", "samples": 60, "normalize": True},
        training=training(),
        seeds=2,
    )
    assert_same(study, tmp_path, rtol=1e-9)


def test_steps_in_bfloat16_are_those_of_torch():
    run = only(autocast="bfloat16", lr=0.1)
    model = build("mlp", seed=0, hidden=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y, _):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(x)
        F.cross_entropy(outputs.float(), y).backward()
        optimizer.step()

    by_hand(run, model, step)
    result = run_one(run)
    assert_weights(result, model)
    full, rounded = load(run_one(only(lr=0.1)).checkpoint), load(result.checkpoint)
    for name, value in full.items():
        assert value.dtype == rounded[name].dtype == torch.float32
        assert 0 < float((value - rounded[name]).norm() / value.norm()) < 0.05


def test_bfloat16_trains_alone_and_without_methods():
    assert "training.autocast" in refusal_of(only(autocast="bfloat16"))
    assert "autocast" not in only().to_dict()["training"]
    with pytest.raises(SpiritlevelError, match="goes with plain steps"):
        only(autocast="bfloat16", method="sam")
