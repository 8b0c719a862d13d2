"""Paper 001: what the tasks train is what a plain study trains, looked at along the way."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from spiritlevel.errors import SpiritlevelError
from spiritlevel.papers.judging.rows import at_points
from spiritlevel.papers.paper_001.normalized_networks import vgg_small
from spiritlevel.papers.paper_001.tasks_points import as_tokens, signal_norm
from spiritlevel.study import Study, control
from spiritlevel.study.models import build
from spiritlevel.study.runs.run_data import load_data
from spiritlevel.study.runs.running import run_one

pytestmark = pytest.mark.sampled(2)  # the others at night

POINTS, FINETUNING = "tasks_001_points", "tasks_001_noise_finetuning"


def settings(task=None, **changes):
    """A perceptron on 60 digits."""
    fields = {
        "model": {"name": "mlp", "hidden": [6]},
        "data": {"name": "digits", "samples": 60},
        "training": {"lr": 0.1, "momentum": 0.9, "batch_size": 20, "epochs": 4},
        "measures": ["head.trace", "activity.frequency"],
        "measure_options": {"samples": 40},
    }
    [run] = Study("small", task=task, **(fields | changes)).runs()
    return run


def values(result):
    return {row.measure: row.value for row in result.measurements if row.layer == ""}


def test_looking_along_the_way_does_not_change_training():
    looked = run_one(settings({"name": POINTS, "points": 4}))
    plain = run_one(settings())
    assert looked.checkpoint == plain.checkpoint
    found = values(looked)
    assert at_points(found, "task.step") == [3, 6, 9, 12]
    assert at_points(found, "task.test_accuracy") == [e.test_accuracy for e in plain.epochs]
    for name, value in values(plain).items():
        assert found[f"{name}/4"] == value
        assert f"{name}/5" not in found
    [last] = looked.epochs
    assert last == plain.epochs[-1]
    assert run_one(settings({"name": POINTS, "points": 4})).measurements == looked.measurements


def test_running_statistics_move_while_it_trains():
    """Looking leaves a network in eval mode, in which BatchNorm would stand still."""
    fields = {
        "model": {"name": "resnet18", "channels": 1, "width": 1},
        "data": {"name": "digits", "samples": 20},
        "training": {"batch_size": 10, "epochs": 2},
        "measures": ["softmax.gini"],
    }
    looked = run_one(settings({"name": POINTS, "points": 4}, **fields))
    assert looked.checkpoint == run_one(settings(**fields)).checkpoint


def test_points_may_lie_within_an_epoch():
    result = run_one(
        settings({"name": POINTS, "points": 3}, training={"epochs": 1, "batch_size": 7, "lr": 0.1})
    )
    assert at_points(values(result), "task.step") == [3, 6, 9]
    with pytest.raises(SpiritlevelError, match=r"task\.points must be from 1 to the 9 steps"):
        run_one(settings({"name": POINTS, "points": 10}, training={"epochs": 1, "batch_size": 7}))


def test_signal_is_the_gradient_in_the_outputs():
    run = settings()
    data = load_data(run)
    model = build("mlp", seed=0, hidden=[6])
    outputs = model(data.x[:40]).detach().requires_grad_()
    F.cross_entropy(outputs, data.y[:40], reduction="sum").backward()
    assert signal_norm(model, data, run) == pytest.approx(
        float(outputs.grad.norm(dim=1).mean()), rel=1e-5
    )


def test_images_as_texts():
    images = torch.tensor([[[[0.0, 0.5], [1.0, 0.26]]]])
    assert as_tokens(images, 4).tolist() == [[1, 3, 5, 2]]
    with pytest.raises(SpiritlevelError, match="no images"):
        as_tokens(torch.zeros(2, 3, dtype=torch.int64), 4)


def test_text_transformer_reads_digits():
    study = control.find("001-fig-8").with_preset("quick")
    small = dataclasses.replace(
        study,
        model={**study.model, "width": 8, "depth": 1},
        data={"name": "digits", "samples": 40},
        task={"name": POINTS, "points": 2, "levels": 16},
        seeds=1,
        measure_options={"samples": 10, "max_passes": 2},
    )
    [run] = small.runs()
    found = values(run_one(run))
    assert 0 < found["activity.frequency/2"] < 1
    assert found["curvature.trace/1"] != found["curvature.trace/2"]


def test_noise_finetuning():
    task = {"name": FINETUNING, "standard": 0.5, "fitted": 0.8, "weak": 0.0, "strong": 2.0}
    training = {"lr": 0.1, "momentum": 0.9, "batch_size": 20, "epochs": 40}
    result = run_one(settings(task, training=training))
    found = values(result)
    stopped = run_one(settings(training=training, stop={"train_accuracy": 0.5}))
    for name, value in values(stopped).items():
        assert found[f"{name}/standard"] == value
    assert found["task.epochs/standard"] == len(stopped.epochs)
    last = result.epochs[-1]
    assert last.train_accuracy == found["task.train_accuracy/fitted"] >= 0.8
    assert [row.epoch for row in result.epochs] == list(range(1, len(result.epochs) + 1))
    # No noise is one epoch more; much noise is something else.
    assert found["head.trace/weak"] != found["head.trace/fitted"]
    assert found["head.trace/strong"] != pytest.approx(found["head.trace/weak"], rel=0.02)
    assert run_one(settings(task, training=training)).measurements == result.measurements


def test_activations_are_normalized_sample_by_sample():
    model = vgg_small(1, width=2)
    seen = []
    for layer in model:
        if isinstance(layer, nn.ReLU):
            layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    images = torch.rand(5, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    images[1] *= 50  # another size of one sample changes no other
    model(images)
    assert len(seen) == 4
    for activations in seen:
        flat = activations.flatten(1)
        assert torch.allclose(flat.mean(dim=1), torch.zeros(5), atol=1e-5)
        assert torch.allclose(flat.var(dim=1, correction=0), torch.ones(5), atol=1e-4)
    alone = model(images[:1])
    assert torch.allclose(alone, model(images)[:1], atol=1e-5)
    sizes = [tuple(p.shape) for p in model.parameters()]
    assert sizes == [tuple(p.shape) for p in build("vgg_small", channels=1, width=2).parameters()]
