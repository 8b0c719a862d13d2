"""FlatnessPenalty in a training loop: schedule, resuming, and refusals that change nothing."""

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.training import FlatnessPenalty, trace_squared_of, trace_squared_penalty
from training.penalties import penalty_truths as truths
from training.penalties.penalty_refusals import refused

pytestmark = pytest.mark.sampled(2)  # the others at night


def make(*extra, outputs=3):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = [nn.Linear(4, 5), *extra, nn.Tanh(), nn.Linear(5, outputs)]
        return nn.Sequential(*layers).double()


def batch(size=6):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (size,), generator=generator)


def test_the_documented_use():
    model, (x, y) = make(), batch()
    penalty = FlatnessPenalty(model, weight=0.3, generator=torch.Generator().manual_seed(2))
    loss = F.cross_entropy(model(x), y) + penalty(x, y)
    loss.backward()
    generator = torch.Generator().manual_seed(2)
    plain = F.cross_entropy(model(x), y)
    by_hand = plain + 0.3 * trace_squared_of(plain, model.parameters(), 6, generator=generator)
    torch.testing.assert_close(loss, by_hand)
    found = {name: p.grad for name, p in model.named_parameters()}
    truths.assert_same((loss, found), (by_hand.detach(), truths.gradients_of(by_hand, model)))
    assert not penalty.value.requires_grad
    torch.testing.assert_close(0.3 * penalty.value, (by_hand - plain).detach())


def test_one_forward_is_enough():
    model, (x, y) = make(), batch()
    own, shared = (
        FlatnessPenalty(model, generator=torch.Generator().manual_seed(2)) for _ in range(2)
    )
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    with shared.shared_forward():
        loss = F.cross_entropy(model(x), y)
    torch.testing.assert_close(shared(x, y, loss=loss), own(x, y), rtol=1e-12, atol=0)
    assert len(calls) == 2  # one of them the other's own


def test_the_lazy_schedule_keeps_the_mean_gradient():
    model, (x, y) = make(outputs=3), batch()
    rows = truths.orthogonal_signs(sum(p.numel() for p in model.parameters()))
    penalty = FlatnessPenalty(model, weight=0.5, every=4, probes=len(rows))
    total, computed = torch.zeros((), dtype=torch.float64), []
    with truths.signs_from("flatness_penalty", rows):
        for _ in range(8):
            computed.append(penalty.due)
            value = penalty(x, y)
            assert value.requires_grad == computed[-1]
            total = total + value / 8
    assert computed == [True, False, False, False] * 2
    value, gradient = truths.trace_squared(model, x, y, F.cross_entropy)
    truth = 0.5 * value, {name: 0.5 * g for name, g in gradient.items()}
    truths.assert_same((total, truths.gradients_of(total, model)), truth)
    torch.testing.assert_close(penalty.value, value)


def train(model, penalty, steps, optimizer=None):
    x, y = batch()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        with penalty.shared_forward():
            loss = F.cross_entropy(model(x), y)
        (loss + penalty(x, y, loss=loss)).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_a_resumed_training_is_the_same():
    whole = make()
    straight = train(whole, FlatnessPenalty(whole, 0.1, every=3), 10)
    model = make()
    penalty = FlatnessPenalty(model, 0.1, every=3)
    train(model, penalty, 5)
    saved = copy.deepcopy((model.state_dict(), penalty.state_dict()))
    again = make()
    again.load_state_dict(saved[0])
    resumed = FlatnessPenalty(again, 0.1, every=3, generator=torch.Generator().manual_seed(99))
    resumed.load_state_dict(saved[1])
    assert torch.equal(resumed.value, penalty.value)
    assert torch.equal(train(again, resumed, 5), straight)
    fresh = FlatnessPenalty(model, 0.1, every=3)  # Meta-test: without the state it is another one
    assert not torch.equal(train(model, fresh, 5), straight)


