"""What all penalties have in common: one call, a shared forward pass, `every`, state, errors."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from spiritlevel import SpiritlevelError
from spiritlevel.training import FlatnessPenalty, HeadPenalty, KappaPenalty, Penalty
from spiritlevel.training.penalties.forward_recorder import ForwardRecorder
from training.penalties import penalty_truths as truths
from training.penalties.penalty_refusals import refused
from training.penalties.penalty_zoo import PENALTIES, NoisyLogits, make_penalty


def make(*extra):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), *extra, nn.ReLU(), nn.Linear(5, 3)).double()


def batch(size=6):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (size,), generator=generator)


def seeded(name, model, weight=0.5, **options):
    generator = torch.Generator().manual_seed(2)
    return make_penalty(name, model, weight, layer="0", generator=generator, **options)


def shared(penalty, x, y, *, give=("loss",)):
    """Loss and penalty of one forward pass; `give` says what the penalty is told of it."""
    with penalty.shared_forward():
        outputs = penalty.model(x)
        loss = F.cross_entropy(outputs, y)
    told = {"loss": loss, "outputs": outputs}
    return loss, penalty(x, y, **{key: told[key] for key in give})


@pytest.mark.parametrize("name", PENALTIES)
def test_every_form_of_the_call_gives_the_same(name):
    model, (x, y) = make(nn.BatchNorm1d(5)), batch()
    term = seeded(name, model)(x, y)
    assert term.item() > 0
    gradients = truths.gradients_of(term, model)
    for give in (["loss"], ["outputs"], ["loss", "outputs"]):
        penalty = seeded(name, model)
        _, other = shared(penalty, x, y, give=give)
        truths.assert_same((other, truths.gradients_of(other, model)), (term.detach(), gradients))
        torch.testing.assert_close(0.5 * penalty.value, term.detach())
        assert not penalty.value.requires_grad


@pytest.mark.parametrize("name", PENALTIES)
def test_the_batch_goes_through_the_model_once_or_twice(name):
    model, (x, y) = make(), batch()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    shared(seeded(name, model), x, y)
    assert len(calls) == 1
    seeded(name, model)(x, y)
    assert len(calls) == 2
    penalty = seeded(name, model, every=2)
    for _ in range(4):
        penalty(x, y)
    assert len(calls) == 4  # two of the four were skipped


@pytest.mark.parametrize("name", PENALTIES)
def test_the_model_is_left_as_it_was(name):
    model, (x, y) = make(nn.BatchNorm1d(5), nn.Dropout()).train(), batch()
    state, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    seeded(name, model)(x, y)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    shared(seeded(name, model), x, y)
    with pytest.raises(RuntimeError, match="shapes"), seeded(name, model).shared_forward():
        model(x[:, :3])
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def train(model, penalty, steps, *, share=True):
    x, y = batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        if share:
            loss, term = shared(penalty, x, y)
        else:
            loss, term = F.cross_entropy(model(x), y), penalty(x, y)
        (loss + term).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("name", PENALTIES)
def test_a_resumed_training_is_the_same_to_the_last_bit(name, share):
    whole = make()
    straight = train(whole, seeded(name, whole, 0.1, every=3), 10, share=share)
    model = make()
    penalty = seeded(name, model, 0.1, every=3)
    train(model, penalty, 5, share=share)  # the next penalty is due in one step
    saved = copy.deepcopy((model.state_dict(), penalty.state_dict()))
    again = make()
    again.load_state_dict(saved[0])
    resumed = make_penalty(
        name, again, 0.1, layer="0", every=3, generator=torch.Generator().manual_seed(99)
    )
    resumed.load_state_dict(saved[1])
    assert torch.equal(resumed.value, penalty.value)
    assert not resumed.due
    assert torch.equal(train(again, resumed, 5, share=share), straight)
    fresh = seeded(name, model, 0.1, every=3)  # meta-test: without the state it is another one
    assert not torch.equal(train(model, fresh, 5, share=share), straight)


@pytest.mark.parametrize("name", PENALTIES)
def test_every_keeps_the_mean(name):
    model, (x, y) = make(), batch()
    often, rarely = seeded(name, model), seeded(name, model, every=3)
    terms = [rarely(x, y) for _ in range(6)]
    assert [term.requires_grad for term in terms] == [True, False, False] * 2
    torch.testing.assert_close(sum(terms).detach(), 3 * (often(x, y) + often(x, y)).detach())
    assert (rarely.every, rarely.due) == (3, True)


@pytest.mark.parametrize("name", PENALTIES)
def test_weight_zero_only_measures(name):
    model, (x, y) = make(), batch()
    reference = seeded(name, model, 1.0)
    shared(reference, x, y)
    penalty = seeded(name, model, 0.0)
    loss, term = shared(penalty, x, y)
    assert term.item() == 0.0
    assert not term.requires_grad
    torch.testing.assert_close(penalty.value, reference.value)
    loss.backward()


def test_several_penalties_share_one_forward_pass():
    model, (x, y) = make(), batch()
    names = list(PENALTIES)
    alone = [seeded(name, model)(x, y) for name in names]
    penalties = [seeded(name, model) for name in names]
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    first, second, *_ = penalties
    with first.shared_forward(), second.shared_forward():
        loss = F.cross_entropy(model(x), y)
    terms = [penalty(x, y, loss=loss) for penalty in (first, second)]
    assert len(calls) == 1
    for term, reference in zip(terms, alone, strict=False):
        torch.testing.assert_close(term, reference)


@pytest.mark.parametrize("name", PENALTIES)
def test_the_model_of_a_wrapper_is_found(name):
    model, (x, y) = make(), batch()
    inner, outer = (seeded(name, m) for m in (model, nn.DataParallel(model)))
    assert inner(x, y).item() == outer(x, y).item()


# -- a user's own ---------------------------------------------------------------------------------


class InputNorm(Penalty):
    """A user's penalty on the input of a layer, which it observes in the forward pass."""

    def __init__(self, model, weight=0.01, *, layer, **options):
        super().__init__(model, weight, **options)
        self.recorder = ForwardRecorder(self.model.get_submodule(layer))

    def around_forward(self):
        return self.recorder

    def compute(self, batch):
        return self.recorder.take().args[0].square().mean()


