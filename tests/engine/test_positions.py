"""One prediction a token or a pixel: against dense float64 Hessians of torch's own mean loss."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.model.losses import CrossEntropy
from spiritlevel.testing import references

C = 3
WEIGHTS = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
SWEPT = ["curvature.trace", "curvature.ggn_trace", "relative.*", "neuron.*", "scaled.trace*"]
CLOSED = ["head.trace", "head.kappa", "head.trace_squared", "head.lambda_max"]


class Attending(nn.Module):
    """Smooth below its head: attention, layer norm, GELU."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)
        self.norm, self.head = nn.LayerNorm(3), nn.Linear(3, C)

    def forward(self, x):
        return self.head(F.gelu(self.norm(x + self.attention(x, x, x)[0])))


@dataclasses.dataclass(frozen=True)
class Shape:
    """A network that gives classes at positions, and where it has them."""

    build: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    positions: tuple[int, ...]
    class_dim: int

    def model(self):
        with torch.random.fork_rng():
            torch.manual_seed(2)
            return self.build().double().eval()

    def batches(self, targets, sizes=(3, 1, 2), seed=1):
        """(x, y) of several sizes; `targets` makes y from the number of samples."""
        g = torch.Generator().manual_seed(seed)
        return [
            (torch.randn(n, *self.inputs, generator=g, dtype=torch.float64), targets(self, n, g))
            for n in sizes
        ]


def relu_net(*layers):
    return lambda: nn.Sequential(*(make() for make in layers))


SHAPES = {
    "tokens (N, T, C)": Shape(
        relu_net(lambda: nn.Linear(2, 4), nn.ReLU, lambda: nn.Linear(4, C)), (4, 2), (4,), -1
    ),
    "signal (N, C, T)": Shape(
        relu_net(lambda: nn.Conv1d(2, 3, 3, padding=1), nn.ReLU, lambda: nn.Conv1d(3, C, 2)),
        (2, 5),
        (4,),
        1,
    ),
    "pixels (N, C, H, W), 1x1": Shape(
        relu_net(lambda: nn.Conv2d(2, 3, 3, padding=1), nn.ReLU, lambda: nn.Conv2d(3, C, 1)),
        (2, 2, 3),
        (2, 3),
        1,
    ),
    "pixels (N, C, H, W), 3x3": Shape(
        relu_net(
            lambda: nn.Conv2d(1, 2, 1),
            nn.ReLU,
            lambda: nn.Conv2d(2, C, 3, stride=(1, 2), padding=1, bias=False),
        ),
        (1, 2, 4),
        (2, 2),
        1,
    ),
}
SMOOTH = Shape(Attending, (4, 3), (4,), -1)


def labels(shape, n, g):
    return torch.randint(C, (n, *shape.positions), generator=g)


def unevenly_ignored(shape, n, g):
    """A third of the positions, and all but one of the first sample: tokens differ by batch."""
    y = labels(shape, n, g)
    y[torch.rand(y.shape, generator=g) < 0.3] = -100
    y[0] = -100
    y[(0,) * y.dim()] = 2
    return y


def marked(shape, n, g):
    y = labels(shape, n, g)
    y[0] = 1  # the value to leave out is one of the classes
    return y


def probabilities(shape, n, g):
    z = torch.randn(n, *shape.positions, C, generator=g, dtype=torch.float64)
    return z.softmax(dim=-1).movedim(-1, shape.class_dim)


# options of torch's loss, and the targets it gets
CROSS_ENTROPIES = {
    "plain": ({}, labels),
    "ignored": ({}, unevenly_ignored),
    "smooth, weighted, ignored": ({"weight": WEIGHTS, "label_smoothing": 0.2}, unevenly_ignored),
    "a class ignored": ({"weight": WEIGHTS, "ignore_index": 1, "label_smoothing": 0.1}, marked),
    "probabilities": ({}, probabilities),
    "weighted probabilities": ({"weight": WEIGHTS, "label_smoothing": 0.3}, probabilities),
}


