"""The fuzzer itself: truths that are right, wrong numbers that are noticed, cases that shrink."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fresh
from fuzz import expected, judge
from fuzz.case import Case, Node
from fuzz.generate import random_case
from fuzz.judge import Verdict
from fuzz.oracle import Truth
from fuzz.parts.functions import SavedSlope, ScaledGradient
from fuzz.parts.layers import BareMatrix
from fuzz.program import as_program
from fuzz.shrink import shrink
from fuzz.tally import Tally


def run(model, batch):
    return model(batch[0]), batch[1]


def truth_of(model, loss=F.cross_entropy):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(6, 4, generator=g, dtype=torch.float64)
    y = torch.randint(3, (6,), generator=g)
    return Truth(model.double().eval(), [(x[:2], y[:2]), (x[2:], y[2:])], run, loss), x


def network(middle):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), middle, nn.Linear(4, 3))


# -- the truth -------------------------------------------------------------------------------


def test_truth_of_one_linear_layer():
    torch.manual_seed(0)
    model = nn.Linear(4, 3, bias=False).double()
    truth, x = truth_of(model)
    p = model(x).softmax(dim=1).detach()
    A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    by_hand = torch.stack([torch.kron(a, torch.outer(v, v)) for a, v in zip(A, x, strict=True)])
    assert torch.allclose(truth.hessian(), by_hand.mean(dim=0), rtol=1e-12, atol=1e-14)
    assert truth.source == "double backward"
    J = truth.jacobian()
    assert torch.allclose(J.T @ truth.output_hessian() @ J, truth.hessian(), atol=1e-14)
    W, squares = model.weight.detach(), x.square()
    curvature = torch.einsum("ij,nik,kj->nj", W, A, W)
    values = expected.of_matrix(truth, truth.hessian(), ("relative.kappa", "neuron.rho_sum"))
    kappa = float((curvature.sum(dim=1) * squares.sum(dim=1)).mean())
    assert values["relative.kappa"].whole.value == pytest.approx(kappa, rel=1e-12)
    rho = float((curvature * squares).sum(dim=1).mean())
    assert values["neuron.rho_sum"].whole.value == pytest.approx(rho, rel=1e-12)


def test_truth_of_a_wrong_second_derivative():
    right, _ = truth_of(network(nn.Tanh()))
    wrong, _ = truth_of(network(SavedSlope()))
    H = right.hessian()
    assert not torch.allclose(wrong.double_backward(), H, rtol=1e-3)  # what torch would say
    assert torch.allclose(wrong.hessian(), H, atol=1e-8)  # differences of gradients
    assert wrong.source == "differences of gradients"


def test_truth_of_a_wrong_gradient():
    right, _ = truth_of(network(nn.Identity()))
    wrong, _ = truth_of(network(ScaledGradient()))
    blocks = torch.block_diag(*(torch.ones(p.numel(), p.numel()) for p in right.start))
    # fourth-order differences with a step of 2e-3: 1e-16 / 4e-6 of the loss
    assert torch.allclose(wrong.hessian(), right.hessian() * blocks, atol=1e-8)
    assert wrong.source == "differences of the loss"


def test_truth_at_a_kink_is_what_torch_takes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)).double()
    truth = Truth(model, [(torch.zeros(2, 4).double(), torch.tensor([0, 1]))], run, F.cross_entropy)
    assert torch.isfinite(truth.hessian()).all()
    assert truth.source.startswith("double backward")


# -- the judge -------------------------------------------------------------------------------

PLAIN = Case(seed=3, stem="rows", body=(Node("relu"),), readout="linear")
SMOOTH = Case(seed=3, stem="rows", body=(Node("tanh"),), readout="linear")
NORMED = Case(seed=3, stem="rows", body=(Node("layernorm"), Node("tanh")), readout="linear")


def test_right_numbers_are_right():
    verdict = judge.judge(PLAIN)
    assert verdict.outcome == "right"
    assert verdict.exact == 3  # the whole and two layers


def test_a_normalization_bends_what_is_before_it():
    case = Case(seed=3, stem="rows", body=(Node("layernorm"), Node("relu")), readout="linear")
    verdict = judge.judge(case)
    assert verdict.outcome == "right"
    assert (verdict.exact, verdict.unconfirmed) == (2, 0)  # the last layer and the normalization


def spoiled(change):
    """A call whose report is changed afterwards."""

    def call(case, names, seed):
        report, pairs = UNSPOILED(case, names, seed)
        for name, m in report.items():
            report.measurements[name] = dataclasses.replace(m, **change(m))
        return report, pairs

    return call


UNSPOILED = judge.call


@pytest.mark.parametrize(
    ("case", "change", "failure"),
    [
        (PLAIN, lambda m: {"value": m.value * (1 + 1e-6)}, "'exact'"),
        (SMOOTH, lambda m: {"exact": True, "value": 1.1 * m.value}, "'exact'"),
        (NORMED, lambda m: {"interval": (m.value + 9, m.value + 10)}, "0 of 12 intervals"),
    ],
)
def test_wrong_numbers_are_noticed(monkeypatch, case, change, failure):
    monkeypatch.setattr(judge, "call", spoiled(change))
    verdict = judge.judge(case)
    assert verdict.outcome == "failed"
    assert failure in verdict.failures[0]


def disturbed(disturb):
    def call(case, names, seed):
        answer = UNSPOILED(case, names, seed)
        disturb(names["model"])
        return answer

    return call


@pytest.mark.parametrize(
    ("disturb", "what"),
    [
        (lambda model: model[0].weight.data.mul_(1 + 1e-15), "parameter 0.weight"),
        (lambda model: setattr(model[0].bias, "grad", None), "grad of 0.bias"),
        (lambda model: model.train(), "mode of ''"),
        (lambda model: model[0].register_forward_hook(print), "hooks of '0'"),
        (lambda model: model[0].weight.requires_grad_(False), "requires_grad of 0.weight"),
        (lambda model: torch.rand(1), "torch's random state"),
        (lambda model: torch.backends.mha.set_fastpath_enabled(False), "flags"),
    ],
)
def test_changed_models_are_noticed(monkeypatch, disturb, what):
    fast = torch.backends.mha.get_fastpath_enabled()
    monkeypatch.setattr(judge, "call", disturbed(disturb))
    verdict = judge.judge(PLAIN)
    torch.backends.mha.set_fastpath_enabled(fast)
    assert verdict.outcome == "failed"
    assert f"changed: {what}" in verdict.failures


def test_other_exceptions_are_failures(monkeypatch):
    def call(case, names, seed):
        raise KeyError("weight")

    monkeypatch.setattr(judge, "call", call)
    assert judge.judge(PLAIN).failures == ["raised KeyError: 'weight'"]


def test_refusing_everything_is_noticed():
    tally = Tally()
    for number in range(60):
        tally.add(random_case(number), Verdict("refused", refusal="No."))
    assert any("of 60" in text or "refused" in text for text in tally.complaints())


def test_never_exact_is_noticed():
    tally = Tally()
    for _ in range(20):
        tally.add(PLAIN, Verdict("right", inside=3))
    assert tally.complaints() == ["0 of 20 piecewise linear networks are exact"]


def test_intervals_that_are_too_narrow_are_noticed():
    tally = Tally()
    for _ in range(100):
        tally.add(SMOOTH, Verdict("right", inside=3, outside=1))
    assert tally.complaints() == ["100 of 400 intervals miss the truth"]


# -- cases -----------------------------------------------------------------------------------


def test_cases_survive_as_text():
    for number in range(100):
        case = random_case(number)
        assert Case.from_json(case.to_json()) == case


def test_a_case_is_made_small():
    """A network counts as failing while a tanh stands inside a residual part."""

    def judged(case):
        inside = [n for node in case.body if node.kind == "residual" for n in node.inner[0]]
        failing = any(node.kind == "tanh" for node in inside)
        return Verdict("failed", ["'exact' but wrong"]) if failing else Verdict("right")

    inner = (Node("linear"), Node("tanh"), Node("layer_scale", {"gain": 1e-4}, ((Node("relu"),),)))
    case = Case(
        seed=5,
        stem="bag_max",
        body=(Node("linear"), Node("residual", {}, (inner,)), Node("gelu")),
        readout="bounded",
        loss="mse",
        dtype="float32",
        sizes=(4, 1, 2),
        measures=("curvature.trace", "relative.kappa"),
        method="split",
    )
    small, verdict = shrink(case, judged)
    assert small == Case(
        seed=0,
        stem="rows",
        body=(Node("residual", {}, ((Node("tanh"),),)),),
        readout="linear",
        sizes=(1,),
        measures=small.measures,
    )
    assert len(small.measures) == 1
    assert verdict.failures == ["'exact' but wrong"]


def test_a_case_is_a_program_of_its_own(tmp_path):
    """It prints the traces of two layers twice: as the library and as plain torch find them."""
    body = (Node("bare_matrix"), Node("relu"))
    case = Case(seed=1, stem="rows", body=body, readout="linear", loss="class_weights")
    program = tmp_path / "program.py"
    program.write_text(as_program(case, ["what went wrong"]), encoding="utf-8")
    answer = fresh.run(program, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    values = {}
    for line in answer.stdout.splitlines():
        name, _, rest = line.partition(": ")
        values[name] = rest.removeprefix("trace ").replace(",", "").split()
    by_library = float(values["curvature.trace of 1"][0])
    by_torch = float(values["1.matrix"][0]) + float(values["1.shift"][0])
    assert by_library == pytest.approx(by_torch, rel=1e-6)  # differences with a step of 1e-5
    assert BareMatrix.__doc__ in program.read_text("utf-8")
