"""The head in closed form: hand-computed examples of paper 000, dense Hessians, finding it."""

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.testing import references
from zoo.cases import CASES
from zoo.losses import LOSSES
from zoo.wirings import ConvHead

MEASURES = [
    *("head.trace", "head.kappa", "head.trace_squared", "head.lambda_max"),
    "head.scaled_lambda_max",
]


def image(rows):
    """One sample of one channel from a list of rows, or of several from a list of those."""
    x = torch.tensor(rows, dtype=torch.float64)
    return x[None, None] if x.dim() == 2 else x[None]


# Example 1 of Appendix A: one 3×3 channel, two 2×2 kernels, stride 1, no padding.
PIXELS = [[1, 2, 0], [0, 1, 3], [2, 1, 1]]
KERNEL_1 = [[1, 0], [-1, 2]]
KERNEL_2 = [[0, 1], [1, -1]]


def test_example_1_of_paper_000():
    # The four patches (x11, x12, x21, x22), each read left to right, top to bottom:
    #   φ1 = (1, 2, 0, 1)   φ2 = (2, 0, 1, 3)   φ3 = (0, 1, 2, 1)   φ4 = (1, 3, 1, 1)
    # their mean φ̄ = (4, 6, 4, 6) / 4, and ‖φ̄‖² = (16 + 36 + 16 + 36) / 16 = 6.5
    phi = [4 / 4, 6 / 4, 4 / 4, 6 / 4]
    phi_squared = (4**2 + 6**2 + 4**2 + 6**2) / 16
    assert phi_squared == 6.5
    # Logits by pooling: z1 = φ̄·(1, 0, -1, 2) = 1 - 1 + 3 = 3, z2 = φ̄·(0, 1, 1, -1) = 1.5 + 1 - 1.5
    z1, z2 = 3.0, 1.0
    assert 1 * phi[0] + 0 * phi[1] - 1 * phi[2] + 2 * phi[3] == z1
    assert 0 * phi[0] + 1 * phi[1] + 1 * phi[2] - 1 * phi[3] == z2
    y1 = math.exp(z1) / (math.exp(z1) + math.exp(z2))
    y2 = math.exp(z2) / (math.exp(z1) + math.exp(z2))
    trace = (y1 * (1 - y1) + y2 * (1 - y2)) * phi_squared  # eq. 34
    # κ = Σ_ij <k_i, k_j> Tr H_ij with H_ij = A_ij φ̄φ̄': A_11 = A_22 = y1·y2 = -A_12
    # <k1,k1> = 1 + 0 + 1 + 4 = 6, <k2,k2> = 0 + 1 + 1 + 1 = 3, <k1,k2> = 0 + 0 - 1 - 2 = -3
    kappa = y1 * y2 * (6 + 3 - 2 * -3) * phi_squared
    # A = y1·y2·[[1, -1], [-1, 1]] has the eigenvalue 2·y1·y2, φ̄φ̄' has 6.5: H has rank one
    top = 2 * y1 * y2 * phi_squared

    conv = nn.Conv2d(1, 2, 2, bias=False).double()
    with torch.no_grad():
        conv.weight.copy_(torch.tensor([[KERNEL_1], [KERNEL_2]]))
    data = (image(PIXELS), torch.tensor([0]))
    report = sl.measure(ConvHead(conv).eval(), data, measures=MEASURES)
    assert report["head.trace"].value == pytest.approx(trace, rel=1e-12)
    assert report["head.kappa"].value == pytest.approx(kappa, rel=1e-12)
    assert report["head.lambda_max"].value == pytest.approx(top, rel=1e-12)
    assert report["head.trace_squared"].value == pytest.approx(top**2, rel=1e-12)
    # ‖W‖² = <k1,k1> + <k2,k2>
    assert report["head.scaled_lambda_max"].value == pytest.approx((6 + 3) * top, rel=1e-12)


