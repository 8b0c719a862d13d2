"""`spiritlevel audit` and `spiritlevel compare`, as a user types them."""

import json

import pytest
import torch

import spiritlevel as sl
from command_line import run
from spiritlevel.cli import subject
from spiritlevel.inputs.models import build
from spiritlevel.verbs import comparison

pytestmark = pytest.mark.sampled(4)  # the others at night

FEW = ("--model", "mlp", "--model-arg", "hidden=8,8", "--samples", "60")
MEASURES = ("--measures", "curvature.trace", "--measures", "neuron.rho_sum")


@pytest.fixture
def checkpoints(tmp_path):
    paths = []
    for seed in range(2):
        path = tmp_path / f"seed{seed}.pt"
        torch.save(build("mlp", seed=seed, hidden=(8, 8)).state_dict(), path)
        paths.append(path)
    return paths


def test_audit_prints_a_table_and_sentences():
    out = run("audit", *FEW, *MEASURES).stdout
    lines = out.splitlines()
    (trace,) = [line for line in lines if line.startswith(" curvature.trace") and "scale" in line][
        :1
    ]
    assert len(trace.split()) >= 4
    words = " ".join(out.split())
    assert "layer_rescale" in words
    assert "curvature.trace changes changes scale" in words  # by scale, and by confidence
    assert "neuron.rho_sum unchanged changes confidence" in words
    assert max(map(len, lines)) <= 80


def test_audit_as_json():
    result = run("audit", *FEW, *MEASURES, "--json", "-")
    audit = sl.results.Audit.from_json(result.stdout)
    assert audit.verdict("curvature.trace").kind == "scale"
    assert json.loads(result.stdout)["verdicts"]["neuron.rho_sum"]["kind"] == "confidence"


def test_audit_of_chosen_layers_by_a_chosen_method():
    """The trace of one layer, as random directions see it: an estimate with an error."""
    chosen = ("--measures", "curvature.trace", "--json", "-")
    estimate = ("--method", "hutchinson", "--layers", "fc2", "--max-passes", "20")
    audit = sl.results.Audit.from_json(run("audit", *FEW, *chosen, *estimate).stdout)
    exact = sl.results.Audit.from_json(run("audit", *FEW, *chosen, "--layers", "fc2").stdout)
    for report in (audit.original, *audit.moved["layer_rescale"]):
        assert list(report.layers["curvature.trace"]) == ["fc2"]
        assert report["curvature.trace"].stderr
    found, truth = audit.original["curvature.trace"], exact.original["curvature.trace"]
    assert truth.exact
    assert abs(found.value - truth.value) < 5 * found.stderr


def test_compare_chosen_layers_by_a_chosen_method(checkpoints, tmp_path):
    out = tmp_path / "comparison.json"
    args = ("--measures", "curvature.trace", "--no-match", "--json", out, "--max-passes", "20")
    run("compare", *checkpoints, *FEW, *args, "--method", "hutchinson", "--layers", "fc2")
    found = sl.results.Comparison.from_json(out.read_text())
    run("compare", *checkpoints, *FEW, *args, "--layers", "fc2", "--overwrite")
    exact = sl.results.Comparison.from_json(out.read_text())
    for name in ("seed0", "seed1"):
        estimate, truth = (c.reports[name]["curvature.trace"] for c in (found, exact))
        assert list(found.reports[name].layers["curvature.trace"]) == ["fc2"]
        assert truth.exact
        assert 0 < abs(estimate.value - truth.value) < 5 * estimate.stderr


def test_compare_two_checkpoints(checkpoints, tmp_path):
    out = tmp_path / "comparison.json"
    first, second = checkpoints
    result = run("compare", first, f"other={second}", *FEW, *MEASURES, "--json", out)
    words = " ".join(result.stdout.split())
    assert "curvature.trace" not in words  # what scale changes is not shown before it is asked for
    verbose = run("compare", first, f"other={second}", *FEW, *MEASURES, "--verbose").stdout
    assert "curvature.trace" in verbose
    found = sl.results.Comparison.from_json(out.read_text())
    assert list(found.reports) == ["seed0", "other"]
    assert (found.answer().measure, found.answer().matched) == ("relative.kappa", True)
    run("compare", first, second, *FEW, *MEASURES, "--no-match")


def test_ctrl_c_keeps_what_was_measured(checkpoints, monkeypatch):
    real, calls = subject.load, []

    def load(network, on, at):
        calls.append(network.checkpoint)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(network, on, at)

    monkeypatch.setattr(subject, "load", load)
    names = [f"{name}={checkpoints[i % 2]}" for i, name in enumerate("abc")]
    result = run("compare", *names, *FEW, *MEASURES, code=130)
    assert "interrupted; left out because not measured: c" in result.stderr
    assert "'a' and 'b'" in result.stdout or "'b' and 'a'" in result.stdout


def test_ctrl_c_at_equal_confidence_keeps_what_was_measured(checkpoints, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "matched_comparison", interrupted)
    out = " ".join(run("compare", *checkpoints, *FEW, *MEASURES, code=130).stdout.split())
    assert "as the networks are: 1 " in out
    assert "Not compared at equal confidence: it was interrupted." in out


def test_settings_reach_the_measures(checkpoints, tmp_path):
    out = tmp_path / "report.json"
    args = ("--measures", "sharpness.worst", "--measures", "norms.distance", "--json", out)
    settings = ("--option", "rho=0.2", "--option", f"initial={checkpoints[0]}")
    run("measure", *FEW, "--checkpoint", checkpoints[1], *args, *settings)
    report = sl.Report.from_json(out.read_text())
    assert report["sharpness.worst"].settings["rho"] == 0.2
    weights = [torch.load(path, weights_only=True) for path in checkpoints]
    apart = sum((weights[0][name] - weights[1][name]).square().sum() for name in weights[0]) ** 0.5
    assert report["norms.distance"].value == pytest.approx(float(apart), rel=1e-5)  # float32 sums


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["compare", "a.pt"], "at least two checkpoints. Got 1"),
        (["compare", "x=a.pt", "x=b.pt"], "The name 'x' is given to two checkpoints"),
        (["measure", "--option", "rho"], "as in --option rho=0.1. Got 'rho'"),
        (["measure", "--option", "rhoo=1"], "has no option 'rhoo'. Did you mean 'rho'?"),
        (
            ["audit", "--option", "rho=-1"],
            "The option 'rho' must be a number from 1e-30 to 1e+30. Got -1",
        ),
        (["measure", "--measures", "norms.distance"], "initial"),
        (["audit", "--measures", "head.kapa"], "Did you mean 'head.kappa'"),
    ],
)
def test_refusals(args, expected):
    is_wrong = args[0] == "compare" or args[-1] == "rho"  # the command line itself
    result = run(*args, *FEW, code=2 if is_wrong else 1)
    (line,) = result.stderr.strip().splitlines()
    assert expected in line