def test_weight_zero_only_measures():
    model, (x, y) = make(), batch()
    penalty = FlatnessPenalty(model, weight=0, generator=torch.Generator().manual_seed(0))
    loss = F.cross_entropy(model(x), y)
    added = penalty(x, y, loss=loss)
    assert added.item() == 0.0
    assert not added.requires_grad
    truth = trace_squared_penalty(model, x, y, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(penalty.value, truth.detach())
    (loss + added).backward()


def test_torchs_random_numbers_stay_those_of_a_plain_training():
    model, (x, y) = make(nn.Dropout()), batch()
    penalty = FlatnessPenalty(model.train())
    before = torch.get_rng_state()
    penalty(x, y)
    assert torch.equal(before, torch.get_rng_state())


def test_the_penalty_flattens():
    plain, flat = make(), make()
    x, y = batch()
    train(plain, FlatnessPenalty(plain, 0.0), 60)
    train(flat, FlatnessPenalty(flat, 5.0), 60)
    sharp, smooth = (truths.trace_squared(m, x, y, F.cross_entropy)[0] for m in (plain, flat))
    assert smooth < 0.7 * sharp


def test_the_model_of_a_wrapper_is_found():
    model, (x, y) = make(), batch()
    inner, outer = (
        FlatnessPenalty(m, generator=torch.Generator().manual_seed(0))
        for m in (model, nn.DataParallel(model))
    )
    assert inner(x, y).item() == outer(x, y).item()


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weight": -0.1}, "'weight' .* at least 0. Got -0.1. Paper 004 uses"),
        ({"weight": float("nan")}, "'weight' .* finite number of at least 0. Got nan"),
        ({"weight": "big"}, "'weight' .* Got 'big'"),
        ({"every": 0}, "'every' .* at least 1. Got 0. every=8 applies"),
        ({"probes": 0}, "'probes' .* at least 1. Got 0. 1 is enough"),
        ({"layers": "nope"}, "Nothing matches 'nope'. Available: 0, 1, 3"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "must average over samples"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_arguments(options, text):
    model = make(nn.BatchNorm1d(5))
    refused(text, lambda: FlatnessPenalty(model, **options), model)


def test_a_model_that_is_not_trained():
    model = make()
    for p in model.parameters():
        p.requires_grad_(False)
    with pytest.raises(SpiritlevelError, match=r"requires_grad=True\. Got none\. Unfreeze"):
        FlatnessPenalty(model)


def test_a_layer_that_is_frozen_later():
    model, (x, y) = make(), batch()
    penalty = FlatnessPenalty(model, layers="2")
    model[2].requires_grad_(False)
    with pytest.raises(SpiritlevelError, match=r"All parameters of '2' are frozen"):
        penalty(x, y)
    assert penalty.due
    with pytest.raises(SpiritlevelError, match="Got number 0 of them frozen"):
        trace_squared_penalty(model, x, y, parameters=model[2].parameters())
    with pytest.raises(SpiritlevelError, match="'layers' or 'parameters', not both"):
        trace_squared_penalty(model, x, y, layers="0", parameters=model[0].parameters())
    with pytest.raises(SpiritlevelError, match=r"at least one\. Got none"):
        trace_squared_penalty(model, x, y, parameters=[])


def test_a_loss_that_is_not_finite():
    model, (x, y) = make(nn.BatchNorm1d(5), nn.Dropout()), batch()
    penalty = FlatnessPenalty(model)
    state = penalty.state_dict()
    refused(
        "must be finite. Got nan. The training has diverged", lambda: penalty(x * NAN, y), model
    )
    with torch.no_grad():
        model[0].weight[0, 0] = float("inf")
    refused("must be finite. Got nan", lambda: penalty(x, y), model)
    after = penalty.state_dict()
    assert (after["steps"], after["value"]) == (state["steps"], None)
    assert torch.equal(after["generator"], state["generator"])


NAN = float("nan")


def test_an_empty_batch():
    model, (x, y) = make(nn.BatchNorm1d(5)), batch()
    penalty = FlatnessPenalty(model)
    text = r"'batch_size' .* at least 1. Got 0. Pass len\(x\)"
    refused(text, lambda: penalty(x[:0], y[:0]), model)
    refused(text, lambda: trace_squared_penalty(model, x[:0], y[:0]), model)
    loss = F.cross_entropy(model(x), y)
    refused(text, lambda: penalty(x, y, loss=loss, batch_size=0), model)


def test_a_loss_that_is_no_mean():
    model, (x, y) = make(), batch()
    penalty = FlatnessPenalty(model)
    each = F.cross_entropy(model(x), y, reduction="none")
    refused(
        r"one number. Got shape \(6,\). Use reduction='mean'",
        lambda: penalty(x, y, loss=each),
        model,
    )
    refused("one number. Got float", lambda: penalty(x, y, loss=1.0), model)
    refused("needs no gradient", lambda: penalty(x, y, loss=each.mean().detach()), model)


def test_bad_targets():
    model, (x, y) = make(), batch()
    penalty = FlatnessPenalty(model)
    refused(r"Labels must lie in \[0, 2\].* Got 7 in the batch", lambda: penalty(x, y + 7), model)
    refused(r"need shape \(6,\).* Got \(5,\)", lambda: penalty(x, y[1:]), model)


def test_a_loss_that_was_already_differentiated():
    model, (x, y) = make(), batch()
    penalty = FlatnessPenalty(model)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    refused(
        r"Trying to backward.*before loss.backward\(\)", lambda: penalty(x, y, loss=loss), model
    )


class OnlyOnce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].exp()


def test_a_function_without_second_derivative():
    model, (x, y) = make(), batch()
    penalty = FlatnessPenalty(model)
    loss = F.cross_entropy(OnlyOnce.apply(model(x)), y)
    refused("differentiable only once", lambda: penalty(x, y, loss=loss), model)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(5), nn.LayerNorm(5)], ids=["batch", "layer"])
def test_normalizations_of_torch_are_refused(norm):
    # their third derivative is wrong: test_penalties_parts.py
    model, (x, y) = make(norm).double(), batch()
    penalty = FlatnessPenalty(model)
    loss = F.cross_entropy(model(x), y)
    text = r"torch does that wrongly.*Native\w+NormBackward0.*with penalty.shared_forward\(\)"
    refused(re.compile(text), lambda: penalty(x, y, loss=loss), model)
    with penalty.shared_forward():
        loss = F.cross_entropy(model(x), y)
    assert penalty(x, y, loss=loss) > 0
    loss = F.cross_entropy(model(x), y)
    assert FlatnessPenalty(model, 0.0)(x, y, loss=loss) == 0  # the number alone is right


def test_eval_mode_batch_norm_needs_nothing():
    model, (x, y) = make(nn.BatchNorm1d(5)).eval(), batch()
    rows = truths.orthogonal_signs(sum(p.numel() for p in model.parameters()))
    penalty = FlatnessPenalty(model, 1.0, probes=len(rows))
    with truths.signs_from("flatness_penalty", rows):
        value = penalty(x, y, loss=F.cross_entropy(model(x), y))
    truth = truths.trace_squared(model, x, y, F.cross_entropy)
    truths.assert_same((value, truths.gradients_of(value, model)), truth)


def test_a_foreign_state():
    with pytest.raises(SpiritlevelError, match="Got one without value, generator"):
        FlatnessPenalty(make()).load_state_dict({"steps": 3})