def test_example_2_of_paper_000():
    # Two channels. Channel 1 is that of Example 1: φ̄⁽¹⁾ = (4, 6, 4, 6) / 4, ‖φ̄⁽¹⁾‖² = 6.5.
    # Channel 2 = [[0, 1, 1], [2, 0, 1], [1, 1, 0]] has the patches
    #   (0, 1, 2, 0)   (1, 1, 0, 1)   (2, 0, 1, 1)   (0, 1, 1, 0)
    # with φ̄⁽²⁾ = (3, 3, 4, 2) / 4 and ‖φ̄⁽²⁾‖² = (9 + 9 + 16 + 4) / 16 = 2.375
    phi_squared = 6.5 + (3**2 + 3**2 + 4**2 + 2**2) / 16
    assert phi_squared == 8.875
    # Kernel 1 = (1, 0, -1, 2 | 2, 0, 0, -1): z1 = 3 + (2·3 - 2)/4 = 4
    # Kernel 2 = (0, 1, 1, -1 | 0, 1, 1, 1): z2 = 1 + (3 + 4 + 2)/4 = 3.25
    z1 = 3 + (2 * 3 - 1 * 2) / 4
    z2 = 1 + (3 + 4 + 2) / 4
    assert (z1, z2) == (4.0, 3.25)
    y1 = math.exp(z1) / (math.exp(z1) + math.exp(z2))
    y2 = math.exp(z2) / (math.exp(z1) + math.exp(z2))
    trace = (y1 * (1 - y1) + y2 * (1 - y2)) * phi_squared
    # <k1,k1> = 6 + 4 + 1 = 11, <k2,k2> = 3 + 3 = 6, <k1,k2> = -3 + (0 + 0 + 0 - 1) = -4
    kappa = y1 * y2 * (11 + 6 - 2 * -4) * phi_squared
    # ρ: a neuron is an input channel. w_c'H w_c = y1·y2·(u_c1 - u_c2)² with u_ck = φ̄⁽ᶜ⁾·k_k⁽ᶜ⁾:
    # channel 1: (3 - 1)² = 4, channel 2: (1 - 2.25)² = 1.5625
    rho = [y1 * y2 * 4.0, y1 * y2 * 1.5625]

    conv = nn.Conv2d(2, 2, 2, bias=False).double()
    with torch.no_grad():
        conv.weight.copy_(
            torch.tensor([[KERNEL_1, [[2, 0], [0, -1]]], [KERNEL_2, [[0, 1], [1, 1]]]])
        )
    data = (image([PIXELS, [[0, 1, 1], [2, 0, 1], [1, 1, 0]]]), torch.tensor([1]))
    sweep = ["curvature.trace", "relative.kappa", "neuron.*"]
    report = sl.measure(ConvHead(conv).eval(), data, measures=MEASURES + sweep)
    assert report["head.trace"].value == pytest.approx(trace, rel=1e-12)
    assert report["head.kappa"].value == pytest.approx(kappa, rel=1e-12)
    assert report["curvature.trace"].value == pytest.approx(trace, rel=1e-12)
    assert report["relative.kappa"].value == pytest.approx(kappa, rel=1e-12)
    assert report["neuron.rho_sum"].value == pytest.approx(sum(rho), rel=1e-12)
    assert report["neuron.rho_max"].value == pytest.approx(max(rho), rel=1e-12)


def smooth_body(head, *body):
    """A network that is not piecewise linear below its head: the closed forms do not mind."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(*body, head).double().eval()


HEADS = {
    "linear": (lambda: smooth_body(nn.Linear(4, 3), nn.Linear(2, 4), nn.Tanh()), (2,)),
    "linear without bias": (lambda: smooth_body(nn.Linear(4, 3, bias=False)), (4,)),
    "conv 1x1": (lambda: smooth_body(ConvHead(nn.Conv2d(2, 3, 1)), nn.GELU()), (2, 3, 3)),
    "conv padded": (
        lambda: smooth_body(ConvHead(nn.Conv2d(2, 3, 3, padding=2)), nn.GELU()),
        (2, 3, 4),
    ),
    "conv strided": (
        lambda: smooth_body(
            ConvHead(nn.Conv2d(2, 3, (2, 3), stride=(2, 3), padding=(1, 0))), nn.GELU()
        ),
        (2, 4, 7),
    ),
    "conv dilated": (lambda: smooth_body(ConvHead(nn.Conv2d(2, 3, 2, dilation=(2, 3)))), (2, 5, 5)),
    "conv same": (
        lambda: smooth_body(ConvHead(nn.Conv2d(1, 3, 2, padding="same", padding_mode="reflect"))),
        (1, 4, 4),
    ),
    "conv circular": (
        lambda: smooth_body(ConvHead(nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular"))),
        (1, 4, 4),
    ),
    "conv 1d": (lambda: smooth_body(ConvHead(nn.Conv1d(2, 3, 3, stride=2, padding=1))), (2, 6)),
    "conv 3d": (lambda: smooth_body(ConvHead(nn.Conv3d(1, 3, 2, stride=(1, 1, 2)))), (1, 3, 3, 4)),
    "linear on tokens, averaged": (lambda: smooth_body(MeanOfTokens()), (4, 3)),
}


class MeanOfTokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        return self.fc(x).mean(dim=1)


def data_for(model, shape, loss):
    generator = torch.Generator().manual_seed(4)
    batches = []
    for size in (4, 1, 2):
        x = torch.randn(size, *shape, generator=generator, dtype=torch.float64)
        batches.append((x, LOSSES[loss].targets((size, 3), generator)))
    return batches


def head_weight(model):
    """The last layer's weight name, found by the test on its own."""
    return [name for name, _ in model.named_parameters() if name.endswith("weight")][-1]


LOSS_GRID = ["cross_entropy", "class_weights", "ignore_index", "mse", "bce_weighted", "saddle"]


