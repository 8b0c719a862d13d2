"""What an audit concludes from numbers and their errors, planted by hand."""

import math

import pytest

import spiritlevel as sl
from spiritlevel.verbs.audit import Audit, cell

CONFIDENCE = ("logit_temperature", "weight_scale")


def planted(before, *, unexplored="", name="pac_bayes.sigma", **after):
    """An audit of one estimate, each time a value and its standard error, or a list of draws."""

    def report(value, stderr):
        settings = {"num_samples": 3, "rtol": 0.05}
        status = sl.results.Status.OK if math.isfinite(value) else sl.results.Status.NONFINITE
        m = sl.Measurement(
            name, value, exact=False, stderr=stderr, status=status, settings=settings
        )
        return sl.Report({m.name: m}, layers={}, settings=settings, cost=sl.results.Cost())

    moved = {
        move: [report(*draw) for draw in (values if isinstance(values, list) else [values])]
        for move, values in after.items()
    }
    absent = {move: "there is no head" for move in CONFIDENCE if move not in after}
    return Audit(
        report(*before),
        moved,
        moves=dict.fromkeys(moved, "…"),
        absent=absent,
        unexplored=unexplored,
    )


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ((1.0, 0.5), (2.0, 0.5), "open"),
        ((1.0, 0.01), (2.0, 0.01), "changes"),
        ((1.0, 0.001), (0.01, 0.001), "changes"),  # to shrink is to move, too
        ((1.0, 0.01), (1.03, 0.01), "unchanged"),
        ((1.0, 0.9), (1.001, 0.9), "unchanged"),  # the same random numbers met both
        # 3·√2·0.1 = 0.42 hides a factor of 1.35, which is what some measures move by
        ((1.0, 0.1), (1.35, 0.1), "open"),
        ((1.0, 0.02), (1.35, 0.02), "nearly"),
        # estimates that reached an rtol of 5 % are decided: 3·√2·0.0255 = 0.108
        ((1.0, 0.0255), (1.05, 0.0255), "unchanged"),
        ((1.0, 0.04), (1.05, 0.04), "open"),
        ((1.0, 0.01), (math.nan, 0.01), "open"),
        ((math.nan, 0.01), (1.0, 0.01), "open"),
        ((1.0, 0.01), (math.inf, 0.01), "open"),
    ],
)
def test_verdicts_when_errors_hide_the_move(before, after, kind):
    result = planted(before, layer_rescale=after)
    scale = result.verdict("pac_bayes.sigma").scale
    assert scale.kind == kind
    assert (cell(result, "pac_bayes.sigma", "layer_rescale") == "?") is (kind == "open")
    advice = "lower rtol, raise max_passes or use more samples"
    assert (advice in scale.text) is (kind == "open")
    assert (advice in str(result)) is (kind == "open")


SAME, WIDE, LITTLE, CLEAR = (1.0, 0.01), (1.2, 0.3), (1.4, 0.01), (3.0, 0.01)


@pytest.mark.parametrize(
    ("after", "kind", "scale", "confidence"),
    [
        ({"layer_rescale": LITTLE, "neuron_rescale": WIDE}, "open", "open", "untested"),
        ({"layer_rescale": CLEAR, "neuron_rescale": WIDE}, "scale", "changes", "untested"),
        ({"layer_rescale": SAME, "logit_temperature": WIDE}, "open", "unchanged", "open"),
        ({"layer_rescale": SAME, "logit_temperature": CLEAR}, "confidence", "unchanged", "changes"),
        ({"logit_temperature": WIDE, "weight_scale": CLEAR}, "confidence", "unchanged", "changes"),
        ({"layer_rescale": LITTLE, "logit_temperature": CLEAR}, "nearly", "nearly", "changes"),
        ({"layer_rescale": CLEAR, "logit_temperature": CLEAR}, "scale", "changes", "changes"),
        ({"layer_rescale": SAME, "logit_temperature": SAME}, "comparable", *["unchanged"] * 2),
        # what was not tried is not tested, however still the number stood under all the rest
        ({"layer_rescale": SAME}, "untested", "unchanged", "untested"),
        ({"layer_rescale": LITTLE}, "untested", "nearly", "untested"),
    ],
)
def test_scale_and_confidence_are_two_answers(after, kind, scale, confidence):
    verdict = planted(SAME, **after).verdict("pac_bayes.sigma")
    found = (verdict.kind, verdict.scale.kind, verdict.confidence.kind)
    assert found == (kind, scale, confidence)
    assert verdict.scale.text in verdict.text
    assert verdict.confidence.text in verdict.text


def test_nearly_comparable_still_says_how_far_confidence_moves_it():
    result = planted(SAME, layer_rescale=LITTLE, logit_temperature=(591.0, 0.01))
    assert "591 times under logit_temperature" in result.verdict("pac_bayes.sigma").text


def test_symmetries_that_were_missed_take_the_word_comparable_away():
    still = {"layer_rescale": SAME, "logit_temperature": SAME}
    assert planted(SAME, **still).verdict("pac_bayes.sigma").kind == "comparable"
    missed = planted(SAME, unexplored="5 further directions", **still)
    verdict = missed.verdict("pac_bayes.sigma")
    assert (verdict.kind, verdict.scale.kind) == ("untested", "untested")
    for text in (verdict.text, str(missed)):
        assert "5 further directions" in text
    little = planted(SAME, unexplored="5 more", layer_rescale=LITTLE, logit_temperature=SAME)
    assert little.verdict("pac_bayes.sigma").scale.kind == "untested"
    clear = planted(SAME, unexplored="5 more", layer_rescale=CLEAR, logit_temperature=SAME)
    assert clear.verdict("pac_bayes.sigma").kind == "scale"
    # by its definition this one depends on the function alone: there is nothing to test
    known = planted(SAME, unexplored="5 further directions", name="sensitivity.jacobian", **still)
    assert known.verdict("sensitivity.jacobian").kind == "comparable"


def test_the_worst_draw_decides():
    draws = [(1.1, 0.001), (0.02, 0.001), (4.0, 0.001)]
    result = planted((1.0, 0.001), layer_rescale=draws)
    assert result.factor("pac_bayes.sigma", "layer_rescale") == pytest.approx(0.02)
    assert result.after("pac_bayes.sigma", "layer_rescale").value == 0.02
    little = planted((1.0, 0.001), layer_rescale=[(1.2, 0.001), (1.3, 0.2)])
    assert little.verdict("pac_bayes.sigma").scale.kind == "open"  # the second could hide more


def test_without_any_move_nothing_was_tested():
    result = planted(SAME, unexplored="its gradient fails")
    verdict = result.verdict("pac_bayes.sigma")
    assert verdict.kind == "untested"
    assert "its gradient fails" in verdict.text


def test_a_number_that_vanishes_or_appears_is_the_strongest_move():
    def report(value):
        settings = {"num_samples": 3}
        m = sl.Measurement("head.trace", value, exact=True, settings=settings)
        return sl.Report({m.name: m}, layers={}, settings=settings, cost=sl.results.Cost())

    def audit(before, **after):
        moved = {move: [report(value)] for move, value in after.items()}
        return Audit(report(before), moved, moves=dict.fromkeys(moved, "…"), absent={})

    gone = audit(1.0, layer_rescale=50.0, neuron_rescale=0.0)
    assert gone.verdict("head.trace").scale.text == "0 times under neuron_rescale"
    new = audit(0.0, layer_rescale=50.0, unit_permute=0.0)
    assert new.verdict("head.trace").scale.text == "∞ times under layer_rescale"
    assert new.factor("head.trace", "unit_permute") == 1.0
