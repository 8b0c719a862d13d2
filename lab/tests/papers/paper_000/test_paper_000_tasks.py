"""Paper 000: the tasks on tiny networks, against dense Hessians and rules worked out by hand."""

import dataclasses
import math

import numpy
import pytest
import torch
from torch.nn import functional as F

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.checkpoints import load_checkpoint
from spiritlevel.inputs.models import build
from spiritlevel_lab.papers.paper_000 import table_1 as trace
from spiritlevel_lab.papers.paper_000.fig_7 import copy_backbone
from spiritlevel_lab.papers.paper_000.table_7 import StoppingArguments, stops
from spiritlevel_lab.papers.paper_000.tasks_dynamics import Moment, moment_at
from spiritlevel_lab.population import control
from spiritlevel_lab.population.run_results import EpochRow
from spiritlevel_lab.population.runs.running import run_one
from spiritlevel_lab.population.settings.sections import StopSettings

pytestmark = pytest.mark.sampled(4)  # the others at night

TINY = {"images": 6, "kernels": 4, "channels": 2, "kernel_size": 2, "size": 4, "probes": 40}


def only_run(name, **changes):
    fields = {"grid": {}, "variants": {}, "presets": {}, "seeds": [3]} | changes
    [settings] = dataclasses.replace(control.find(name), **fields).runs()
    return settings


def values_of(result):
    return {row.measure: row.value for row in result.measurements if row.layer == ""}


def trace_run(**options):
    return only_run("000-table-1", task={"name": "tasks_000_trace", **TINY, **options})


# -- the trace ---------------------------------------------------------------------------------