def check_against_dense(report, truth, weight):
    """All by definition; the largest eigenvalue may be 0, so its error is that of ‖H‖."""
    layer = weight.rpartition(".")[0]
    module = truth.model.get_submodule(layer)
    H = truth.hessian([weight])
    kappa = references.kappa(H, module.weight, references.matrix_view(module))
    square = float(H.square().sum())
    assert report["head.trace"].value == pytest.approx(float(H.trace()), rel=1e-9)
    assert report["head.kappa"].value == pytest.approx(kappa, rel=1e-9)
    assert report["head.trace_squared"].value == pytest.approx(square, rel=1e-9)
    top = report["head.lambda_max"]
    expected = float(torch.linalg.eigvalsh(H)[-1])
    assert top.value == pytest.approx(expected, rel=1e-9, abs=1e-13 * math.sqrt(square))
    assert top.residual <= 1e-7 * math.sqrt(square)
    norm = float(module.weight.detach().square().sum())
    scaled = report["head.scaled_lambda_max"]
    assert scaled.value == pytest.approx(norm * expected, rel=1e-9, abs=1e-13 * norm * square**0.5)
    assert scaled.residual == pytest.approx(norm * top.residual)
    assert scaled.cost == top.cost  # one search for both
    for name, found in report.items():
        tiny = name.endswith("lambda_max") and expected < 1e-9 * math.sqrt(square)
        assert found.exact or tiny
        assert found.quantity == "Hessian"
        assert found.status is sl.results.Status.OK
        assert found.text.partition(";")[0] == f"layer {layer!r}"


@pytest.mark.parametrize("name", HEADS)  # on top, so that a day has every loss
@pytest.mark.parametrize("loss", LOSS_GRID)
def test_closed_forms_agree_with_the_dense_hessian(name, loss):
    build, shape = HEADS[name]
    model = build()
    batches = data_for(model, shape, loss)
    truth = references.Truth(model, batches, LOSSES[loss].plain)
    weight = head_weight(model)
    report = sl.measure(model, batches, loss=LOSSES[loss].given, measures=MEASURES)
    check_against_dense(report, truth, weight)


def test_both_eigenvalues_of_the_head_come_from_one_search(monkeypatch):
    build, shape = next(iter(HEADS.values()))
    model = build()
    module = sys.modules["spiritlevel.measures.head"]
    calls, real = [], module.eigenpairs

    def counted(*args, **options):
        calls.append(args)
        return real(*args, **options)

    monkeypatch.setattr(module, "eigenpairs", counted)
    names = ["head.lambda_max", "head.scaled_lambda_max"]
    sl.measure(model, data_for(model, shape, "cross_entropy"), measures=names)
    assert len(calls) == 1


@pytest.mark.parametrize("name", ["a_target_a_token", "a_target_a_pixel"])
def test_closed_forms_of_a_head_with_a_target_a_position(name):
    case = CASES[name]
    model, batches = case.make()
    report = sl.measure(model, batches, loss=LOSSES[case.loss].given, measures=MEASURES)
    truth = references.Truth(model, batches, LOSSES[case.loss].plain)
    check_against_dense(report, truth, head_weight(model))


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("loss", ["cross_entropy", "bce", "mse", "class_weights"])
def test_the_sweep_gives_the_head_the_same_values(name, loss):
    # Two independent ways to one number: closed form, and backward passes with patches.
    build, shape = HEADS[name]
    model = build()
    batches = data_for(model, shape, loss)
    sweep = ["curvature.trace", "relative.kappa"]
    report = sl.measure(model, batches, loss=LOSSES[loss].given, measures=MEASURES + sweep)
    layer = head_weight(model).rpartition(".")[0]
    assert report["head.kappa"].value == pytest.approx(
        report.layers["relative.kappa"][layer].value, rel=1e-10
    )
    truth = references.Truth(model, batches, LOSSES[loss].plain)
    bias = [n for n in truth.layers()[layer] if n.endswith("bias")]
    of_bias = float(truth.hessian(bias).trace()) if bias else 0.0  # head.trace leaves it out
    assert report["head.trace"].value + of_bias == pytest.approx(
        report.layers["curvature.trace"][layer].value, rel=1e-10
    )


def test_blocks_of_pairs_add_up_to_the_whole(monkeypatch):
    build, shape = HEADS["linear"]
    model = build()
    batches = data_for(model, shape, "cross_entropy")
    truth = references.Truth(model, batches, F.cross_entropy)
    square = float(truth.hessian([head_weight(model)]).square().sum())
    module = sys.modules["spiritlevel.measures.head"]
    monkeypatch.setattr(module, "PAIR_BLOCK", 3)  # 7 samples: blocks of 3, 3 and 1
    report = sl.measure(model, batches, measures=MEASURES)
    assert report["head.trace_squared"].value == pytest.approx(square, rel=1e-9)


@pytest.mark.parametrize("name", ["bare_parameters", "branching_on_the_data"])
def test_closed_forms_beside_a_sweep_with_generic_parameters(name):
    # Per-sample gradients run the model again, side by side or one by one, and the head with it.
    model, batches = CASES[name].make()
    truth = references.Truth(model, batches, F.cross_entropy)
    H = truth.hessian(["head.weight"])
    report = sl.measure(model, batches, measures=["head.trace", "head.kappa", "curvature.trace"])
    kappa = references.kappa(H, model.head.weight, references.matrix_view(model.head))
    assert report["head.trace"].value == pytest.approx(float(H.trace()), rel=1e-9)
    assert report["head.kappa"].value == pytest.approx(kappa, rel=1e-9)
