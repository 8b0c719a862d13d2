"""Reports: as JSON, as a data frame, as a table."""

import json
import math

import pytest

import spiritlevel as sl
from zoo.cases import CASES

pytestmark = pytest.mark.sampled(2)  # the others at night


@pytest.fixture(scope="module")
def report():
    """All there is: values exact, of the GGN, with a standard error, with a residual."""
    model, batches = CASES["tied_in_series"].make()
    return sl.measure(model, batches, measures="*.*", method="exact", max_passes=20)


def assert_same_report(one, other):
    assert list(one) == list(other)
    assert one.settings == other.settings
    assert one.cost == other.cost
    for name in one:
        assert one[name] == other[name], name
    assert one.layers == other.layers


def test_what_is_left_out_is_named_by_what_it_needs():
    needs = {"a.b": "a softmax. Got 'mse'.", "a.c": "a head: one layer.", "d.e": "a softmax"}
    reasons = {name: f"The measure {name!r} needs {need}" for name, need in needs.items()}
    reasons |= dict.fromkeys("pqrst", "It is 0.5 by definition.")
    settings = {"num_samples": 1, "left_out": reasons}
    report = sl.Report({}, layers={}, settings=settings, cost=sl.results.Cost())
    assert str(report).splitlines()[-3:] == [
        "left out, since they need a softmax: a.b, d.e",
        "left out, since it needs a head: a.c",
        "left out, since they do not apply: p, q, r and 2 more",
    ]


def test_a_report_survives_json(report):
    text = report.to_json()
    assert_same_report(sl.Report.from_json(text), report)
    assert json.loads(text)["format"] == "spiritlevel-report-1"
    assert report.layers["relative.kappa"]["a"].status is sl.results.Status.GGN
    assert len(report["curvature.trace_squared"].interval) == 2
    assert report["curvature.lambda_max"].residual > 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1, 1e-300])
def test_any_float_survives_json(value):
    errors = {"stderr": value, "interval": (value, value), "residual": value, "data_stderr": value}
    found = sl.Measurement("a.b", value, exact=False, **errors)
    report = sl.Report(
        {"a.b": found}, layers={}, settings={"num_samples": 1}, cost=sl.results.Cost()
    )
    text = report.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    back = sl.Report.from_json(text)["a.b"]
    for found in (back.value, back.stderr, *back.interval, back.residual, back.data_stderr):
        assert found == value or (math.isnan(found) and math.isnan(value))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "other"}', '{"format": "spiritlevel-report-1"}', "null"],
)
def test_what_is_no_report_is_refused(text):
    with pytest.raises(sl.SpiritlevelError, match=r"what Report\.to_json wrote.*failed with: "):
        sl.Report.from_json(text)


def test_a_report_becomes_a_frame(report):
    pytest.importorskip("pandas", reason="data frames need pandas")
    frame = report.to_frame().set_index(["measure", "layer"])
    rows = len(report) + sum(len(rows) for rows in report.layers.values())
    assert len(frame) == rows
    assert frame.loc[("curvature.trace", ""), "value"] == report["curvature.trace"].value
    layer = report.layers["relative.kappa"]["a"]
    assert frame.loc[("relative.kappa", "a"), "value"] == layer.value
    assert frame.loc[("relative.kappa", "a"), "status"] == "ggn"
    assert not frame.loc[("relative.kappa", "a"), "exact"]
    errors = {"curvature.trace_squared": "stderr", "scaled.lambda_max": "residual"}
    for measure, error in errors.items():
        assert frame.loc[(measure, ""), error] == getattr(report[measure], error) > 0


def test_a_report_prints_as_a_table(report):
    lines = str(report).splitlines()
    assert lines[0].split() == ["measure", "value", "±", "data", "note"]
    notes = [line for line in lines if line.startswith("[")]
    left_out = [line for line in lines if line.startswith("left out, since ")]
    assert len(lines) == len(report) + len(notes) + len(left_out) + 3
    assert lines[-len(left_out) :] == left_out
    assert "left out, since it needs the weights from before training: norms.distance" in left_out
    line = next(line for line in lines if line.startswith("softmax.gini"))
    assert f"{report['softmax.gini'].value:.6g}" in line
    assert "exact" in line
    line = next(line for line in lines if line.startswith("curvature.lambda_max"))
    assert f"± {report['curvature.lambda_max'].residual:.2g}" in line
    assert lines[-len(left_out) - 1].startswith("7 samples, ")


def test_a_measurement_without_any_claim_is_refused():
    with pytest.raises(sl.SpiritlevelError, match=r"'a\.b' must carry a stderr.*Got value=3\.0"):
        sl.Measurement("a.b", 3.0, exact=False)
