"""Networks on devices without float64 are measured on the CPU, and come back whatever happens."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.model import host


@pytest.fixture
def problem(generator):
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).eval()
    x = torch.randn(11, 4, generator=generator)
    return net, (x, torch.arange(11) % 3)


@pytest.fixture
def moves(problem, monkeypatch):
    """Have the network stand on "mps" until it is moved; this machine cannot hold it there."""
    net, made, devices = problem[0], ["mps:0"], host._devices

    def standing(model):
        return {torch.device(made[-1])} if model is net else devices(model)

    monkeypatch.setattr(host, "_devices", standing)
    monkeypatch.setattr(host, "_move", lambda model, device: made.append(str(device)))
    return made


def test_it_is_measured_on_the_cpu_and_returns(problem, moves):
    report = sl.measure(*problem, measures="head.trace")
    assert moves == ["mps:0", "cpu", "mps:0"]
    assert report.settings["measured_on"] == "the CPU, since mps has no float64"
    assert "measured on: the CPU, since mps has no float64" in str(report)


def test_calls_within_a_call_move_nothing(problem, moves):
    sl.audit(*problem, measures=["head.trace"])
    assert moves == ["mps:0", "cpu", "mps:0"]


def test_it_returns_after_an_error(problem, moves):
    net, (x, y) = problem
    with pytest.raises(sl.SpiritlevelError):
        sl.measure(net, (x, y + 7), measures="head.trace")  # classes that do not exist
    assert moves == ["mps:0", "cpu", "mps:0"]


def test_a_model_on_two_devices_is_refused(problem, monkeypatch):
    places = {torch.device("mps:0"), torch.device("cpu")}
    monkeypatch.setattr(host, "_devices", lambda model: places)
    with pytest.raises(sl.SpiritlevelError, match=r"on \['cpu', 'mps:0'\]"):
        sl.measure(*problem, measures="head.trace")


def test_other_devices_are_left_alone(problem):
    report = sl.measure(*problem, measures="head.trace")
    assert "measured_on" not in report.settings


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
def test_a_gpu_that_is_declared_to_have_no_float64_holds_none(problem, monkeypatch):
    """The whole path on a real device: same numbers, same objects, and no float64 on it."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class NoDoubles(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for each in tree_leaves(out):
                if isinstance(each, torch.Tensor) and each.is_cuda:
                    assert each.dtype != torch.float64, func
            return out

    net, data = problem
    expected = sl.measure(net, data)
    net.cuda()
    parameters = list(net.parameters())
    net(data[0].cuda()).sum().backward()
    monkeypatch.setattr(host, "NO_FLOAT64", frozenset({"cuda"}))
    with NoDoubles():
        found = sl.measure(net, data)
    for name, m in expected.items():
        assert found[name].value == pytest.approx(m.value, rel=1e-6)
    assert all(a is b for a, b in zip(net.parameters(), parameters, strict=True))
    assert {p.device.type for p in parameters} == {p.grad.device.type for p in parameters}
    assert {p.device.type for p in parameters} == {"cuda"}
