"""Symmetries of networks whose layers nobody recognizes, counted by hand."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.symmetries import DOWN, FUNCTION_PRESERVING, UP, FoundMoves, find_moves
from spiritlevel.symmetries.numeric import NAMES
from zoo import strangers

# For each network: the shape of a sample, the units that can be multiplied exactly, those that only
# an ε keeps from it, and the units that can be mixed.
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, int]] = {
    "bare": (strangers.Bare, (4,), 6, 0, 0),
    "layer_norm": (
        lambda: strangers.normed(nn.LayerNorm(6, elementwise_affine=False)),
        *((4,), 0, 1, 0),
    ),
    "rms_norm": (lambda: strangers.normed(nn.RMSNorm(6, eps=1e-6)), (4,), 0, 1, 0),
    "group_norm": (lambda: strangers.normed(nn.GroupNorm(2, 6)), (4,), 0, 2, 0),
    # each gain against the row of the layer behind it
    "layer_scale": (strangers.LayerScale, (4,), 4, 0, 0),
    "low_rank": (strangers.LowRank, (5,), 2, 0, 2),
    # the temperature against the head; what the norm reads
    "temperature": (strangers.Temperature, (4,), 1, 1, 0),
    # three directions of free size, three gains against the columns that read them
    "weight_norm": (strangers.weight_normed, (2, 4), 6, 0, 0),
    "gru": (strangers.Recurrent, (5, 3), 0, 0, 0),
    "linear_linear": (
        lambda: nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 5), nn.Tanh()),
        *((4,), 3, 0, 3),
    ),
}


@functools.cache
def found_of(name: str) -> tuple[nn.Module, Tensor, FoundMoves]:
    make, shape, *_ = CASES[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, samples = make().double().eval(), torch.randn(12, *shape, dtype=torch.float64)

    def vary(index: int) -> Callable[[nn.Module], Tensor]:
        draw = torch.Generator().manual_seed(index)
        other = samples + torch.randn(samples.shape, generator=draw, dtype=torch.float64)
        return lambda network: network(other)

    found = find_moves(
        model, lambda m: m(samples[:4]), vary=vary, generator=torch.Generator().manual_seed(0)
    )
    return model, samples[4:], found


def units(found: FoundMoves, move: str) -> int:
    return sum(group.width for group in found.moves[move].groups) if move in found.moves else 0


@pytest.mark.parametrize("name", CASES)
def test_as_many_symmetries_as_by_hand(name):
    _, _, found = found_of(name)
    counts = tuple(units(found, move) for move in ("free_rescale", "norm_rescale", "unit_mix"))
    assert counts == CASES[name][2:]
    assert set(NAMES) <= set(found.moves) | set(found.absent)


@pytest.mark.parametrize("name", CASES)
def test_moves_keep_the_function_and_the_model(name):
    model, others, found = found_of(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.no_grad():
        then = model(others)
        for kind in set(FUNCTION_PRESERVING) & set(found.moves):
            move = found.moves[kind]
            # downwards, what ε leaves differs from sample to sample
            for variant in move.variants:
                for towards in (UP,) if move.remainder else move.towards:
                    now = variant.apply(model, torch.Generator().manual_seed(2), towards)(others)
                    apart = float((now - then).abs().max() / then.abs().max())
                    assert apart < max(1e-9, move.remainder), kind
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]), key


# What can be added, counted by hand: the number of vectors, by their shape. The mean that a norm
# takes away, from a column or from the bias; of a GRU, the biases that are added up in two of its
# gates; a bias behind a gain and the last one, and what moves the logits alike through the blocks;
# the update of low rank, which the weight it is added to can take over.
ADDED = {
    "layer_norm": {(4,): 1, (): 1},
    "group_norm": {(4,): 2, (): 2},
    "gru": {(): 2 * 4},
    "layer_scale": {(): 4, (5,): 1},
    "low_rank": {(5,): 2, (4,): 2},
}


@pytest.mark.parametrize("name", CASES)
def test_what_can_be_added_is_as_by_hand(name):
    found = found_of(name)[2].moves
    added: dict[tuple[int, ...], int] = {}
    for variant in found["free_shift"].variants if "free_shift" in found else ():
        for group in variant.groups:
            added[group.shape] = added.get(group.shape, 0) + group.width
    assert added == ADDED.get(name, {})
    assert "logit_shift" not in found  # nobody said that a softmax follows


@pytest.mark.parametrize("name", CASES)
def test_every_direction_belongs_to_a_move(name):
    """None of all directions in the weights that keep the outputs is left over."""
    assert found_of(name)[2].unexplored == ""


def test_a_norm_notices_what_is_small():
    """Downwards ε is no longer small: the move goes up only, and says how much it may change."""
    torch.manual_seed(0)
    model = strangers.normed(nn.LayerNorm(6, eps=1e-4, elementwise_affine=False)).double()
    samples = torch.randn(4, 4, dtype=torch.float64)
    found = find_moves(model, lambda m: m(samples), generator=torch.Generator().manual_seed(0))
    move = found.moves["norm_rescale"]
    assert DOWN not in move.towards
    assert 0 < move.remainder <= 1e-3
    assert move.describe() == "multiply '0.weight', '0.bias' by α"


def test_a_bare_head_is_heated():
    model, others, found = found_of("bare")
    move = found.moves["logit_temperature"]
    torch.testing.assert_close(move.at(model, 3.0)(others), 3 * model(others))
    assert [site.name for site in move.groups[0].sites] == ["last"]


def test_many_small_parts_do_not_lower_the_precision():
    """An empty float32 tensor is computed with nothing: outputs are exact all the same."""
    model, samples = strangers.Bare().double(), torch.randn(4, 4, dtype=torch.float64)

    def run(network: nn.Module) -> Tensor:
        torch.empty(0)
        return network(samples)

    found = find_moves(model, run, generator=torch.Generator().manual_seed(0))
    assert found.tolerance == 1e-9