def small_convolution(seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = trace._network(trace.TraceArguments(**TINY))
    with torch.no_grad():
        model.head.weight.normal_(generator=generator)
    x = torch.rand(6, 2, 4, 4, generator=generator, dtype=torch.float64)
    return model, x, torch.randint(0, 4, (6,), generator=generator)


def dense(model, x, y):
    """Trace and κ by their definitions, from finite differences of the gradient."""
    weight = model.head.weight

    def gradient():
        (found,) = torch.autograd.grad(F.cross_entropy(model(x), y), weight)
        return found.flatten().numpy()

    flat, step, rows = weight.data.view(-1), 1e-5, []
    for place in range(flat.numel()):
        flat[place] += step
        above = gradient()
        flat[place] -= 2 * step
        rows.append((above - gradient()) / (2 * step))
        flat[place] += step
    kernels, inputs = weight.flatten(1).shape
    h = numpy.array(rows).reshape(kernels, inputs, kernels, inputs)
    w = weight.detach().flatten(1).numpy()
    kappa = sum(
        w[s] @ w[t] * numpy.trace(h[s, :, t, :]) for s in range(kernels) for t in range(kernels)
    )
    return numpy.trace(h.reshape(kernels * inputs, -1)), kappa


@pytest.mark.parametrize("way", [trace.closed_form, trace.autograd, trace.functorch])
def test_exact_ways_find_trace_and_relative_flatness(way):
    model, x, y = small_convolution()
    assert way(model, x, y) == pytest.approx(dense(model, x, y), rel=1e-6)


def test_probes_find_them_on_average():
    model, x, y = small_convolution()
    expected = dense(model, x, y)
    probes, mixing = trace._probes(model, 1500, 0), trace._mixing(model, 1500, 0)
    assert trace.hutchinson_trace(model, x, y, probes) == pytest.approx(expected[0], rel=0.05)
    assert trace.hutchinson_kappa(model, x, y, mixing) == pytest.approx(expected[1], rel=0.05)


def test_trace_run():
    found = values_of(run_one(trace_run(weights="random")))
    again = values_of(run_one(trace_run(weights="random")))
    errors = {k: v for k, v in found.items() if "error" in k}
    assert errors == {k: again[k] for k in errors}
    assert found["task.trace_error/closed"] < 1e-12 < found["task.trace_error/hutchinson"] < 1
    assert found["task.kappa_error/functorch"] < 1e-9
    assert found["task.functorch_mib"] == 6 * 32**2 * 8 / 2**20
    assert all(found[f"task.seconds/{way}"] > 0 for way in trace.METHODS)


def test_ones_have_no_relative_flatness_and_memory_is_kept_to():
    found = values_of(run_one(trace_run(weights="ones", memory_mib=0)))
    assert found["task.kappa_error/closed"] < 1e-12
    assert math.isnan(found["task.seconds/functorch"])
    assert math.isnan(found["task.trace_error/functorch"])


def test_unknown_weights():
    with pytest.raises(SpiritlevelError, match=r"task.weights must be 'ones' or 'random'. Got 'x'"):
        run_one(trace_run(weights="x"))


# -- training ----------------------------------------------------------------------------------

NETWORK = {"name": "digits_cnn", "width": 2}
DIGITS = {"name": "digits", "samples": 60}
TRAINING = {"lr": 0.05, "momentum": 0.9, "batch_size": 20, "epochs": 8}


def trained(name, **changes):
    fields = {"model": NETWORK, "data": DIGITS, "training": TRAINING}
    return only_run(name, measure_options={"samples": 30}, **(fields | changes))


def test_dynamics_run_is_what_the_study_sees():
    settings = trained("000-table-4")
    result, again = run_one(settings), run_one(settings)
    found = values_of(result)
    assert found == values_of(again)
    seen = {row.epoch: row.value for row in result.epoch_measurements if row.layer == ""}
    for share, epoch in ((5, 1), (25, 2), (50, 4), (75, 6), (100, 8)):
        assert found[f"task.flatness/{share}"] == seen[epoch]
        assert found[f"task.train_loss/{share}"] == result.epochs[epoch - 1].train_loss
    assert found["task.flatness/first"] == seen[1]
    assert found["task.flatness/100"] == found["head.kappa"]
    assert found["task.train_loss/0"] == pytest.approx(math.log(10), rel=0.2)
    plain = run_one(dataclasses.replace(settings, task=None))  # a study without the task
    assert result.epochs == plain.epochs
    assert result.checkpoint == plain.checkpoint


def test_diverged_runs_say_so():
    result = run_one(trained("000-table-4", training=TRAINING | {"lr": 1e12}))
    assert (result.outcome, result.measurements) == ("diverged", ())


@pytest.mark.parametrize("name", ["000-table-4", "000-table-7", "000-fig-7"])
@pytest.mark.parametrize("changes", [{"measure_every": 2}, {"measures": ["head.trace"]}])
def test_flatness_must_be_followed(name, changes):
    data = DIGITS | {"validation": 0.2}
    with pytest.raises(SpiritlevelError, match=r"must measure head.kappa after every epoch"):
        run_one(trained(name, data=data, **changes))


def test_rules_on_the_loss_need_validation_data():
    with pytest.raises(SpiritlevelError, match=r"data.validation must be given"):
        run_one(trained("000-table-7"))


def moments(flatness, losses):
    return [
        Moment(EpochRow(epoch, 0.5, 0.9, 0.6, 0.5 + epoch / 100, loss, 0.8), kappa)
        for epoch, (kappa, loss) in enumerate(zip(flatness, losses, strict=True), start=1)
    ]


def test_moment_at_a_share():
    start, *seen = moments(range(11), range(11))
    assert [moment_at(share, start, seen).flatness for share in (0, 5, 25, 100)] == [0, 1, 2, 10]


def test_rules_stop_where_they_must():
    """The loss is best at epoch 4; flatness halves until epoch 6 and stays; patience is 5."""
    flatness = [100 * 0.5 ** min(epoch, 6) for epoch in range(1, 21)]
    losses = [1.0, 0.9, 0.8, 0.7, *[0.75] * 16]
    found = stops(moments(flatness, losses), StoppingArguments(patience=5))
    epochs = {rule: found[f"task.epochs/{rule}"] for rule in ("loss", "flatness", "both")}
    assert epochs == {"loss": 9, "flatness": 11, "both": 11}
    assert found["task.epochs/trend"] == 10  # the last five are equal
    assert found["task.accuracy/loss"] == pytest.approx(0.59)
    assert found["task.flatness/flatness"] == pytest.approx(100 * 0.5**6)
    assert all(found[f"task.stopped/{rule}"] == 1 for rule in epochs)


def test_rule_that_never_stops_has_the_last_epoch():
    jumps = [10.0 + 3 * (epoch % 2) for epoch in range(20)]
    losses = [1 / (1 + epoch) for epoch in range(20)]
    found = stops(moments(jumps, losses), StoppingArguments(patience=5))
    for rule in ("loss", "flatness", "both", "trend"):
        assert (found[f"task.stopped/{rule}"], found[f"task.epochs/{rule}"]) == (0, 20)


def test_stopping_run_ends_where_a_study_with_the_rule_ends():
    task = {"name": "tasks_000_stopping", "patience": 4, "tolerance": 0.3}
    settings = trained(
        "000-table-7",
        task=task,
        data=DIGITS | {"validation": 0.2},
        training=TRAINING | {"epochs": 30},
    )
    result = run_one(settings)
    found = values_of(result)
    for rule in ("loss", "flatness", "trend"):
        stop = StopSettings(rule=rule, patience=4, tolerance=0.3, measure="head.kappa")
        theirs = run_one(dataclasses.replace(settings, task=None, stop=stop))
        assert found[f"task.epochs/{rule}"] == theirs.epochs[-1].epoch
        assert found[f"task.accuracy/{rule}"] == theirs.epochs[-1].test_accuracy
        assert found[f"task.stopped/{rule}"] == (theirs.outcome == f"{rule}_rule")
    assert any(found[f"task.stopped/{rule}"] for rule in ("loss", "flatness", "trend"))


def test_backbone_is_copied_and_the_head_is_not():
    source, target = build("digits_cnn", seed=0, width=2, classes=5), build("digits_cnn", width=2)
    head = target.head.weight.clone()
    copy_backbone(source, target)
    assert torch.equal(target.conv2.weight, source.conv2.weight)
    assert torch.equal(target.head.weight, head)


def test_transfer_run(tmp_path):
    task = {"name": "tasks_000_transfer", "pretrain": "digits", "pretrain_samples": 40}
    task |= {"pretrain_epochs": 3, "low": 1e-9, "high": 0.05, "frozen": 0.05}
    settings = trained("000-fig-7", task=task)
    result = run_one(settings)
    found = values_of(result)
    assert found == values_of(run_one(settings))
    starts = {found[f"task.flatness/{way}/0"] for way in ("low", "high", "frozen")}
    assert len(starts) == 1  # the same weights and the same head
    assert found["task.flatness/low/100"] == pytest.approx(starts.pop(), rel=1e-3)
    assert found["task.train_loss/frozen"] < found["task.train_loss/low"]
    assert found["task.train_loss/frozen"] != found["task.train_loss/high"]
    for way in ("low", "high", "frozen"):
        assert found[f"task.peak_flatness/{way}"] >= found[f"task.flatness/{way}/100"]
    assert 0 <= found["task.pretrained_accuracy"] <= 1
    # The last strategy leaves the backbone as a study that trains on the first data set has it.
    alone = dataclasses.replace(
        settings,
        task=None,
        data=dataclasses.replace(settings.data, samples=40),
        training=dataclasses.replace(settings.training, epochs=3, lr=0.01),
        measure_every=None,
    )
    first, last = (_network(run.checkpoint, tmp_path) for run in (run_one(alone), result))
    assert torch.equal(first.conv1.weight, last.conv1.weight)
    assert torch.equal(first.conv2.bias, last.conv2.bias)
    assert not torch.equal(first.head.weight, last.head.weight)


def _network(checkpoint, folder):
    path = folder / "network.safetensors"
    path.write_bytes(checkpoint)
    model = build("digits_cnn", width=2)
    load_checkpoint(model, path)
    return model
