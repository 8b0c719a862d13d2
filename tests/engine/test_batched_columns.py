"""Several columns in one backward give what they give one by one, or go one by one."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.sweep import pulling
from zoo.functional_base import CLASSES
from zoo.functional_networks import NETWORKS

MEASURES = ["curvature.ggn_trace", "relative.kappa", "neuron.rho_sum"]


class Thrice(torch.autograd.Function):
    """Three times the input; without a rule for several columns at once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 3 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return torch.from_numpy(3 * gradient.numpy())  # no tensor of several columns has numbers


class Foreign(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = Thrice.apply(super().forward(x))
        return result


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.LeakyReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, CLASSES),
    )


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each attempt at several columns succeeded; they are tried on a CPU too."""
    seen: list[bool] = []
    together = pulling.pull_together
    monkeypatch.setattr(pulling, "DEVICES", ("cpu", "cuda"))

    def noted(*arguments: Any) -> Any:
        found = together(*arguments)
        seen.append(found is not None)
        return found

    monkeypatch.setattr(pulling, "pull_together", noted)
    return seen


def values(model: nn.Module, data: Any) -> list[float]:
    report = sl.measure(copy.deepcopy(model), data, measures=MEASURES, method="exact")
    layers = [m.value for of in report.layers.values() for m in of.values()]
    return [m.value for m in report.values()] + layers


def problem(build: Callable[[], nn.Module], *shape: int) -> tuple[nn.Module, Any]:
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = build().double().eval()
    x = torch.randn(9, *shape, generator=generator, dtype=torch.float64)
    return model, [(x, torch.randint(CLASSES, (9,), generator=generator))]


def test_a_convnet(calls: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = problem(convnet, 2, 8, 8)
    found = values(model, data)
    assert calls == [True]
    monkeypatch.setattr(pulling, "DEVICES", ())
    assert found == pytest.approx(values(model, data), rel=1e-12)
    assert calls == [True]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_functional_calls(
    name: str, calls: list[bool], monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = NETWORKS[name]().double().eval()
    x = model.batch(7, generator)
    data = [(x, torch.randint(CLASSES, (7,), generator=generator))]
    found = values(model, data)
    assert calls
    monkeypatch.setattr(pulling, "DEVICES", ())
    assert found == pytest.approx(values(model, data), rel=1e-9, abs=1e-15)


def test_what_cannot_go_at_once_goes_one_by_one(calls: list[bool]) -> None:
    model, data = problem(lambda: nn.Sequential(Foreign(4, 5), nn.ReLU(), nn.Linear(5, CLASSES)), 4)
    plain, _ = problem(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, CLASSES)), 4)
    with torch.no_grad():
        plain[0].weight *= 3  # type: ignore[index, union-attr]
        plain[0].bias *= 3  # type: ignore[index, union-attr]
    ours = sl.measure(model, data, measures="curvature.ggn_trace", layers="2", method="exact")
    theirs = sl.measure(plain, data, measures="curvature.ggn_trace", layers="2", method="exact")
    assert calls[0] is True  # the last layer alone needs nothing of the function
    assert ours["curvature.ggn_trace"].value == pytest.approx(theirs["curvature.ggn_trace"].value)
    calls.clear()
    values(model, data)
    assert calls == [False]


def test_wrong_gradients_of_several_columns_are_noticed(
    calls: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = problem(convnet, 2, 8, 8)
    expected = values(model, data)

    together = pulling.pull_together

    def wrong(*arguments: Any) -> Any:
        found = together(*arguments)
        return [None if g is None else 1.01 * g for g in found or ()]

    monkeypatch.setattr(pulling, "pull_together", wrong)
    assert values(model, data) == pytest.approx(expected, rel=1e-12)


def test_memory_bounds_the_columns(calls: list[bool]) -> None:
    model, data = problem(convnet, 2, 8, 8)
    sl.measure(model, data, measures=MEASURES, method="exact", memory=1 << 14)
    assert calls == []
