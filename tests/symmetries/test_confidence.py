"""The moves that change how sure a network is, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spiritlevel import SpiritlevelError
from spiritlevel.symmetries import Found, find_moves, temperature_move, weight_scale_move
from symmetries.nets import NETS


def found_in(model: nn.Module, samples: Tensor, head: str | None = None) -> Found:
    generator = torch.Generator().manual_seed(0)
    return find_moves(model, lambda m: m(samples), head=head, generator=generator)


def without_bias() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False))
    return model.double(), torch.randn(4, 4, dtype=torch.float64)


def test_a_temperature_multiplies_the_logits(generator):
    model, samples, others = NETS["tanh"].make()
    move = found_in(model, samples, head="4").moves["logit_temperature"]
    moved = move.apply(model, generator)
    factors = (moved(others) / model(others)).detach()
    assert torch.allclose(factors, factors[0, 0])
    assert 5 <= float(factors[0, 0]) <= 25
    assert torch.equal(moved[2].weight, model[2].weight)


@pytest.mark.parametrize("head", ["", "(model)"])
def test_the_model_itself_can_be_the_head(head, generator):
    model, samples, _ = NETS["one_linear_layer"].make()
    moved = found_in(model, samples, head=head).moves["logit_temperature"].apply(model, generator)
    assert (moved.weight / model.weight > 4.99).all()


def test_all_weights_of_a_homogeneous_network_can_be_scaled(generator):
    model, samples = without_bias()
    moved = found_in(model, samples).moves["weight_scale"].apply(model, generator)
    factor = float((moved[0].weight / model[0].weight)[0, 0].detach())
    assert 1.5 <= factor <= 2.5
    assert torch.allclose(moved[2].weight, factor * model[2].weight)
    assert torch.allclose(moved(samples), factor**2 * model(samples))


def test_a_scale_that_changes_answers_is_not_offered():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[2].weight.copy_(torch.tensor([[1.0], [0.0]]))
        model[2].bias.copy_(torch.tensor([0.0, 3.5]))
    # logits of 2α² and 3.5α: the second class wins until α is 1.75
    found = found_in(model, torch.full((4, 1), 2.0, dtype=torch.float64))
    assert "weight_scale" not in found.moves
    assert found.absent["weight_scale"] == "a factor of 2 changes 4 of 4 answers"


def test_the_answer_of_a_single_logit_is_its_sign():
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0]]))
        model[0].bias.fill_(-3.0)
    samples = torch.tensor([[1.0, 0.0], [5.0, 1.0]], dtype=torch.float64)
    found = find_moves(
        model, lambda m: m(samples)[:, None], head="0", generator=torch.Generator().manual_seed(0)
    )
    assert {"logit_temperature", "weight_scale"} <= set(found.moves)


def test_a_sign_that_changes_is_noticed():
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(1, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) - 3

    model = Shifted().double()
    nn.init.ones_(model.fc.weight)
    found = found_in(model, torch.ones(1, 1, dtype=torch.float64), head="fc")
    assert "changes 1 of 1 answers" in found.absent["logit_temperature"]


def test_a_shared_head_has_no_temperature():
    model, samples, _ = NETS["transformer_tied"].make()
    found = found_in(model, samples, head="head")
    assert "'tokens' and 'head'" in found.absent["logit_temperature"]


def test_a_weight_shared_by_two_layers_is_scaled_once(generator):
    model, _, _ = NETS["shared_weight"].make()
    moved = weight_scale_move(model).apply(model, generator)
    assert moved.a.weight is moved.b.weight
    factors = (moved.a.weight / model.a.weight).detach()
    assert (factors < 2.6).all()
    assert torch.allclose(factors, (moved.head.weight / model.head.weight)[0, 0])


def test_without_a_head_there_is_no_temperature():
    model, samples, _ = NETS["mlp"].make()
    assert found_in(model, samples).absent["logit_temperature"] == "no head was named"


@pytest.mark.parametrize(
    ("head", "text"),
    [("nowhere", "the model does not have. Its last one is '4'"), ("1", "a ReLU without any")],
)
def test_a_head_that_is_none_is_refused(head, text):
    model, samples, _ = NETS["mlp"].make()
    with pytest.raises(SpiritlevelError, match=text):
        temperature_move(model, head)
    with pytest.raises(SpiritlevelError, match=text):
        found_in(model, samples, head=head)


def test_a_model_without_weights_is_refused():
    with pytest.raises(SpiritlevelError, match="without any"):
        weight_scale_move(nn.ReLU())
