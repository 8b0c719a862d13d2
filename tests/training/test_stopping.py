"""Each rule against stopping epochs found by hand, and against a counter written down naively."""

import math
import random

import numpy
import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.training import FlatnessStopping
from spiritlevel.training.stopping import log_trend


def stops_at(stopping: FlatnessStopping, *, losses=None, values=None) -> int | None:
    """The first epoch, from 0, at which it says so."""
    for epoch in range(len(losses if values is None else values)):
        loss = None if losses is None else losses[epoch]
        value = None if values is None else values[epoch]
        if stopping.update(epoch=epoch, loss=loss, flatness=value):
            return epoch
    return None


def naive(rule, patience, tolerance, losses, values):
    """The rules of section 5.6 with counters, as one would write them into a loop."""
    best, bad, calm, previous = math.inf, 0, 0, None
    for epoch, (loss, value) in enumerate(zip(losses, values, strict=True)):
        if loss < best:
            best, bad = loss, 0
        else:
            bad += 1
        if previous is not None:
            changed = abs(value - previous) / previous
            calm = calm + 1 if changed < tolerance else 0
        previous = value
        met = {"loss": bad >= patience, "flatness": calm >= patience}
        met["both"] = met["loss"] and met["flatness"]
        if met[rule]:
            return epoch
    return None


def test_loss_by_hand():
    stopping = FlatnessStopping(rule="loss", patience=3)
    assert stops_at(stopping, losses=[1.0, 0.5, 0.412, 0.6, 0.5, 0.412, 0.1]) == 5
    assert stopping.reason == (
        "validation loss has not improved for 3 epochs: best 0.412 at epoch 2"
    )
    assert (stopping.best_epoch, stopping.best_loss) == (2, 0.412)


def test_min_delta_by_hand():
    losses = [1.0, 0.95, 0.9, 0.8, 0.79, 0.78]  # by more than 0.1 only from 1.0 to 0.8
    assert stops_at(FlatnessStopping(rule="loss", patience=2, min_delta=0.1), losses=losses) == 2
    assert stops_at(FlatnessStopping(rule="loss", patience=3, min_delta=0.1), losses=losses) is None


def test_flatness_by_hand():
    # changes: 50 %, 1 %, 1 %, 10 %, 1 %, 1 %, 1 %
    values = [10.0, 5.0, 5.05, 5.0, 5.5, 5.5 * 0.99, 5.5, 5.5 * 1.01]
    stopping = FlatnessStopping(rule="flatness", patience=3, tolerance=0.02)
    assert stops_at(stopping, values=values) == 7
    assert stopping.reason == (
        "flatness has changed by less than 2 % in each of the last 3 epochs: 5.5 at "
        "epoch 4, 5.555 at epoch 7"
    )
    assert stopping.best_epoch is None


def test_both_must_be_met_at_one_epoch():
    losses = [1.0, 1.0, 1.0, 0.9, 0.9, 0.9, 0.9]
    values = [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0]
    for rule, epoch in (("loss", 2), ("flatness", 2), ("both", 2)):
        assert stops_at(FlatnessStopping(rule, patience=2), losses=losses, values=values) == epoch
    values[1] = 2.0  # now calm from epoch 4, when the loss has only just improved, then not
    stopping = FlatnessStopping("both", patience=2)
    assert stops_at(stopping, losses=losses, values=values) is None
    assert stopping.update(epoch=7, loss=1.0, flatness=2.0)
    assert "not improved for 4 epochs" in stopping.reason
    assert "; and flatness has changed by less than 2 %" in stopping.reason


@pytest.mark.parametrize("rule", ["loss", "flatness", "both"])
def test_random_runs_agree_with_plain_counters(rule):
    draw = random.Random(0)
    stopped = 0
    for _ in range(200):
        losses = [draw.choice([0.5, 0.6, 0.7, 0.8]) - 0.01 * n for n in range(30)]
        values = [1.0]
        for _ in range(29):
            values.append(values[-1] * (1 + draw.choice([0.01, -0.01, 0.015, 0.5])))
        patience = draw.choice([1, 2, 3, 5])
        expected = naive(rule, patience, 0.02, losses, values)
        stopping = FlatnessStopping(rule, patience=patience, tolerance=0.02)
        assert stops_at(stopping, losses=losses, values=values) == expected
        stopped += expected is not None
        assert expected is None or expected + 1 >= patience
    assert stopped > 20


