"""Scaled weights keep every decision; a trained run with the penalty gives what it promises."""

import dataclasses

import pytest
import torch
from torch import nn

from spiritlevel.inputs.models import build
from spiritlevel_lab.papers.paper_001.fig_1 import scaled_weights, variants
from spiritlevel_lab.population import control
from spiritlevel_lab.population.runs.running import run_one
from spiritlevel_lab.population.settings.sections import TaskSettings

IMAGES = torch.rand(6, 1, 16, 16, generator=torch.Generator().manual_seed(0)).double()


def network(name):
    """With running statistics and biases that are not those of a fresh network."""
    model = build(name, seed=0, channels=1, width=2).double()
    drawn = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.running_mean, module.running_var, module.weight, module.bias):
                tensor.data.uniform_(0.2, 1.2, generator=drawn)
        elif getattr(module, "bias", None) is not None:
            module.bias.data.uniform_(-0.1, 0.1, generator=drawn)
    return model.eval()


@pytest.mark.parametrize(("name", "power"), [("vgg_small", 5), ("resnet18", 2)])
def test_all_weights_scaled_and_outputs_in_proportion(name, power):
    model = network(name)
    scaled = scaled_weights(model, 10.0)
    before, after = model(IMAGES), scaled(IMAGES)
    assert torch.allclose(after, 10.0**power * before, rtol=1e-9)
    for old, new in zip(model.modules(), scaled.modules(), strict=True):
        if isinstance(old, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
            assert torch.allclose(new.weight, 10 * old.weight)
    assert torch.equal(before, model(IMAGES))  # the network given is not touched


def test_two_layers_against_each_other_leave_the_function():
    model = network("vgg_small")
    found = variants(model, 10.0)
    assert list(found) == ["plain", "all", "pair"]
    assert torch.allclose(found["pair"](IMAGES), model(IMAGES), rtol=1e-9)
    assert torch.allclose(found["pair"].conv1.weight, 10 * model.conv1.weight)
    assert list(variants(network("resnet18"), 10.0)) == ["plain", "all"]


def small(name, **changes):
    study = control.find(name)
    fields = {"grid": {}, "presets": {}, "seeds": 1} | changes
    [settings] = dataclasses.replace(study, **fields).runs()
    return settings


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Two classes of 16×16 images, dark and bright."""
    numpy = pytest.importorskip("numpy")
    random = numpy.random.default_rng(0)
    y = numpy.arange(40) % 2
    x = (random.random((40, 1, 16, 16)) * 0.5 + 0.5 * y[:, None, None, None]).astype("float32")
    path = tmp_path_factory.mktemp("images") / "images.npz"
    numpy.savez(path, x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    return str(path)


def test_scaling_run(images):
    settings = small(
        "001-fig-1",
        model={"name": "vgg_small", "channels": 1, "width": 2, "classes": 2},
        data={"name": images},
        training={"epochs": 2, "lr": 0.05, "batch_size": 8},
        measures=["norms.weight", "head.trace"],
        measure_options={"samples": 20},
    )
    result = run_one(settings)
    found = {row.measure: row.value for row in result.measurements}
    weights = [found[f"norms.weight/{variant}"] for variant in ("plain", "pair", "all")]
    assert weights[0] < weights[1] < weights[2]
    assert found["head.trace/pair"] == pytest.approx(found["head.trace/plain"], rel=1e-3)
    assert found["head.trace/all"] != pytest.approx(found["head.trace/plain"], rel=0.5)
    for part in ("train", "test"):
        values = {found[f"task.{part}_accuracy/{v}"] for v in ("plain", "all", "pair")}
        assert len(values) == 1
    assert (result.outcome, len(result.epochs)) == ("epochs", 2)
    assert run_one(settings).measurements == result.measurements


def penalty(weight, data):
    return small(
        "004-table",
        task={"name": "tasks_flatness_penalty", "weight": weight},
        model={"name": "mlp", "inputs": 256, "hidden": [4], "outputs": 2},
        data={"name": data},
        training={"epochs": 3, "lr": 0.05, "momentum": 0.9, "batch_size": 10},
    )


def test_penalty_run(images):
    plain, strong = (run_one(penalty(weight, images)) for weight in (0.0, 50.0))
    values = [{row.measure: row.value for row in run.measurements} for run in (plain, strong)]
    assert values[1]["task.last_flatness"] < 0.5 * values[0]["task.last_flatness"]
    for run, found in zip((plain, strong), values, strict=True):
        assert found["task.best_accuracy"] == max(row.test_accuracy for row in run.epochs)
        assert found["task.training_seconds"] > 0
    again = run_one(penalty(50.0, images))
    assert again.epochs == strong.epochs
    assert again.checkpoint == strong.checkpoint


def test_without_a_penalty_it_is_plain_training(images):
    """Weight 0 and no clipping: SGD as torch has it, batches in the study's order."""
    settings = penalty(0.0, images)
    task = TaskSettings(settings.task.name, {**settings.task.arguments, "clip": 1e9})
    settings = dataclasses.replace(settings, task=task)
    theirs = dataclasses.replace(settings, task=None, measures=("softmax.gini",))
    expected = [row.train_loss for row in run_one(theirs).epochs]
    assert [row.train_loss for row in run_one(settings).epochs] == pytest.approx(expected, rel=1e-4)