def torchs_mean(shape, **options):
    """F.cross_entropy over all positions of all data at once; it wants the classes second."""

    def loss(z, y):
        y = y.movedim(shape.class_dim, 1) if y.is_floating_point() else y
        return F.cross_entropy(z.movedim(shape.class_dim, 1), y, **options)

    return loss


def ours(shape, options):
    return CrossEntropy(
        class_dim=shape.class_dim,
        **{{"weight": "class_weights"}.get(key, key): value for key, value in options.items()},
    )


def assert_head(report, truth, model, rel=1e-9):
    name = [n for n, _ in model.named_parameters() if n.endswith("weight")][-1]
    module = model.get_submodule(name.rpartition(".")[0])
    H = truth.hessian([name])
    expected = {
        "head.trace": float(H.trace()),
        "head.kappa": references.kappa(H, module.weight, references.matrix_view(module)),
        "head.trace_squared": float(H.square().sum()),
        "head.lambda_max": float(torch.linalg.eigvalsh(H)[-1]),
    }
    for measure in (measure for measure in expected if measure in report):
        assert report[measure].value == pytest.approx(expected[measure], rel=rel), measure
        assert report[measure].exact


def assert_swept(report, truth, model, kind="Hessian", rel=1e-9):
    everything = list(truth.parameters)
    ggn = float(truth.ggn(everything).trace())
    assert report["curvature.ggn_trace"].value == pytest.approx(ggn, rel=rel)
    trace = float(truth.matrix(kind, everything).trace())
    assert report["curvature.trace"].value == pytest.approx(trace, rel=rel)
    kappas, rhos, scaled = [], [], []
    for layer, module in model.named_modules():
        view = references.matrix_view(module)
        if view is None or f"{layer}.weight" not in truth.parameters:
            continue
        H = truth.matrix(kind, [f"{layer}.weight"])
        kappas.append(references.kappa(H, module.weight, view))
        rhos.append(references.rho(H, module.weight, view))
        scaled.append(float(H.trace() * module.weight.detach().square().sum()))
        found = report.layers["relative.kappa"][layer].value
        assert found == pytest.approx(kappas[-1], rel=rel), layer
    for measure, value in {
        "relative.kappa": sum(kappas),
        "relative.kappa_max": max(kappas),
        "neuron.rho_sum": sum(map(sum, rhos)),
        "neuron.rho_max": max(map(max, rhos)),
        "scaled.trace": sum(scaled),
        "scaled.trace_max": max(scaled),
    }.items():
        assert report[measure].value == pytest.approx(value, rel=rel), measure
        assert report[measure].quantity == kind


def gini(truth, shape, weight=None, ignore_index=-100):
    """Σ weight (1 − Σ p²) / Σ weight, the weight that of the target's class."""
    with torch.no_grad():
        p = truth.model(truth.inputs).movedim(shape.class_dim, -1).softmax(dim=-1)
    impurity = 1 - p.square().sum(dim=-1)
    if truth.targets.is_floating_point():
        return float(impurity.mean())
    counts = torch.ones(C, dtype=torch.float64) if weight is None else weight
    counts = counts[truth.targets.clamp(0, C - 1)] * (truth.targets != ignore_index)
    return float((impurity * counts).sum() / counts.sum())


# -- the numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_measure_is_that_of_the_dense_hessian(shape, name):
    shape, (options, targets) = SHAPES[shape], CROSS_ENTROPIES[name]
    model, batches = shape.model(), shape.batches(targets)
    truth = references.Truth(model, batches, torchs_mean(shape, **options))
    report = sl.measure(
        model,
        batches,
        loss=ours(shape, options),
        measures=[*SWEPT, *CLOSED, "softmax.gini"],
        method="exact",
    )
    assert_swept(report, truth, model)
    assert_head(report, truth, model)
    smooth = {key: value for key, value in options.items() if key != "label_smoothing"}
    expected = gini(truth, shape, **smooth)
    assert report["softmax.gini"].value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("shape", SHAPES)
