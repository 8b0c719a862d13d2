"""Faster arithmetic: close to full precision, never called exact, and its error is said."""

import copy

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.ground.errors import SpiritlevelError

MEASURES = ["curvature.trace", "relative.kappa", "neuron.rho_sum"]

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="TF32 needs an NVIDIA GPU")


def convnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))


def tied() -> nn.Module:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.last = nn.Linear(192, 192), nn.Linear(192, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x.flatten(1)
            return self.last(torch.relu(self.inner(x) + self.inner(2 * x.flip(1))))

    return Tied()


def functional() -> nn.Module:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Parameter(torch.randn(16, 192) / 14)
            self.last = nn.Parameter(torch.randn(4, 16) / 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x.flatten(1) @ self.first.T) @ self.last.T

    return Functional()


@pytest.fixture(params=[convnet, tied, functional])
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    network: nn.Module = request.param().eval()
    return network


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, 8, 8, generator=generator)
    return x, torch.randint(4, (40,), generator=generator)


def test_bfloat16_is_close_and_says_how_close(
    model: nn.Module, data: tuple[Tensor, Tensor]
) -> None:
    truth = sl.measure(
        copy.deepcopy(model).double(), (data[0].double(), data[1]), measures=MEASURES
    )
    report = sl.measure(model, data, measures=MEASURES, arithmetic="bf16")
    for name in MEASURES:
        m = report[name]
        # eight bits in every step of a forward and a backward
        assert m.value == pytest.approx(truth[name].value, rel=0.03)
        assert m.value != pytest.approx(truth[name].value, rel=1e-6), "nothing was rounded"
        assert not m.exact
        assert truth[name].exact
        assert 1e-6 < m.settings["arithmetic_error"] < 0.03
        assert m.stderr is not None
        assert m.interval is not None
        assert m.stderr == pytest.approx(m.settings["arithmetic_error"] * m.value)
        assert "in bf16, which changes it by" in m.text
    assert all(not m.exact for of in report.layers.values() for m in of.values())


def test_full_precision_is_the_default(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    plain, full = (
        sl.measure(model, data, measures=MEASURES, **asked)  # type: ignore[arg-type]
        for asked in ({}, {"arithmetic": "full"})
    )
    assert [m.value for m in plain.values()] == [m.value for m in full.values()]
    assert all(m.exact for m in plain.values())


def test_eigenvalues_are_computed_in_full_precision(data: tuple[Tensor, Tensor]) -> None:
    torch.manual_seed(0)
    model = convnet().eval()
    full, fast = (
        sl.measure(model, data, measures="curvature.lambda_max", arithmetic=kind)  # type: ignore[arg-type]
        for kind in ("full", "bf16")
    )
    assert full["curvature.lambda_max"].value == fast["curvature.lambda_max"].value
    assert "arithmetic_error" not in fast["curvature.lambda_max"].settings


def test_tf32_is_off_during_a_measurement_whatever_the_user_has_set(
    data: tuple[Tensor, Tensor],
) -> None:
    seen = []

    class Watching(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))
            return super().forward(x.flatten(1))

    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
        sl.measure(Watching(192, 4).eval(), data, measures="curvature.trace")
        assert set(seen) == {(False, False)}
        assert torch.backends.cudnn.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@needs_gpu
def test_tf32_is_close_on_a_gpu(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    model, data = model.cuda(), (data[0].cuda(), data[1].cuda())
    truth = sl.measure(
        copy.deepcopy(model).double(), (data[0].double(), data[1]), measures=MEASURES
    )
    report = sl.measure(model, data, measures=MEASURES, arithmetic="tf32")
    for name in MEASURES:
        # ten bits in every product
        assert report[name].value == pytest.approx(truth[name].value, rel=3e-3)
        assert not report[name].exact


@pytest.mark.parametrize("arithmetic", ["tf32", "half"])
def test_what_does_not_exist_is_refused(arithmetic: str, data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(SpiritlevelError, match="The 'arithmetic' argument"):
        sl.measure(convnet().eval(), data, arithmetic=arithmetic)  # type: ignore[arg-type]