# -- the trend ---------------------------------------------------------------------------------


def test_trend_is_the_line_that_numpy_fits():
    stats = pytest.importorskip("scipy.stats")
    draw = numpy.random.default_rng(0)
    values = numpy.exp(1 - 0.03 * numpy.arange(12) + 0.1 * draw.standard_normal(12))
    line = stats.linregress(numpy.arange(12), numpy.log(values))
    margin = stats.t.ppf(0.95, 10) * line.stderr
    found = log_trend(values.tolist(), confidence=0.9)
    expected = numpy.expm1([line.slope, line.slope - margin, line.slope + margin])
    numpy.testing.assert_allclose([found.change, found.low, found.high], expected, rtol=1e-6)
    mirrored = log_trend((-values).tolist(), confidence=0.9)
    assert mirrored == found


def test_a_steady_fall_stops_when_it_is_slow_enough():
    fast = [100 * 0.95**n for n in range(10)]  # 5 % an epoch
    slow = [fast[-1] * 0.99**n for n in range(1, 10)]
    stopping = FlatnessStopping("trend", patience=5)
    # of the last five values the line falls by 0.95^a·0.99^b an epoch, and it is straight only
    # when all five are slow: the kink in between makes the interval wide
    assert stops_at(stopping, values=fast + slow) == 13
    assert stopping.reason.startswith("flatness follows a trend of -1 % per epoch over the last 5")


def test_trend_stops_where_the_raw_rule_never_does():
    # the level settles at epoch 20 and single epochs jump by 5 %, as in the paper's runs
    draw = random.Random(1)
    raw, trend, early = 0, [], 0
    for _ in range(40):
        level = [math.exp(max(0.0, 2 - 0.1 * n)) for n in range(100)]
        values = [value * math.exp(draw.gauss(0, 0.05)) for value in level]
        raw += stops_at(FlatnessStopping("flatness"), values=values) is not None
        epoch = stops_at(FlatnessStopping("trend"), values=values)
        assert epoch is not None
        trend.append(epoch)
        early += epoch < 20
    assert raw == 0
    assert early == 0  # 10 % an epoch until then is no standstill
    assert sorted(trend)[20] < 35


def test_noise_alone_does_not_stop_a_moving_trend():
    draw = random.Random(2)
    for _ in range(20):
        values = [math.exp(-0.05 * n + draw.gauss(0, 0.2)) for n in range(40)]
        assert stops_at(FlatnessStopping("trend", patience=10), values=values) is None


@pytest.mark.parametrize("patience", [4, 7, 10])
@pytest.mark.parametrize("rule", ["loss", "flatness", "both", "trend"])
def test_never_before_patience_epochs(rule, patience):
    stopping = FlatnessStopping(rule, patience=patience)
    epoch = stops_at(stopping, losses=[1.0] * 20, values=[1.0] * 20)
    assert epoch == (patience - 1 if rule == "trend" else patience)


# -- odd values --------------------------------------------------------------------------------


def test_losses_that_are_not_finite_are_no_improvement():
    losses = [math.inf, math.nan, 3.0, math.nan, -math.inf, math.inf]
    stopping = FlatnessStopping("loss", patience=3)
    assert stops_at(stopping, losses=losses) == 5
    assert stopping.best_epoch == 2
    hopeless = FlatnessStopping("loss", patience=3)
    assert stops_at(hopeless, losses=[math.nan] * 5) == 2
    assert hopeless.reason == "validation loss was not finite in any of 3 epochs"


