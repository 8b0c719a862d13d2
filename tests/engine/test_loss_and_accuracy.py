"""Loss and accuracy come along with a measurement, and are those of plain torch."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

import spiritlevel as sl
from spiritlevel.cli import subject
from spiritlevel.cli.app import app
from spiritlevel.pages import report as pages


class Net(nn.Sequential):
    """A class with a name of its own."""


@pytest.fixture
def problem(generator):
    net = Net(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    x = torch.randn(11, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 3, (11,), generator=generator)
    return net, x, y


def in_batches(x, y):
    return [(x[:5], y[:5]), (x[5:6], y[5:6]), (x[6:], y[6:])]


@pytest.mark.parametrize("measures", ["head.trace", "curvature.trace", "norms.weight"])
def test_loss_and_accuracy_are_those_of_torch(problem, measures):
    net, x, y = problem
    found = sl.measure(net, in_batches(x, y), measures=measures).settings["subject"]
    outputs = net(x).detach()
    assert found["model"] == "Net"
    assert found["mean_loss"] == pytest.approx(F.cross_entropy(outputs, y).item(), rel=1e-12)
    assert found["accuracy"] == pytest.approx((outputs.argmax(1) == y).double().mean().item())


def test_weights_and_ignored_targets_count_as_in_torch(problem):
    net, x, y = problem
    y[3] = -100
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]).double())
    found = sl.measure(net, in_batches(x, y), loss=loss, measures="head.trace")
    expected = loss(net(x), y).item()
    assert found.settings["subject"]["mean_loss"] == pytest.approx(expected, rel=1e-12)


def test_a_regression_has_no_accuracy(problem):
    net, x, _ = problem
    found = sl.measure(net, (x, x[:, :3]), loss="mse", measures="curvature.trace")
    told = found.settings["subject"]
    assert told["mean_loss"] == pytest.approx(F.mse_loss(net(x), x[:, :3]).item(), rel=1e-12)
    assert told["accuracy"] is None


def test_no_pass_is_made_for_it(problem):
    """The samples that the network sees are those that the report counts."""
    net, x, y = problem
    seen = 0

    def count(module, args):
        nonlocal seen
        seen += len(args[0])

    sl.measure(net, (x, y), measures="head.trace")  # what is found out once
    handle = net[0].register_forward_pre_hook(count)
    report = sl.measure(net, (x, y), measures="head.trace")
    handle.remove()
    assert seen == report.cost.forwards


def test_it_is_left_out_where_the_outputs_are_never_formed(problem, monkeypatch):
    net, x, y = problem
    monkeypatch.setattr("spiritlevel.engine.workspace.STREAM_FROM", 2)
    report = sl.measure(net, (x, y), measures="head.trace")
    assert report.settings["subject"] == {"model": "Net"}
    assert "loss" not in pages.page_of(report).facts


def test_the_page_and_the_file_have_it(problem, tmp_path):
    pytest.importorskip("plotly")
    net, x, y = problem
    report = sl.measure(net, (x, y), measures="head.*")
    facts = pages.page_of(report).facts
    assert facts["model"] == "Net"
    assert {"loss", "accuracy"} <= set(facts)
    assert "checkpoint" not in facts  # Python does not say where the weights are from
    assert "On these samples: loss" in report.to_html(tmp_path / "report.html")
    again = sl.Report.from_json(report.to_json())
    assert pages.page_of(again) == pages.page_of(report)


def test_networks_compared_in_python_show_it(problem):
    net, x, y = problem
    other = Net(nn.Linear(4, 3)).double().eval()
    found = sl.compare({"one": net, "other": other}, (x, y), measures="head.trace")
    titles = {column.title for column in found.ranking_table().columns}
    assert {"loss", "accuracy"} <= titles


def test_the_command_makes_no_further_pass(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("the loss is known already")

    monkeypatch.setattr(subject, "performance", refuse)
    options = ["--data", "digits", "--samples", "20", "--measures", "head.trace", "--json", "-"]
    found = CliRunner().invoke(app, ["measure", "--model", "mlp", *options])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)["settings"]["subject"]
    assert told["model"] == "mlp"
    assert 0 <= told["accuracy"] <= 1 < told["mean_loss"]