def test_a_penalty_of_ones_own_sees_inner_layers():
    model, (x, y) = make(), batch()
    penalty = InputNorm(model, 2.0, layer="2", every=2)
    truth = 4 * model[1](model[0](x)).square().mean()  # weight 2, and one step in two
    gradients = truths.gradients_of(truth, model)
    for term in (shared(penalty, x, y)[1], (penalty(x, y), penalty(x, y))[1]):
        truths.assert_same((term, truths.gradients_of(term, model)), (truth.detach(), gradients))


def test_a_penalty_must_have_compute():
    class Empty(Penalty):
        pass

    with pytest.raises(TypeError, match="compute"):
        Empty(make())


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (1.0, r"Wrong.compute must return one number as a tensor\. Got 1\.0"),
        (torch.ones(3, requires_grad=True), r"one number .* Got shape \(3,\)\. Average"),
        (torch.ones(()), r"with its graph\. Got one that needs no gradient.*without \.detach"),
    ],
)
def test_what_compute_must_return(result, text):
    class Wrong(Penalty):
        def compute(self, batch):
            torch.rand(3, generator=self.generator)
            return result

    model, (x, y) = make(), batch()
    penalty = Wrong(model)
    before = penalty.state_dict()
    refused(text, lambda: penalty(x, y), model)
    assert torch.equal(before["generator"], penalty.generator.get_state())
    assert penalty.due
    assert penalty.value is None


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weight": -0.1}, r"'weight' .* at least 0\. Got -0\.1\. Paper 004 uses"),
        ({"weight": "big"}, r"'weight' .* Got 'big'"),
        ({"every": 0}, r"'every' .* at least 1\. Got 0\. every=8 applies"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "must average over samples"),
    ],
    ids=["negative", "text", "every", "loss"],
)
def test_bad_arguments(name, options, text):
    model = make()
    refused(text, lambda: make_penalty(name, model, layer="0", **options), model)


@pytest.mark.parametrize("name", PENALTIES)
def test_a_foreign_state(name):
    penalty = seeded(name, make())
    with pytest.raises(SpiritlevelError, match=r"state_dict\(\) .* without value, generator"):
        penalty.load_state_dict({"steps": 3})


@pytest.mark.parametrize("name", PENALTIES)
def test_an_empty_batch(name):
    model, (x, y) = make(), batch()
    text = r"'batch_size' .* at least 1\. Got 0\. Pass len\(x\)"
    refused(text, lambda: seeded(name, model)(x[:0], y[:0]), model)


@pytest.mark.parametrize("name", [name for name in PENALTIES if name != "trace_squared"])
def test_a_forward_pass_that_the_penalty_did_not_see(name):
    model, (x, y) = make(), batch()
    penalty = seeded(name, model)
    loss = F.cross_entropy(model(x), y)
    refused(r"`with penalty.shared_forward\(\):`", lambda: penalty(x, y, loss=loss), model)
    loss, _ = shared(penalty, x, y)
    refused(r"`with penalty.shared_forward\(\):`", lambda: penalty(x, y, loss=loss), model)


def test_targets_are_needed_where_the_penalty_uses_them():
    model, (x, y) = make(), batch()
    for penalty in (HeadPenalty(model), KappaPenalty(model, layer="0"), FlatnessPenalty(model)):
        refused(r"needs the targets of the batch\. Got y=None", lambda p=penalty: p(x), model)
    _, term = shared(NoisyLogits(model), x, y)
    assert term.item() > 0
    penalty = FlatnessPenalty(model)
    with penalty.shared_forward():
        loss = F.cross_entropy(model(x), y)
    assert penalty(x, loss=loss).item() > 0  # the loss is all that it needs