@pytest.mark.parametrize("odd", [math.nan, math.inf, 0.0])
def test_an_odd_flatness_starts_the_count_anew(odd):
    values = [1.0, 1.0, odd, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert stops_at(FlatnessStopping("flatness", patience=3), values=values) == 6
    assert stops_at(FlatnessStopping("trend", patience=4), values=values) == 6


def test_a_flatness_of_zero_is_stable():
    assert stops_at(FlatnessStopping("flatness", patience=3), values=[0.0] * 5) == 3
    assert stops_at(FlatnessStopping("trend", patience=4), values=[0.0] * 5) == 3


def test_a_flatness_that_changes_its_sign_is_not():
    assert stops_at(FlatnessStopping("trend", patience=4), values=[1e-9, -1e-9] * 10) is None


# -- best weights and resuming -----------------------------------------------------------------


def test_best_weights_come_back():
    model = nn.Linear(2, 2)
    stopping = FlatnessStopping("loss", patience=2, restore_best=True)
    best = None
    for epoch, loss in enumerate([1.0, 0.5, 0.7, 0.6]):
        with torch.no_grad():
            model.weight.fill_(epoch)
        best = model.weight.clone() if epoch == 1 else best
        stopped = stopping.update(epoch=epoch, loss=torch.tensor(loss), model=model)
    assert stopped
    stopping.restore(model)
    assert torch.equal(model.weight, best)
    resumed = FlatnessStopping("loss", patience=2, restore_best=True)
    resumed.load_state_dict(stopping.state_dict())
    nn.init.zeros_(model.weight)
    resumed.restore(model)
    assert torch.equal(model.weight, best)


@pytest.mark.parametrize("rule", ["loss", "flatness", "both", "trend"])
def test_resuming_anywhere_stops_at_the_same_epoch(rule):
    draw = random.Random(4)
    losses = [1.0 / (n + 1) for n in range(8)] + [1.0] * 20
    values = [100 * 0.8 ** min(n, 10) * math.exp(draw.gauss(0, 0.002)) for n in range(28)]
    straight = FlatnessStopping(rule, patience=5)
    expected = stops_at(straight, losses=losses, values=values)
    assert expected is not None
    for cut in range(expected):
        stopping = FlatnessStopping(rule, patience=5)
        for epoch in range(expected + 1):
            if epoch == cut:
                state = stopping.state_dict()
                stopping = FlatnessStopping(rule, patience=5)
                stopping.load_state_dict(state)
            stop = stopping.update(epoch=epoch, loss=losses[epoch], flatness=values[epoch])
            assert stop == (epoch == expected)
        assert stopping.reason == straight.reason


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rule": "sharpness"}, r"one of flatness, loss, both, trend\. Got 'sharpness'"),
        ({"patience": 0}, r"at least 1 for the rule 'loss'\. Got 0"),
        ({"patience": 2.5}, r"at least 1.*Got 2\.5"),
        ({"rule": "trend", "patience": 3}, r"at least 4 for the rule 'trend'\. Got 3"),
        ({"tolerance": 0.0}, r"above 0\. Got 0\.0"),
        ({"tolerance": math.nan}, r"above 0\. Got nan"),
        ({"min_delta": -1.0}, r"at least 0\. Got -1\.0"),
        ({"confidence": 1.0}, r"between 0 and 1\. Got 1\.0"),
    ],
)
def test_bad_arguments(change, text):
    with pytest.raises(sl.SpiritlevelError, match=text):
        FlatnessStopping(**({"rule": "loss"} | change))


@pytest.mark.parametrize("rule", ["loss", "both"])
def test_a_rule_without_validation_data(rule):
    stopping = FlatnessStopping(rule)
    with pytest.raises(
        sl.SpiritlevelError,
        match=rf"The rule '{rule}' needs the loss on validation data\. Got loss=None at epoch 3.*"
        r"choose rule='flatness' or 'trend'\.",
    ):
        stopping.update(epoch=3, flatness=1.0)
    assert stopping.state_dict()["epochs"] == []


@pytest.mark.parametrize("rule", ["flatness", "both", "trend"])
def test_a_rule_without_flatness(rule):
    with pytest.raises(sl.SpiritlevelError, match=rf"The rule '{rule}' needs a flatness.*epoch 3"):
        FlatnessStopping(rule).update(epoch=3, loss=1.0)


def test_restore_best_needs_loss_and_model():
    stopping = FlatnessStopping("flatness", restore_best=True)
    with pytest.raises(sl.SpiritlevelError, match=r"'flatness' with restore_best needs the loss"):
        stopping.update(epoch=0, flatness=1.0)
    with pytest.raises(sl.SpiritlevelError, match=r"restore_best needs the model\. Got model=None"):
        stopping.update(epoch=0, flatness=1.0, loss=1.0)
    with pytest.raises(sl.SpiritlevelError, match=r"no best weights.*restore_best=True and 0 upd"):
        stopping.restore(nn.Linear(1, 1))


def test_epochs_must_grow():
    stopping = FlatnessStopping("loss")
    stopping.update(epoch=2, loss=1.0)
    with pytest.raises(
        sl.SpiritlevelError, match=r"'epoch' argument must be larger.* Got 2 after 2"
    ):
        stopping.update(epoch=2, loss=1.0)
