"""Errors and Ctrl-C at any moment of what watches or changes training: nothing is left of them."""

import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import spiritlevel as sl
from faults import KINDS, PLACES, Moments, Planted, assert_same, moment, state_of
from training.monitor.monitor_problem import problem
from training.penalties.penalty_zoo import PENALTIES, make_penalty

# The network's own forward passes move these, as they would without a fault.
OF_FORWARDS = {"torch rng", "buffers"}


@dataclasses.dataclass
class Scene:
    """Something that runs in the middle of a training."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    call: Callable[[], Any]
    moved: set[str] = dataclasses.field(default_factory=set)  # parts that may change
    facts: Callable[[], Any] = lambda: None  # more that must be as it was


def in_training():
    model, data = problem()
    model.train()
    model[2].eval()
    x, y = data.tensors
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    return model, optimizer, x, y


def monitored(**options):
    model, optimizer, x, y = in_training()
    options = {"measures": ["relative.kappa", "curvature.lambda_max"], "every": 1} | options
    monitor = sl.FlatnessMonitor(model, [(x[:24], y[:24]), (x[24:], y[24:])], **options)
    return Scene(model, optimizer, monitor.step)


def watched():
    model, optimizer, x, y = in_training()
    data = [(x[:24], y[:24]), (x[24:], y[24:])]
    monitor = sl.FlatnessMonitor(model, data, measures=(), optimizer=optimizer, every=1)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    return Scene(model, optimizer, monitor.measure)


def made():
    model, optimizer, x, y = in_training()
    make = functools.partial(sl.FlatnessMonitor, model, (x, y), measures=["relative.kappa"])
    return Scene(model, optimizer, lambda: make(optimizer=optimizer, num_samples=20) and None)


def penalized(name, shared):
    model, optimizer, x, y = in_training()
    penalty = make_penalty(name, model, layer="4", every=2)

    def call():
        if not shared:
            return penalty(x, y).item()
        with penalty.shared_forward():
            loss = F.cross_entropy(model(x), y)
        return penalty(x, y, loss=loss).item()

    def facts():
        state = penalty.state_dict()
        return state["steps"], state["generator"].tolist()

    return Scene(model, optimizer, call, OF_FORWARDS if shared else set(), facts)


def sharpness_aware(kind, by_closure):
    model, optimizer, x, y = in_training()
    options = {"SAM": {}, "ASAM": {"adaptive_bias": False}, "Noise": {"draws": 2}}[kind]
    sam = {"SAM": sl.SAM, "ASAM": sl.ASAM, "Noise": sl.NoiseSAM}[kind](optimizer, 0.1, **options)

    def closure():
        sam.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    def call():
        if by_closure:
            sam.step(closure)
        else:
            for _ in sam.passes():
                closure()
            sam.step()
        return [p.tolist() for p in model.parameters()]

    # the gradients are those of the pass that was interrupted, or cleared
    return Scene(model, optimizer, call, OF_FORWARDS | {"grads"}, lambda: sam._phase.inside)


SCENES = {
    "monitor": monitored,
    "strict monitor": lambda: monitored(strict=True),
    "trial of a monitor": lambda: monitored(max_overhead=0.9),
    "rates": watched,
    "making a monitor": made,
    **{
        f"{name}, {'shared' if shared else 'own'} pass": functools.partial(penalized, name, shared)
        for name in PENALTIES
        for shared in (False, True)
    },
    **{
        f"{kind}, {'closure' if by_closure else 'loop'}": functools.partial(
            sharpness_aware, kind, by_closure
        )
        for kind in ("SAM", "ASAM", "Noise")
        for by_closure in (False, True)
    },
}
# keys of a row that a row after a fault does not have, or has in other digits
LOOSE = "seconds", "rate.critical_sharpness"


def facts_of(scene):
    state = state_of(scene.model, (), scene.optimizer)
    if "buffers" in scene.moved:
        trained = dict(scene.model.named_parameters())
        state["values"] = {name: v for name, v in state["values"].items() if name in trained}
    return {part: value for part, value in state.items() if part not in scene.moved}


def result_of(scene):
    """What the call gives from a given random state, without what depends on the clock."""
    torch.manual_seed(11)
    for name, buffer in problem()[0].named_buffers():
        scene.model.get_buffer(name).copy_(buffer)
    scene.optimizer.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = scene.call()
    if isinstance(result, dict):
        firm = [key for key in result if key not in LOOSE and not key.endswith(".residual")]
        return {key: result[key] for key in firm if isinstance(result[key], float)}
    return result


@functools.cache
def unbroken(name, place):
    """How many moments the call has, and what it gives."""
    scene, moments = SCENES[name](), Moments()
    with PLACES[place](scene.model, moments), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scene.call()
    scene = SCENES[name]()
    return moments.count, result_of(scene)


def cases():
    for name in SCENES:
        for place in PLACES:
            for kind in KINDS:
                yield from ((name, place, kind, number) for number in range(2))


@pytest.mark.sampled(6)  # of each scene some cases by day
@pytest.mark.parametrize(("name", "place", "kind", "number"), [*cases()])
def test_nothing_is_left_of_a_fault(name, place, kind, number):
    count, expected = unbroken(name, place)
    if not count:
        pytest.skip("no such moment")
    act, error = KINDS[kind]
    scene = SCENES[name]()
    moments = Moments(moment(f"{name}/{place}/{kind}/{number}", count), act)
    before, facts = facts_of(scene), scene.facts()
    with PLACES[place](scene.model, moments), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = scene.call()
        except error:
            result = None
        else:  # a monitor goes on, and says so; a trial in another number type need not succeed
            assert kind == "error"
            assert "monitor" in name or name == "rates"
            assert not result or result["status"] == "ok" or "planted" in result["text"]
    assert moments.count >= moments.at
    assert_same(before, facts_of(scene))
    assert scene.facts() == facts
    assert result_of(scene) == (
        pytest.approx(expected, rel=1e-3) if isinstance(expected, dict) else expected
    )


def test_a_fault_that_leaves_something_is_noticed():
    """Meta-test: a call that does not put a mode back."""
    scene = in_training()
    model, optimizer, x, _ = scene

    def careless():
        model.eval()
        model(x)
        model.train()
        model[2].eval()

    scene = Scene(model, optimizer, careless)
    before = facts_of(scene)
    careless()
    assert_same(before, facts_of(scene))
    with PLACES["forward"](model, Moments(3)), pytest.raises(Planted):
        careless()
    with pytest.raises(AssertionError):
        assert_same(before, facts_of(scene))
