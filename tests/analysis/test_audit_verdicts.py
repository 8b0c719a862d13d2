"""What an audit concludes from numbers and their errors, planted by hand."""

import math

import pytest

import spiritlevel as sl
from spiritlevel.analysis.audit import Audit, cell


def planted(before, **after):
    """An audit of one estimate, each time a value and its standard error."""

    def report(value, stderr):
        settings = {"num_samples": 3, "rtol": 0.05}
        status = sl.results.Status.OK if math.isfinite(value) else sl.results.Status.NONFINITE
        m = sl.Measurement(
            "pac_bayes.sigma", value, exact=False, stderr=stderr, status=status, settings=settings
        )
        return sl.Report({m.name: m}, layers={}, settings=settings, cost=sl.results.Cost())

    moved = {move: report(*values) for move, values in after.items()}
    return Audit(report(*before), moved, moves=dict.fromkeys(moved, "…"), absent={})


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ((1.0, 0.5), (2.0, 0.5), "open"),
        ((1.0, 0.01), (2.0, 0.01), "scale"),
        ((1.0, 0.001), (0.01, 0.001), "scale"),  # to shrink is to move, too
        ((1.0, 0.01), (1.03, 0.01), "comparable"),
        ((1.0, 0.9), (1.001, 0.9), "comparable"),  # the same random numbers met both
        # 3·√2·0.1 = 0.42 hides a factor of 1.35, which is what some measures move by
        ((1.0, 0.1), (1.35, 0.1), "open"),
        ((1.0, 0.02), (1.35, 0.02), "nearly"),
        # estimates that reached an rtol of 5 % are decided: 3·√2·0.0255 = 0.108
        ((1.0, 0.0255), (1.05, 0.0255), "comparable"),
        ((1.0, 0.04), (1.05, 0.04), "open"),
        ((1.0, 0.01), (math.nan, 0.01), "open"),
        ((math.nan, 0.01), (1.0, 0.01), "open"),
        ((1.0, 0.01), (math.inf, 0.01), "open"),
    ],
)
def test_verdicts_when_errors_hide_the_move(before, after, kind):
    result = planted(before, layer_rescale=after)
    verdict = result.verdict("pac_bayes.sigma")
    assert verdict.kind == kind
    assert (cell(result, "pac_bayes.sigma", "layer_rescale") == "?") is (kind == "open")
    advice = "lower rtol, raise max_passes or use more samples"
    assert (advice in verdict.text) is (kind == "open")
    assert (advice in str(result)) is (kind == "open")


def test_a_move_that_is_open_is_not_passed_over():
    """What other moves leave alone or move a little decides nothing about it."""
    same, wide, little, clear = (1.0, 0.01), (1.2, 0.3), (1.4, 0.01), (3.0, 0.01)
    cases = [
        ({"layer_rescale": little, "neuron_rescale": wide}, "open", "(neuron_rescale)"),
        ({"layer_rescale": clear, "neuron_rescale": wide}, "scale", "under layer_rescale"),
        ({"layer_rescale": same, "logit_temperature": wide}, "open", "(logit_temperature)"),
        ({"logit_temperature": wide, "weight_scale": clear}, "confidence", "under weight_scale"),
        ({}, "open", "no move could be tried"),
    ]
    for after, kind, text in cases:
        verdict = planted(same, **after).verdict("pac_bayes.sigma")
        assert (verdict.kind, text in verdict.text) == (kind, True), after
    assert "Not decided: no move could be tried: pac_bayes.sigma." in str(planted(same))


def test_a_number_that_vanishes_or_appears_is_the_strongest_move():
    def report(value):
        settings = {"num_samples": 3}
        m = sl.Measurement("head.trace", value, exact=True, settings=settings)
        return sl.Report({m.name: m}, layers={}, settings=settings, cost=sl.results.Cost())

    def audit(before, **after):
        moved = {move: report(value) for move, value in after.items()}
        return Audit(report(before), moved, moves=dict.fromkeys(moved, "…"), absent={})

    gone = audit(1.0, layer_rescale=50.0, neuron_rescale=0.0)
    assert gone.verdict("head.trace").text.endswith("(0 times under neuron_rescale)")
    new = audit(0.0, layer_rescale=50.0, unit_permute=0.0)
    assert new.verdict("head.trace").text.endswith("(inf times under layer_rescale)")
    assert new.factor("head.trace", "unit_permute") == 1.0