def test_scaled_eigenvalues_of_dense_outputs(shape):
    shape = SHAPES[shape]
    model, batches = shape.model(), shape.batches(unevenly_ignored)
    truth = references.Truth(model, batches, torchs_mean(shape))
    report = sl.measure(model, batches, measures="scaled.lambda_max*", rtol=1e-6)
    expected = []
    for name in (n for n in truth.parameters if n.endswith("weight")):
        top = torch.linalg.eigvalsh(truth.hessian([name]))[-1]
        expected.append(float(top * truth.parameters[name].square().sum()))
    # 1e-6: Lanczos stops there
    assert report["scaled.lambda_max"].value == pytest.approx(sum(expected), rel=1e-6)
    assert report["scaled.lambda_max_max"].value == pytest.approx(max(expected), rel=1e-6)


@pytest.mark.parametrize("name", CROSS_ENTROPIES)
def test_a_smooth_network_has_its_exact_ggn_and_its_exact_head(name):
    options, targets = CROSS_ENTROPIES[name]
    model, batches = SMOOTH.model(), SMOOTH.batches(targets)
    truth = references.Truth(model, batches, torchs_mean(SMOOTH, **options))
    report = sl.measure(
        model,
        batches,
        loss=ours(SMOOTH, options),
        measures=["curvature.trace", "curvature.ggn_trace", *CLOSED],
        method="exact",
    )
    ggn = float(truth.ggn(list(truth.parameters)).trace())
    assert report["curvature.ggn_trace"].value == pytest.approx(ggn, rel=1e-9)
    assert report["curvature.trace"].quantity == "GGN"
    assert report["curvature.trace"].value == pytest.approx(ggn, rel=1e-9)
    assert_head(report, truth, model)


@pytest.mark.usefixtures("only_probes")
@pytest.mark.parametrize("method", ["auto", "split", "hutchinson", "output_probes"])
def test_estimates_of_a_smooth_network_agree_with_the_dense_trace(method):
    model, batches = SMOOTH.model(), SMOOTH.batches(unevenly_ignored)
    truth = references.Truth(model, batches, torchs_mean(SMOOTH))
    options = {"measures": "curvature.trace", "rtol": 0.02, "max_passes": 100, "method": method}
    found = sl.measure(model, batches, **options)["curvature.trace"]
    expected = float(truth.matrix(found.quantity, list(truth.parameters)).trace())
    assert found.stderr > 0
    assert abs(found.value - expected) < 5 * found.stderr  # 5: a fixed seed, so no flicker


def test_the_convention_of_torch_needs_no_class_dim():
    shape = SHAPES["pixels (N, C, H, W), 1x1"]
    model, batches = shape.model(), shape.batches(unevenly_ignored)
    truth = references.Truth(model, batches, torchs_mean(shape, weight=WEIGHTS))
    given = nn.CrossEntropyLoss(weight=WEIGHTS)
    found = sl.measure(model, batches, loss=given, measures="curvature.trace", method="exact")
    expected = float(truth.hessian(list(truth.parameters)).trace())
    assert found["curvature.trace"].value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("memory", [1, 100_000, None])
def test_chunks_and_dict_batches_do_not_matter(memory):
    shape = SHAPES["tokens (N, T, C)"]
    model, batches = shape.model(), shape.batches(unevenly_ignored)
    truth = references.Truth(model, batches, torchs_mean(shape))
    dicts = [{"input": x, "labels": y} for x, y in batches]
    report = sl.measure(model, dicts, measures=[*SWEPT, *CLOSED], method="exact", memory=memory)
    assert_swept(report, truth, model)
    assert_head(report, truth, model)


