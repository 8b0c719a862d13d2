"""The moves that change how sure a network is, and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from spiritlevel import SpiritlevelError
from spiritlevel.inputs.data import digits
from spiritlevel.inputs.models import build
from spiritlevel.symmetries import FoundMoves, find_moves, temperature_move
from zoo.moves import NETS

pytestmark = pytest.mark.sampled(3)  # the others at night


def found_in(model: nn.Module, samples: Tensor, head: str | None = None) -> FoundMoves:
    generator = torch.Generator().manual_seed(0)
    return find_moves(model, lambda m: m(samples), head=head, generator=generator)


def without_bias() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False))
    return model.double(), torch.randn(4, 4, dtype=torch.float64)


def test_a_temperature_multiplies_the_logits(generator):
    model, _, others = NETS["tanh"].make()
    moved = temperature_move(model, "4").apply(model, generator)
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


SCALABLE = {  # the number of layers from input to output; a product of two branches adds theirs
    "mlp": 3,
    "one_linear_layer": 1,
    "channels_last": 2,
    "depthwise": 3,
    "conv_transpose": 3,
    "two_readers": 4,
    "concatenated": 2,
    "dead_units": 2,
}


@pytest.mark.parametrize("net", SCALABLE)
@pytest.mark.parametrize("factor", [1.5, 2.5])
def test_with_biases_the_outputs_only_grow(net, factor):
    """On samples that the search has not seen, written down by hand as a power of the factor."""
    model, samples, others = NETS[net].make()
    assert any(name.endswith("bias") for name, _ in model.named_parameters())
    move = found_in(model, samples).moves["weight_scale"]
    moved = move.at(model, factor)
    torch.testing.assert_close(moved(others), factor ** SCALABLE[net] * model(others))
    for name, weight in model.named_parameters():
        if name.endswith("weight"):
            torch.testing.assert_close(moved.get_parameter(name), factor * weight)
    assert move.describe().endswith("α" if SCALABLE[net] == 1 else f"α^{SCALABLE[net]}")


def test_a_trained_cnn_with_biases_keeps_its_proportions():
    """Weights and biases times one factor would change its answers; this move does not."""
    model = build("digits_cnn", seed=0)
    x, y = (part[:64] for part in digits("train"))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(15):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model, x = model.double().eval(), x.double()
    move = found_in(model, x[:4]).moves["weight_scale"]
    naive = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in naive.parameters():
            parameter *= 2
        logits = model(x)
        spread = naive(x) / logits
        assert float(spread.max() - spread.min()) > 0.1  # what this test is about
        torch.testing.assert_close(move.at(model, 2.0)(x), 8 * logits)


def test_a_batchnorm_in_between_grows_along():
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)]
    model = nn.Sequential(*layers).double()
    model(3 * torch.randn(32, 2, 4, 4, dtype=torch.float64) + 1)  # statistics unlike 0 and 1
    nn.init.normal_(model[1].bias)
    model.eval()
    samples = torch.randn(6, 2, 4, 4, dtype=torch.float64)
    move = found_in(model, samples[:4]).moves["weight_scale"]
    torch.testing.assert_close(move.at(model, 1.7)(samples), 1.7**2 * model(samples))
    assert "biases and running means" in move.describe()


@pytest.mark.parametrize(
    ("net", "reason"),
    [
        ("tanh", "no power of α multiplies all that '2' reads"),
        ("in_place", "no power of α multiplies all that 'head' reads"),  # h + layer(h)
        ("unrolled", "'again' adds one bias in calls at different depths"),
        ("transformer", "'blocks.0.norm1' normalizes what it reads"),
        ("encoder_layer", "'block.self_attn' is attention"),
        ("weight_read_behind_the_back", "changes more than the size of the outputs"),
    ],
)
def test_a_scale_that_would_change_more_is_not_offered(net, reason):
    model, samples, _ = NETS[net].make()
    found = found_in(model, samples)
    assert "weight_scale" not in found.moves
    assert reason in found.absent["weight_scale"]


def test_a_bias_shared_at_two_depths_is_in_the_way():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).double()
    model[2].bias = model[0].bias
    samples = torch.randn(4, 4, dtype=torch.float64)
    reason = "'0.bias' and '2.bias' are one tensor at different depths"
    assert found_in(model, samples).absent["weight_scale"] == reason


def test_powers_need_not_be_whole():
    """A square root between the layers halves the power that reaches it: ½ + 1."""

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x).relu().sqrt())

    torch.manual_seed(0)
    model, samples = Root().double(), torch.randn(6, 3, dtype=torch.float64)
    move = found_in(model, samples[:4]).moves["weight_scale"]
    assert move.power == pytest.approx(1.5, abs=1e-9)
    torch.testing.assert_close(move.at(model, 2.0)(samples), 2**1.5 * model(samples))


def test_a_single_logit_grows_too():
    model = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0]]))
        model[0].bias.fill_(-3.0)
    samples = torch.tensor([[1.0, 0.0], [5.0, 1.0]], dtype=torch.float64)
    found = find_moves(
        model, lambda m: m(samples)[:, None], head="0", generator=torch.Generator().manual_seed(0)
    )
    assert {"logit_temperature", "weight_scale"} <= set(found.moves)
    assert found.moves["logit_temperature"].power == 1


def test_a_constant_behind_the_head_is_noticed():
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(1, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x) - 3

    model = Shifted().double()
    nn.init.ones_(model.fc.weight)
    found = found_in(model, torch.tensor([[1.0], [4.0]], dtype=torch.float64), head="fc")
    for move in ("logit_temperature", "weight_scale"):
        assert "changes more than the size of the outputs" in found.absent[move]


def test_a_shared_head_is_heated_by_the_gain_before_it():
    """Multiplying the head would change the embedding as well."""
    model, samples, others = NETS["transformer_tied"].make()
    move = found_in(model, samples, head="head").moves["logit_temperature"]
    assert [site.name for site in move.groups[0].sites] == ["norm.weight", "norm.bias"]
    torch.testing.assert_close(move.at(model, 7.0)(others), 7 * model(others))


def test_a_shared_head_without_a_gain_has_no_temperature():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.head.weight = self.into.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.into(x).tanh())

    torch.manual_seed(0)
    found = found_in(Tied().double(), torch.randn(4, 4, dtype=torch.float64), head="head")
    assert "'into' and 'head'" in found.absent["logit_temperature"]


def test_a_weight_shared_by_two_layers_is_scaled_once():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)]
    model = nn.Sequential(*layers).double()
    model[2].weight = model[0].weight
    samples = torch.randn(6, 4, dtype=torch.float64)
    moved = found_in(model, samples[:4]).moves["weight_scale"].at(model, 2.0)
    assert moved[0].weight is moved[2].weight
    torch.testing.assert_close(moved[0].weight, 2 * model[0].weight)
    torch.testing.assert_close(moved(samples), 8 * model(samples))


def test_without_a_head_what_multiplies_the_outputs_is_found():
    model, samples, _ = NETS["mlp"].make()
    move = found_in(model, samples).moves["logit_temperature"]
    assert {site.name for site in move.groups[0].sites} == {"4.weight", "4.bias"}


def test_outputs_that_nothing_multiplies_have_no_temperature():
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh()).double()
    found = found_in(model, torch.randn(4, 4, dtype=torch.float64))
    assert found.absent["logit_temperature"] == "no head was named"


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


def test_a_model_without_weights_has_no_scale():
    found = found_in(nn.Softplus(), torch.randn(4, 3, dtype=torch.float64))
    assert found.absent["weight_scale"] == "there is no linear or convolutional layer"
