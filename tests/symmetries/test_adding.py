"""What can be added to the parameters of networks that people build, counted by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.symmetries import FoundMoves, completeness, find_moves
from zoo import strangers

Shape = tuple[int, ...]


class Attention(nn.Module):
    """Two heads of width 2, queries, keys and values in one layer, with biases."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.head = nn.Linear(4, 12), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 2)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.head(torch.tanh(self.out(mixed)).mean(1))


class Tied(nn.Module):
    """Seven tokens at five positions; the embedding is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(7, 4), nn.Embedding(5, 4)
        self.layer, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens((3 * x[..., 0]).long().abs() % 7) + self.places.weight
        return self.norm(torch.tanh(self.layer(h))).mean(1) @ self.tokens.weight.T


class Placed(nn.Module):
    """Positions, a parameter of the model, are added to a layer with a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(3, 4), nn.Parameter(torch.randn(1, 5, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(x) + self.places).mean(1))


class Experts(nn.Module):
    """Three experts of five units in one parameter each, weighed by a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(4, 3)
        self.up, self.down = (nn.Parameter(torch.randn(3, *s)) for s in ((4, 5), (5, 3)))

    def forward(self, x: Tensor) -> Tensor:
        units = torch.einsum("nd,edh->neh", x, self.up).relu()
        return torch.einsum("ne,neh,eho->no", self.gate(x).softmax(-1), units, self.down)


class Stream(nn.Module):
    """A residual stream with a norm before every reader."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 4)
        self.first, self.last, self.head = norm(4), norm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(self.last(h + self.down(F.gelu(self.up(self.first(h))))))


HEAD = {(4,): 1, (): 1}  # one vector to all rows, one number to all biases
# The network, a sample's shape, the vectors by their shape that a softmax over the outputs takes
# away, those that something else does, and the directions that no move covers.
CASES: dict[str, tuple[Callable[[], nn.Module], Shape, dict[Shape, int], dict[Shape, int], int]] = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)),
        *((4,), {(5,): 1, (): 1}, {}, 0),
    ),
    "batchnorm": (
        lambda: nn.Sequential(
            nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3, bias=False)
        ),
        *((4,), {(5,): 1}, {(): 5}, 0),
    ),
    # four biases of the keys, four of the values against those behind them
    "attention": (Attention, (5, 4), HEAD, {(): 8}, 0),
    # all tokens against all positions; rows that the layer behind makes up for have no move
    "tied": (Tied, (5, 1), {(4,): 1}, {}, 8),
    "placed": (Placed, (5, 3), HEAD, {(4,): 1}, 0),
    # to the gate what its softmax takes away; 15 units, of which factors on cells give 3 + 5 − 1
    "experts": (Experts, (4,), {(3, 5): 1}, {(4,): 1, (): 1}, 8),
    "gru": (strangers.Recurrent, (5, 3), HEAD, {(): 8}, 0),
    # rotations of a stream of width 4; a LayerNorm leaves those that keep its mean
    "rms_stream": (lambda: Stream(nn.RMSNorm), (3,), HEAD, {}, 6),
    # the mean of all that is written (3, 5 and two biases) or read (5 and 3), shifts of both norms
    "layer_stream": (
        lambda: Stream(nn.LayerNorm),
        *((3,), HEAD, {(3,): 2, (5,): 2, (): 2 + 4 + 4}, 3),
    ),
}


@functools.cache
def found_of(name: str) -> tuple[nn.Module, Tensor, FoundMoves]:
    make, shape, *_ = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, samples = make().double().eval(), torch.randn(12, *shape, dtype=torch.float64)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_()

    def vary(index: int) -> Callable[[nn.Module], Tensor]:
        draw = torch.Generator().manual_seed(index)
        other = samples + torch.randn(samples.shape, generator=draw, dtype=torch.float64)
        return lambda network: network(other)

    found = find_moves(
        model,
        lambda m: m(samples[:4]),
        vary=vary,
        seen=lambda outputs: outputs - outputs.mean(-1, keepdim=True),
        generator=torch.Generator().manual_seed(0),
    )
    return model, samples[4:], found


def added(found: FoundMoves, name: str) -> dict[Shape, int]:
    counts: dict[Shape, int] = {}
    for variant in found.moves[name].variants if name in found.moves else ():
        for group in variant.groups:
            counts[group.shape] = counts.get(group.shape, 0) + group.width
    return counts


@pytest.mark.parametrize("name", CASES)
def test_what_can_be_added_is_as_by_hand(name):
    *_, common, free, left = CASES[name]
    found = found_of(name)[2]
    assert added(found, "logit_shift") == common
    assert added(found, "free_shift") == free
    assert found.unexplored == (
        f"{left} further directions in the weights keep the outputs, and no move covers them"
        if left
        else ""
    )


@pytest.mark.parametrize("name", CASES)
def test_probabilities_stay_on_samples_that_the_search_has_not_seen(name):
    model, others, found = found_of(name)
    with torch.no_grad():
        then = model(others).softmax(-1)
        for move in {"logit_shift", "free_shift", "batchnorm_fold"} & set(found.moves):
            for variant in found.moves[move].variants:
                moved = variant.apply(model, torch.Generator().manual_seed(2))
                torch.testing.assert_close(moved(others).softmax(-1), then, rtol=1e-8, atol=1e-10)
                changed = [
                    name
                    for (name, now), (_, before) in zip(
                        moved.named_parameters(), model.named_parameters(), strict=True
                    )
                    if not torch.allclose(now, before, rtol=0.1)
                ]
                assert changed, move


@pytest.mark.parametrize("name", ["attention", "mlp"])
def test_a_shift_that_is_not_found_is_missed(name, monkeypatch):
    """The count of all directions knows nothing of what was found: here, none is explained."""
    monkeypatch.setattr(completeness, "_added", lambda *_: iter(()))
    *_, common, free, _ = CASES[name]
    by_shape = [*common.items(), *free.items()]
    missing = sum(count * (shape[0] if shape else 1) for shape, count in by_shape)
    text = found_of.__wrapped__(name)[2].unexplored  # not from the cache
    assert text.startswith(f"{missing} further directions")


def test_biases_beside_a_gain_are_found():
    """The norm's gain and all biases behind it can be multiplied by one factor, to first order."""
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True, dropout=0.0)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(20, 3)).double().eval()
    samples = torch.randn(12, 5, 4, dtype=torch.float64)
    noise = torch.randn(100, 12, 5, 4, dtype=torch.float64)
    found = find_moves(
        model,
        lambda m: m(samples[:4]),
        vary=lambda index: lambda m: m(samples + noise[index % 100]),
        generator=torch.Generator().manual_seed(0),
    )
    together = {"0.norm1.bias", "0.linear1.bias", "0.linear2.bias"}
    groups = [g for v in found.moves["free_shift"].variants for g in v.groups]
    assert [g.width for g in groups if {site.name for site in g.sites} == together] == [4]
    assert found.unexplored == ""