@pytest.mark.sampled(2)  # seconds each
@pytest.mark.parametrize("name", CROSS_ENTROPIES)
@pytest.mark.parametrize("shape", [SHAPES["tokens (N, T, C)"], SMOOTH], ids=["relu", "smooth"])
def test_a_head_whose_outputs_are_not_formed_has_the_same_values(shape, name):
    options, targets = CROSS_ENTROPIES[name]
    model, batches = shape.model(), shape.batches(targets)
    truth = references.Truth(model, batches, torchs_mean(shape, **options))
    names = [*(n for n in CLOSED if n != "head.trace_squared"), "softmax.gini"]
    report = sl.measure(model, batches, loss=ours(shape, options), measures=names, memory=1)
    assert_head(report, truth, model)
    smooth = {key: value for key, value in options.items() if key != "label_smoothing"}
    expected = gini(truth, shape, **smooth)
    assert report["softmax.gini"].value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_sequences_of_another_length_a_batch_count_by_token(loss):
    # The network looks at tokens alone: padding that does not count changes nothing.
    shape = SHAPES["tokens (N, T, C)"]
    model, g = shape.model(), torch.Generator().manual_seed(3)
    batches, padded, hidden = [], [], {"cross_entropy": -100, "mse": math.nan}[loss]
    for n, length in ((2, 5), (3, 2), (1, 7)):
        x = torch.randn(n, length, 2, generator=g, dtype=torch.float64)
        y = torch.randint(C, (n, length), generator=g)
        y = y if loss == "cross_entropy" else torch.randn(n, length, C, generator=g).double()
        batches.append((x, y))
        ends = (0, 0) * (y.dim() - 2) + (0, 7 - length)
        padded.append((F.pad(x, (0, 0, 0, 7 - length)), F.pad(y, ends, value=hidden)))

    def mean(z, y):
        if loss == "cross_entropy":
            return F.cross_entropy(z.movedim(-1, 1), y)
        return torch.where(y.isnan(), 0.0, (z - y.nan_to_num()).square()).sum() / (~y.isnan()).sum()

    truth = references.Truth(model, padded, mean)
    names = ["curvature.trace", "curvature.ggn_trace", "head.trace"]
    report = sl.measure(model, batches, loss=loss, measures=names, method="exact")
    expected = float(truth.hessian(list(truth.parameters)).trace())
    assert report["curvature.trace"].value == pytest.approx(expected, rel=1e-9)
    expected = float(truth.hessian(["2.weight"]).trace())
    assert report["head.trace"].value == pytest.approx(expected, rel=1e-9)


# -- the error of having only these samples ------------------------------------------------------


def test_data_errors_take_sequences_not_tokens_as_independent():
    # Tokens of a sequence are copies of one: a sequence says no more than one token of it.
    model, g = nn.Linear(3, C, bias=False).double().eval(), torch.Generator().manual_seed(5)
    count, length = 40, 8
    x = torch.randn(count, 1, 3, generator=g, dtype=torch.float64).expand(-1, length, -1)
    y = torch.randint(C, (count, length), generator=g)
    y[torch.rand(y.shape, generator=g) < 0.4] = -100
    y[7] = -100  # one sequence counts for nothing
    data = [(x[:9], y[:9]), (x[9:], y[9:])]
    report = sl.measure(model, data, measures=["head.trace", "curvature.trace"], method="exact")

    p = model(x).detach().softmax(dim=-1)
    tokens = (1 - p.square().sum(dim=-1)) * x.square().sum(dim=-1) * (y != -100)
    value, weight = tokens.sum(dim=1), (y != -100).sum(dim=1).double()
    left_out = (value.sum() - value) / (weight.sum() - weight)
    jackknife = ((count - 1) / count * (left_out - left_out.mean()).square().sum()).sqrt()
    by_token = (tokens[y != -100].std() / math.sqrt(int(weight.sum()))).item()
    for name in ("head.trace", "curvature.trace"):
        found = report[name]
        assert found.value == pytest.approx(float(value.sum() / weight.sum()), rel=1e-9)
        # the error of a ratio to first order; the jackknife adds terms of relative size 1/40
        assert found.data_stderr == pytest.approx(float(jackknife), rel=2 / count)
        assert found.data_stderr > 1.5 * by_token
