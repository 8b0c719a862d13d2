"""What a found move says about itself, and why one is absent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spiritlevel import SpiritlevelError
from spiritlevel.symmetries import MOVES, SYMMETRIES, FoundMoves, find_moves
from spiritlevel.symmetries.search import STRUCTURAL
from zoo.moves import NETS


def found_in(name: str) -> FoundMoves:
    model, samples, _ = NETS[name].make()
    return find_moves(
        model, lambda m: m(samples), head=None, generator=torch.Generator().manual_seed(0)
    )


@pytest.mark.parametrize(
    ("net", "move", "text"),
    [
        ("mlp", "layer_rescale", "multiply '0' by α, divide '2' by it; 1 more group"),
        ("tanh", "unit_permute", "renumber the units of '0', and in '2' alike; 1 more group"),
        (
            "batchnorm",
            "batchnorm_absorb",
            "multiply '0' by an α for each unit, let the running statistics of '1' follow",
        ),
        (
            "batchnorm",
            "unit_permute",
            "renumber the units of '0' (with '1'), and in '3' alike",
        ),
        (
            "two_readers",
            "neuron_rescale",
            "multiply 'shared' by an α for each unit, divide 'left', 'right' by it",
        ),
        (
            "encoder_layer",
            "attention_rescale",
            "multiply 'block.self_attn.in_proj_weight', 'block.self_attn.in_proj_bias' by an α "
            "for each unit, divide 'block.self_attn.out_proj.weight' by it",
        ),
        pytest.param(
            "transformer",
            "attention_rescale",
            "multiply 'blocks.0.v' by an α for each unit, divide 'blocks.0.proj' by it; "
            "1 more group",
            marks=pytest.mark.nightly,  # by day the groups of the MLP are counted
        ),
    ],
)
def test_a_move_is_described_in_plain_words(net, move, text):
    assert found_in(net).moves[move].describe() == text


@pytest.mark.parametrize(
    ("net", "move", "text"),
    [
        ("one_linear_layer", "neuron_rescale", "'(model)' gives the outputs"),
        ("tanh", "layer_rescale", "what '2' reads is not proportional to '0'"),
        ("grouped", "unit_permute", "'2' reads the units in fixed groups"),
        ("shared_weight", "neuron_rescale", "'a.weight' is shared by 'a' and 'b'"),
        ("mlp", "batchnorm_absorb", "no BatchNorm in eval mode"),
        ("mlp", "attention_rescale", "there is no attention"),
    ],
)
def test_an_absent_move_comes_with_its_reason(net, move, text):
    assert text in found_in(net).absent[move]


def test_a_bad_group_does_not_spoil_the_others():
    [group] = found_in("weight_read_behind_the_back").moves["neuron_rescale"].groups
    assert group.sites[0].module == "middle"


class Branching(nn.Module):
    """Which layer comes next depends on the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).relu()
        return self.b(h) if h.max() < 5 else self.c(h)


def test_another_path_through_the_code_is_noticed(generator):
    torch.manual_seed(0)
    model, samples = Branching().double(), torch.randn(4, 3, dtype=torch.float64)
    found = find_moves(model, lambda m: m(samples), generator=generator)
    assert "other layers are called" in found.absent["neuron_rescale"]


class Picky(nn.Module):
    """Refuses numbers that its layers would not give."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if not torch.equal(h, nn.functional.linear(x, self.a.weight, self.a.bias)):
            raise RuntimeError("who are you?")
        return self.b(h)


def test_a_network_that_will_not_run_is_reported(generator):
    model, samples = Picky().double(), torch.randn(4, 3, dtype=torch.float64)
    found = find_moves(model, lambda m: m(samples), generator=generator)
    assert set(found.moves).isdisjoint(STRUCTURAL)  # linear algebra does without hooks
    assert "RuntimeError: who are you?" in found.absent["neuron_rescale"]


def test_a_network_in_half_precision_throughout_cannot_be_verified(generator):
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).bfloat16().to(x))

    samples = torch.randn(4, 3, dtype=torch.float64)
    found = find_moves(Half().double(), lambda m: m(samples), generator=generator)
    assert found.moves == {}
    assert set(found.absent) == set(MOVES)
    assert "precision is too low" in found.absent["neuron_rescale"]


def test_inference_mode_is_refused(generator):
    model, samples, _ = NETS["mlp"].make()

    def run(network: nn.Module) -> Tensor:
        with torch.inference_mode():
            return network(samples)

    with pytest.raises(SpiritlevelError, match=r"outside of torch\.inference_mode"):
        find_moves(model, run, generator=generator)


def test_no_grad_and_detach_are_fine(generator):
    model, samples, _ = NETS["mlp"].make()

    def run(network: nn.Module) -> Tensor:
        with torch.no_grad():
            return network(samples).detach()

    found = find_moves(model, run, generator=generator)
    assert len(found.moves["neuron_rescale"].groups) == 2


def test_a_model_without_layers_has_no_moves(generator):
    samples = torch.randn(4, 3, dtype=torch.float64)
    found = find_moves(nn.ReLU(), lambda m: m(samples), generator=generator)
    assert found.moves == {}
    assert found.absent["neuron_rescale"] == "the network calls no layer of a known kind"


def test_names_are_those_that_cards_use():
    assert set(SYMMETRIES) - {"batch_split"} <= set(MOVES)
