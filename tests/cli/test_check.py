"""`spiritlevel check`: the reference values are right, are these, and a wrong one is noticed."""

import functools
import json
import math

import pytest
import torch
from torch.func import functional_call, hessian, jacrev
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import command_line
from spiritlevel.cli import check_values
from spiritlevel.verbs.reference_problems import ALL

pytestmark = pytest.mark.sampled(2)  # the others at night

LOSSES = {"cross_entropy": F.cross_entropy, "mse": F.mse_loss}


run = functools.partial(command_line.run, "check")


def dense(problem):
    """The Hessian by torch's own nested derivatives, as blocks by parameter."""

    def loss(parameters):
        outputs = functional_call(problem.model, parameters, problem.inputs())
        return LOSSES[problem.loss](outputs, problem.targets())

    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivatives
        return hessian(loss)(dict(problem.model.named_parameters()))


def by_double_backward(problem):
    """The whole Hessian, row by row.

    Of attention, torch.func's forward derivatives of gradients give a matrix that is not symmetric.
    """
    parameters = list(problem.model.parameters())
    with sdpa_kernel(SDPBackend.MATH):
        loss = LOSSES[problem.loss](problem.model(problem.inputs()), problem.targets())
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        rows = [
            torch.autograd.grad(each, parameters, retain_graph=True, materialize_grads=True)
            for gradient in gradients
            for each in gradient.flatten()
        ]
    whole = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    torch.testing.assert_close(whole, whole.T)
    return whole


@pytest.mark.parametrize("name", ALL)
def test_reference_traces_and_kappas_are_those_of_the_dense_hessian(name):
    problem, expected = ALL[name](torch.float64), check_values.reference()["values"][name]
    blocks = dense(problem)
    trace = kappa = 0.0
    for key, parameter in problem.model.named_parameters():
        block = blocks[key][key].reshape(parameter.numel(), parameter.numel())
        trace += block.trace().item()
        if key.endswith("weight") and parameter.dim() > 1:  # Σ ⟨w_s, w_t⟩ Tr H_{s,t} over rows s, t
            rows = parameter.detach().flatten(1)
            size = rows.shape[1]
            traces = block.reshape(len(rows), size, len(rows), size).diagonal(dim1=1, dim2=3).sum(2)
            kappa += (traces * (rows @ rows.T)).sum().item()
    for measure, value in {"curvature.trace": trace, "relative.kappa": kappa}.items():
        if measure in expected:
            assert expected[measure] == pytest.approx(value, rel=1e-9)


def test_reference_of_attention_is_that_of_dense_matrices():
    """It bends, so its trace takes probes; the largest eigenvalue and the GGN do not."""
    problem, expected = (
        ALL["attention"](torch.float64),
        check_values.reference()["values"]["attention"],
    )
    whole = by_double_backward(problem)
    largest = torch.linalg.eigvalsh(whole)[-1].item()
    assert expected["curvature.lambda_max"] == pytest.approx(largest, rel=1e-9)
    x = problem.inputs()
    of_outputs = jacrev(lambda w: functional_call(problem.model, w, x))(
        dict(problem.model.named_parameters())
    )
    J = torch.cat([part.flatten(2) for part in of_outputs.values()], dim=2)  # (N, C, P)
    p = problem.model(x).detach().softmax(dim=1)
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    trace = torch.einsum("ncp,ncd,ndp->", J, A, J).item() / len(x)
    assert expected["curvature.ggn_trace"] == pytest.approx(trace, rel=1e-9)


def test_this_installation_agrees(tmp_path):
    path = tmp_path / "reference.json"
    out = run("--json", str(path)).stdout
    expected = check_values.reference()
    assert f"all {sum(map(len, expected['values'].values()))} numbers agree" in out
    found = json.loads(path.read_text())
    assert {p: set(v) for p, v in found["values"].items()} == {
        p: set(v) for p, v in expected["values"].items()
    }


@pytest.mark.parametrize(
    ("problem", "factor", "noticed"),
    [("relu_mlp", 1 + 1e-8, True), ("relu_mlp", 1 + 1e-10, False), ("relu_mlp", math.nan, True),
     ("digits_mlp", 1 + 1e-3, True), ("digits_mlp", 1 + 1e-5, False)],
)  # fmt: skip
def test_a_difference_beyond_the_tolerance_is_noticed(problem, factor, noticed):
    expected = check_values.reference()["values"]
    found = {name: dict(values) for name, values in expected.items()}
    found[problem]["relative.kappa"] *= factor
    assert (
        list(check_values.differences(found, expected)) == [(problem, "relative.kappa")] * noticed
    )


def test_an_installation_that_differs_is_told_so(monkeypatch):
    wrong = check_values.reference()
    wrong["values"]["relu_mlp"]["head.trace"] *= 1.5
    monkeypatch.setattr(check_values, "reference", lambda: wrong)
    (line,) = run(code=1).stderr.splitlines()
    assert line.startswith("error: 1 of 67 numbers differ from the reference, head.trace of relu_m")


# -- a device ---------------------------------------------------------------------------------


def test_a_device_that_computes_right_is_told_so(tmp_path):
    path = tmp_path / "device.json"
    out = run("--device", "cpu", "--json", str(path)).stdout
    numbers = sum(len(check_values.reference()["values"][name]) for name in ALL)
    assert f"all {numbers} numbers agree to 1e-04" in out
    assert "float32 on cpu" in out
    assert out.count(" ok") == numbers  # the verdicts are not cut off at 80 columns
    found = json.loads(path.read_text(encoding="utf-8"))
    assert len(found["rows"]) == numbers
    assert max(row["error"] for row in found["rows"]) < 1e-5


def test_a_device_that_computes_wrong_fails(monkeypatch):
    wrong = check_values.reference()
    wrong["values"]["attention"]["head.trace"] *= 1.001
    monkeypatch.setattr(check_values, "reference", lambda: wrong)
    result = run("--device", "cpu", code=1)
    assert result.stdout.count("WRONG") == 1
    assert "head.trace of attention most: by 1.0e-03 of its value" in " ".join(
        result.stderr.split()
    )


def test_no_number_is_wrong():
    nothing = check_values.Agreement("relu_mlp", "head.trace", 1.0, math.nan)
    assert not nothing.agrees
    fine = check_values.Agreement("relu_mlp", "head.trace", 1.0, 1.0)
    assert check_values.worst([fine, nothing]) is nothing
    assert check_values.as_dict([nothing], {})["rows"][0]["found"] is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
def test_cuda_agrees_and_shows_what_faster_arithmetic_costs():
    out = run("--device", "cuda").stdout
    assert "numbers agree to 1e-04" in out
    assert "arithmetic='tf32' is off by" in out
    assert "arithmetic='bf16' is off by" in out


def test_a_device_that_is_not_there_is_refused():
    (line,) = run("--device", "cuda:77", code=1).stderr.splitlines()
    assert line.startswith("error: The --device 'cuda:77' cannot be used: ")
