"""The noise itself, as matrices, on Hessians that are known."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel.engine.recorded_runs import RecordedRuns
from spiritlevel.engine.sample_noise import SampleNoise
from spiritlevel.engine.workspace import Workspace
from spiritlevel.model.batches import BatchLocation
from spiritlevel.model.layers.output_changes import (
    RankOneNoise,
    SignedNoise,
    _in_windows,
    direction_at_output,
)
from spiritlevel.model.surface import Surface

OUT, IN = 4, 6


@pytest.fixture
def surface(generator):
    model = nn.Sequential(nn.Linear(IN, OUT), nn.Tanh(), nn.Linear(OUT, 3)).double().eval()
    x = torch.randn(5, IN, generator=generator, dtype=torch.float64)
    return Surface(model, [(x, torch.arange(5) % 3)])


@pytest.fixture
def hessian(generator):
    """Any symmetric matrix will do; this one has few large eigenvalues, as real ones have."""
    root = torch.randn(OUT * IN, 3, generator=generator, dtype=torch.float64)
    return root @ root.mT


def matrices(noise, weight=None):
    """ξ of every sample, shape (N, OUT · IN)."""
    assert isinstance(noise, SignedNoise)
    made = noise.first[:, :, None] * noise.shared() * noise.second[:, None, :]
    return (made if noise.weight is None else noise.weight @ made).flatten(1)


def values(surface, kind, hessian, samples, streams):
    noise = SampleNoise(surface, kind, ["0.weight"], seed=0)
    drawn = [matrices(drawn_of(noise, samples, stream)["0.weight"]) for stream in streams]
    return torch.stack([torch.einsum("ni,ij,nj->n", xi, hessian, xi) for xi in drawn])


def drawn_of(noise, samples, draw):
    """The noise of a draw with signs V of its own."""
    return noise.of(torch.arange(samples), torch.full((samples,), draw), draw)


def test_it_varies_like_a_full_matrix_of_signs(surface, hessian):
    """Not like r ⊗ q, whose values vary as the partial traces do."""
    found = values(surface, "trace", hessian, 16, range(500))
    expected = 2 * (hessian.square().sum() - hessian.diagonal().square().sum())
    # 8,000 values whose fourth moment is below 15 times the squared variance: 5 % is 3 deviations
    assert found.var() == pytest.approx(float(expected), rel=0.15)
    spread = float((expected / found.numel()).sqrt())
    assert abs(float(found.mean() - hessian.trace())) <= 4 * spread


@pytest.mark.parametrize("kind", ["trace", "kappa"])
def test_samples_that_share_signs_have_no_correlation(surface, hessian, kind):
    """Over the samples of one draw the mean is that over all draws: the signs in V cancel."""
    found = values(surface, kind, hessian, 20_000, [3])[0]
    weight = surface.parameters["0.weight"].detach()
    covariance = torch.eye(OUT, dtype=torch.float64) if kind == "trace" else weight @ weight.mT
    blocks = hessian.reshape(OUT, IN, OUT, IN)
    expected = torch.einsum("ik,ijkj->", covariance, blocks)
    assert abs(found.mean() - expected) <= 4 * found.std() / len(found) ** 0.5


def test_every_sample_and_draw_has_signs_of_its_own(surface):
    noise = SampleNoise(surface, "trace", ["0.weight", "2.weight"], seed=0)
    first, again = (drawn_of(noise, 3, draw) for draw in (0, 1))
    one, other = first["0.weight"], again["0.weight"]
    assert not torch.equal(one.first[0], one.first[1])
    assert not torch.equal(one.second[0], one.second[1])
    assert not torch.equal(one.shared(), other.shared())
    assert torch.equal(one.shared(), one.shared())
    assert not torch.equal(one.shared()[:3], first["2.weight"].shared()[:, :IN])


def test_draws_beside_each_other_have_signs_of_their_own(surface, hessian):
    """Several draws of one sample share V alone, and their values have no correlation."""
    noise = SampleNoise(surface, "trace", ["0.weight"], seed=0)
    draws = torch.arange(20_000)
    drawn = noise.of(torch.zeros_like(draws), draws, 5)["0.weight"]
    found = torch.einsum("ni,ij,nj->n", (xi := matrices(drawn)), hessian, xi)
    assert abs(found.mean() - hessian.trace()) <= 4 * found.std() / len(found) ** 0.5
    alone = noise.of(torch.zeros(1, dtype=torch.int64), draws[7:8], 5)["0.weight"]
    assert torch.equal(matrices(alone)[0], xi[7])  # whatever stands beside it


def test_convolutions_whose_windows_overlap_have_noise_of_rank_one(generator):
    """Several weights of one pair of channels would share their signs, and samples correlate."""
    model = nn.Sequential(nn.Conv2d(2, 3, 2, stride=2), nn.Conv2d(3, 3, 2), nn.Flatten()).eval()
    x = torch.randn(4, 2, 4, 4, generator=generator)
    surface = Surface(model, [(x, torch.arange(4) % 3)])
    noise = SampleNoise(surface, "trace", ["0.weight", "1.weight"], seed=0)
    noise = drawn_of(noise, 4, 0)
    assert isinstance(noise["0.weight"], SignedNoise)
    assert isinstance(noise["1.weight"], RankOneNoise)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (2, 2), (2, 3), ((1, 3), (2, 3))])
def test_of_separate_windows_the_output_is_that_of_the_changed_kernel(kernel, stride, generator):
    """Beside a convolution of each sample with its own kernel, changed by ξ as a matrix."""
    model = nn.Sequential(nn.Conv2d(2, 3, kernel, stride, padding=1), nn.Tanh(), nn.Flatten())
    model.append(nn.LazyLinear(3)).double()
    x = torch.randn(4, 2, 7, 8, generator=generator, dtype=torch.float64)
    model(x)
    surface = Surface(model.eval(), [(x, torch.arange(4) % 3)])
    noise = drawn_of(SampleNoise(surface, "trace", ["0.weight"], seed=0), 4, 0)["0.weight"]
    shape = surface.parameters["0.weight"].shape
    made = noise.first[:, :, None] * noise.shared().flatten(1) * noise.second[:, None, :]
    expected = [
        F.conv2d(x[i : i + 1], made[i].reshape(shape), stride=stride, padding=1) for i in range(4)
    ]
    with torch.no_grad():
        module = model[0]
        signed = _in_windows(noise.second, F.pad(x, (1, 1, 1, 1)), module)
        found = F.conv2d(F.pad(x, (1, 1, 1, 1)) * signed, noise.shared(), stride=stride)
    found = found * noise.first[:, :, None, None]
    torch.testing.assert_close(found, torch.cat(expected))


class Tied(nn.Module):
    """A table that is also the matrix of the outputs."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3)

    def forward(self, tokens):
        return F.linear(torch.tanh(self.table(tokens)).mean(dim=1), self.table.weight)


