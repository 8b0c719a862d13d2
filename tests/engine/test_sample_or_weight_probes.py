"""What `auto` takes in a large smooth network: a sweep or none, noise of samples or of weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine import row_probing


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(192, 160), nn.LayerNorm(160), nn.GELU(), nn.Linear(160, 4)
        ).eval()


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 192, generator=generator)
    return x, torch.randint(4, (32,), generator=generator)


def after_training(model: nn.Module, data: tuple[Tensor, Tensor]) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture
def trained(data: tuple[Tensor, Tensor]) -> nn.Module:
    return after_training(network(), data)


def trace(
    model: nn.Module, data: tuple[Tensor, Tensor], **options: object
) -> sl.results.Measurement:
    report = sl.measure(model, data, measures="curvature.trace", **options)  # type: ignore[arg-type]
    return report["curvature.trace"]


def convolutional() -> nn.Module:
    """Noise of its convolutions has rank one, and varies more than that of linear maps."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            *(nn.Unflatten(1, (3, 8, 8)), nn.Conv2d(3, 48, 3, padding=1), nn.GroupNorm(4, 48)),
            *(nn.GELU(), nn.Conv2d(48, 48, 3, padding=1), nn.GroupNorm(4, 48), nn.GELU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 4)),
        )


def test_weight_probes_that_vary_less_are_taken(data: tuple[Tensor, Tensor]) -> None:
    model = after_training(convolutional(), data)
    found = trace(model, data, rtol=0.02)
    by_samples = trace(model, data, rtol=0.02, method="sample_probes")
    assert "weight probes" in found.text
    assert "sample probes vary too much" in found.text
    assert found.stderr is not None
    assert by_samples.stderr is not None
    assert found.stderr < by_samples.stderr
    assert found.cost.products <= by_samples.cost.products
    assert abs(found.value - by_samples.value) <= 4 * by_samples.stderr


def test_they_are_not_looked_at_where_few_sample_probes_suffice(
    trained: nn.Module, data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("weight probes were drawn")

    monkeypatch.setattr(row_probing, "shared_probes", refuse)
    found = trace(trained, data, rtol=0.1)
    assert "sample probes" in found.text


def test_nothing_is_swept_where_nearly_all_weights_bend(data: tuple[Tensor, Tensor]) -> None:
    bent = after_training(nn.Sequential(network(), nn.LayerNorm(4)), data)
    found = trace(bent, data, rtol=0.9)
    assert "sample probes of the Hessian: the outputs bend in nearly all weights" in found.text
    assert "column" not in found.text
    more = trace(bent, data, rtol=0.1)  # now the residual is worth a sweep
    assert "the GGN exactly from 3 columns" in more.text


def test_what_is_exact_for_a_large_part_is_swept(data: tuple[Tensor, Tensor]) -> None:
    """The last layer holds most of the weights, and the outputs are linear in it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(192, 120), nn.GELU(), nn.Linear(120, 30), nn.GELU(), nn.Linear(30, 4000)
        ).eval()
    report = sl.measure(model, data, measures="curvature.trace", rtol=0.3, max_passes=8)
    assert "not certified for '0.weight'" in report["curvature.trace"].text


class Tokens(nn.Module):
    """A small transformer that bends the outputs in all of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.0)
        self.head = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 50), nn.LayerNorm(50))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.table(x)))


def test_a_few_more_probes_of_the_hessian_come_before_a_sweep() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Tokens()
        x = torch.randint(50, (16, 25)).sort(dim=1).values
    inputs, targets = x[:, :-1], x[:, 1:]
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    found = trace(model.eval(), (inputs, targets), rtol=0.07)
    count, _, text = found.text.partition(" sample probes of the Hessian")
    assert 2 < int(count) <= row_probing.A_FEW_SAMPLE_PROBES
    assert text.startswith(": the outputs bend in nearly all weights")
    many = trace(model, (inputs, targets), method="hutchinson", max_passes=8)
    assert found.stderr is not None
    assert many.stderr is not None
    assert abs(found.value - many.value) <= 4 * (found.stderr**2 + many.stderr**2) ** 0.5
