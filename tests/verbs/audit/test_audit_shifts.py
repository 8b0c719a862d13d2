"""What a softmax takes away: which losses have one, and what it does to the numbers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel import symmetries
from zoo import strangers

BY_ROWS = ["scaled.trace", "head.scaled_lambda_max", "scaled.lambda_max"]
BY_SUMS = ["relative.kappa", "neuron.rho_sum"]  # in which the rows' common part cancels


def classifier():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double().eval()
        x = torch.randn(40, 6).double()
    return model, (x, x[:, :3].argmax(1))


def shifted(model):
    """The same probabilities, by hand."""
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved[-1].weight.add_(5 * torch.arange(5.0).double())
        moved[-1].bias.add_(3.0)
    return moved


def test_measures_that_follow_the_rows_of_the_head_are_not_comparable():
    model, data = classifier()
    result = sl.audit(model, data, measures=[*BY_ROWS, *BY_SUMS], draws=1)
    before, after = (
        sl.measure(m, data, measures=[*BY_ROWS, *BY_SUMS], method="exact")
        for m in (model, shifted(model))
    )
    for measure in BY_ROWS:
        assert after[measure].value > 1.5 * before[measure].value
        assert result.verdict(measure).kind == "scale", measure
    for measure in BY_SUMS:
        assert after[measure].value == pytest.approx(before[measure].value, rel=1e-9)
        assert result.has_moved(measure, "logit_shift") is False, measure
        assert result.verdict(measure).kind == "confidence", measure


def test_what_is_not_comparable_tells_no_two_networks_of_one_function_apart():
    """A comparison knows a measure that no symmetry changes, and it does not order them."""
    model, data = classifier()
    found = sl.compare({"one": model, "other": shifted(model)}, data, measures=["neuron.rho_sum"])
    assert found.answer().tied == [("one", "other")]


def test_every_variant_of_a_move_is_drawn(monkeypatch):
    """What is added to one factor depends on the other: either can be moved, and not both."""
    torch.manual_seed(0)
    data, drawn = (torch.randn(8, 5), torch.arange(8) % 3), []
    apply = symmetries.Move.apply
    monkeypatch.setattr(
        symmetries.Move, "apply", lambda move, *given: drawn.append(move) or apply(move, *given)
    )
    result = sl.audit(strangers.LowRank().eval(), data, measures="norms.weight", draws=1)
    assert len(result.moved["free_shift"]) == 2
    last = [move for move in drawn if move.name == "free_shift"][-2:]
    assert {name for move in last for name in ("a", "b") if _adds_to(move, name)} == {"a", "b"}
    assert result.moves["free_shift"].startswith("add to 'a', 'base.weight' what is taken away")
    assert result.unexplored == ""


def _adds_to(move, name):
    return any(site.name == name for group in move.groups for site in group.sites)


def pair_of_logits(outputs, targets):
    return F.softplus(-(2.0 * targets - 1) * (outputs[:, 1] - outputs[:, 0]))


class WithLogSoftmax(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).log_softmax(dim=1)


def losses():
    model, (x, y) = classifier()
    two = nn.Sequential(*model[:2], nn.Linear(5, 2)).double()
    return {
        "cross-entropy": (model, (x, y), "cross_entropy", "logit_shift"),
        "NLL": (WithLogSoftmax(model), (x, y), nn.NLLLoss(), "free_shift"),  # within the model
        "squares": (model, (x, F.one_hot(y, 3).double()), "mse", None),
        "sigmoids": (model, (x, F.one_hot(y, 3).double()), "bce", None),
        "a difference": (two, (x, (y > 0).double()), pair_of_logits, "logit_shift"),
    }


@pytest.mark.parametrize("name", losses())
def test_only_a_loss_that_takes_it_away_makes_it_a_symmetry(name):
    model, data, loss, move = losses()[name]
    result = sl.audit(model.eval(), data, loss=loss, measures="curvature.trace", draws=1)
    assert set(result.moved) & {"logit_shift", "free_shift"} == ({move} if move else set())
    assert result.unexplored == ""