def test_kappa_of_a_table_has_columns_as_those_of_the_table(generator):
    """Noise in the shape of the table, not one vector for all tokens of a sample."""
    model = Tied().double()
    tokens = torch.randint(7, (5, 4), generator=generator)
    surface = Surface(model.eval(), [(tokens, torch.arange(5) % 7)])
    noise = SampleNoise(surface, "kappa", ["table.weight"], seed=0)
    assert not noise.of_rank_one
    drawn = drawn_of(noise, 20_000, 3)["table.weight"]
    xi = (drawn.first[:, :, None] * drawn.shared() * drawn.second[:, None, :]) @ drawn.factor.mT
    root = torch.randn(21, 3, generator=generator, dtype=torch.float64)
    found = (xi.flatten(1) @ root).square().sum(dim=1)
    weight = model.table.weight.detach()
    blocks = (root @ root.mT).reshape(7, 3, 7, 3)
    expected = torch.einsum("si,sj,titj->", weight, weight, blocks)
    assert abs(found.mean() - expected) <= 4 * found.std() / len(found) ** 0.5


def test_noise_of_a_tied_table_reaches_the_outputs_of_both_uses(generator):
    """Beside a lookup and a product of each sample with its own table, changed by ξ."""
    model = Tied().double()
    tokens = torch.randint(7, (5, 4), generator=generator)
    workspace = Workspace(Surface(model.eval(), [(tokens, torch.arange(5) % 7)]))
    noise = SampleNoise(workspace.surface, "kappa", ["table.weight"], seed=0)
    drawn = drawn_of(noise, 5, 0)["table.weight"]
    xi = (drawn.first[:, :, None] * drawn.shared() * drawn.second[:, None, :]) @ drawn.factor.mT
    runs = RecordedRuns(workspace, ["table.weight"])
    with runs.run((tokens, torch.arange(5) % 7), BatchLocation(0)) as run:
        places = [(use, layout) for use, layout in run.places if use.names]
        found = [direction_at_output(use, layout, "weight", drawn) for use, layout in places]
        inner = torch.tanh(model.table(tokens)).mean(dim=1)
    looked_up = torch.stack([table[of] for table, of in zip(xi, tokens, strict=True)])
    expected = [looked_up, torch.einsum("nvd,nd->nv", xi, inner)]
    assert len(found) == 2
    for value, truth in zip(sorted(found, key=lambda v: -v.dim()), expected, strict=True):
        torch.testing.assert_close(value.detach(), truth.detach())
