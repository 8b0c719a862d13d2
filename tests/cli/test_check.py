"""`spiritlevel check`: the reference values are right, are these, and a wrong one is noticed."""

import json
import math
import pathlib

import pytest
import torch
from torch.func import functional_call, hessian
from torch.nn import functional as F
from typer.testing import CliRunner

from spiritlevel.analysis.reference_problems import ALL
from spiritlevel.cli import check
from spiritlevel.cli.app import app

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "reference-values.md"
LOSSES = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}


def run(*args, code=0):
    result = CliRunner().invoke(app, ["check", *args], prog_name="spiritlevel")
    assert result.exit_code == code, result.output
    return result


def dense(problem):
    """The Hessian by torch's own nested derivatives, as blocks by parameter."""

    def loss(parameters):
        outputs = functional_call(problem.model, parameters, problem.inputs())
        return LOSSES[problem.loss](outputs, problem.targets())

    return hessian(loss)(dict(problem.model.named_parameters()))


@pytest.mark.parametrize("name", ALL)
def test_reference_traces_and_kappas_are_those_of_the_dense_hessian(name):
    problem, expected = ALL[name](torch.float64), check.reference()["values"][name]
    blocks = dense(problem)
    trace = kappa = 0.0
    for key, parameter in problem.model.named_parameters():
        block = blocks[key][key].reshape(parameter.numel(), parameter.numel())
        trace += block.trace().item()
        if key.endswith("weight"):  # Σ ⟨w_s, w_t⟩ Tr H_{s,t} over rows s, t
            rows = parameter.detach().flatten(1)
            size = rows.shape[1]
            traces = block.reshape(len(rows), size, len(rows), size).diagonal(dim1=1, dim2=3).sum(2)
            kappa += (traces * (rows @ rows.T)).sum().item()
    assert expected["curvature.trace"] == pytest.approx(trace, rel=1e-9)
    assert expected["relative.kappa"] == pytest.approx(kappa, rel=1e-9)


def test_this_installation_agrees(tmp_path):
    path = tmp_path / "reference.json"
    out = run("--json", str(path)).stdout
    expected = check.reference()
    assert f"all {sum(map(len, expected['values'].values()))} numbers agree" in out
    found = json.loads(path.read_text())
    assert {p: set(v) for p, v in found["values"].items()} == {
        p: set(v) for p, v in expected["values"].items()
    }


def test_the_page_is_what_is_in_docs():
    assert run("--markdown").stdout == PAGE.read_text(encoding="utf-8"), (
        "run: spiritlevel check --markdown > docs/reference-values.md"
    )


@pytest.mark.parametrize(
    ("problem", "factor", "noticed"),
    [("relu_mlp", 1 + 1e-8, True), ("relu_mlp", 1 + 1e-10, False), ("relu_mlp", math.nan, True),
     ("digits_mlp", 1 + 1e-3, True), ("digits_mlp", 1 + 1e-5, False)],
)  # fmt: skip
def test_a_difference_beyond_the_tolerance_is_noticed(problem, factor, noticed):
    expected = check.reference()["values"]
    found = {name: dict(values) for name, values in expected.items()}
    found[problem]["relative.kappa"] *= factor
    assert list(check.differences(found, expected)) == [(problem, "relative.kappa")] * noticed


def test_an_installation_that_differs_is_told_so(monkeypatch):
    wrong = check.reference()
    wrong["values"]["relu_mlp"]["head.trace"] *= 1.5
    monkeypatch.setattr(check, "reference", lambda: wrong)
    (line,) = run(code=1).stderr.splitlines()
    assert line.startswith("error: 1 of 49 numbers differ from the reference, head.trace of relu_m")
