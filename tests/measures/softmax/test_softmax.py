"""Gini, entropy and confidence: 80-digit decimals, weighted loops, and heads that are streamed."""

from decimal import Context, localcontext

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine import workspace as workspace_module
from spiritlevel.math.streaming import stream_tokens
from spiritlevel.model.losses import CrossEntropy
from spiritlevel.verbs import reference_problems as problems
from zoo import decimal_softmax

ALL = ["softmax.gini", "softmax.entropy", "softmax.confidence"]


def decimal_entropy(logits):
    with localcontext(Context(prec=80)):
        return float(-sum(p * p.ln() for p in decimal_softmax.probabilities(logits)))


class Given(nn.Module):
    """A network whose outputs are its inputs, with one weight that is 1."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x):
        return self.scale * x


@pytest.mark.parametrize("margin", [0.0, 1.0, 20.0, 28.0, 60.0, 300.0])
def test_confident_predictions_keep_their_digits(margin):
    # at 28 the other classes have 1e-12 between them; at 60 no float near 1 can tell it from 1
    logits = torch.tensor([[margin, 0.5, -1.25], [0.25, margin, 0.0]], dtype=torch.float64)
    report = sl.measure(Given(), (logits, torch.tensor([0, 0])), measures=ALL)
    expected = sum(decimal_entropy(row) for row in logits.tolist()) / 2
    if margin < 100:
        assert report["softmax.entropy"].value == pytest.approx(expected, rel=1e-14, abs=0)
    else:  # 80 digits are not enough for 1 − p: p(1 + margin) is all there is
        p = (logits[0, 1:] - margin).exp(), (logits[1, ::2] - margin).exp()
        gaps = margin - logits[0, 1:], margin - logits[1, ::2]
        tail = sum(float((a * (1 + g)).sum()) for a, g in zip(p, gaps, strict=True)) / 2
        assert report["softmax.entropy"].value == pytest.approx(tail, rel=1e-12, abs=0)
    largest = [float(max(decimal_softmax.probabilities(row))) for row in logits.tolist()]
    assert report["softmax.confidence"].value == pytest.approx(sum(largest) / 2, rel=1e-15)


def test_a_forbidden_class_has_no_part():
    logits = torch.tensor([[1.0, -1e300, 0.5]], dtype=torch.float64)  # infinite outputs are refused
    report = sl.measure(Given(), (logits, torch.tensor([0])), measures=ALL)
    expected = decimal_entropy([1.0, 0.5])
    assert report["softmax.entropy"].value == pytest.approx(expected, rel=1e-14)


def brute_force(logits, targets, class_weights, ignored):
    """Loops over rows: weight, 1 − Σp², −Σ p log p, max p."""
    sums, total = torch.zeros(3, dtype=torch.float64), 0.0
    for row, label in zip(logits, targets.tolist(), strict=True):
        if label == ignored:
            continue
        weight = float(class_weights[label])
        p = [float(v) for v in (row.exp() / row.exp().sum())]
        gini = 1 - sum(v * v for v in p)
        entropy = -sum(v * torch.tensor(v, dtype=torch.float64).log().item() for v in p)
        sums += weight * torch.tensor([gini, entropy, max(p)], dtype=torch.float64)
        total += weight
    return (sums / total).tolist()


@pytest.mark.parametrize("layout", ["samples", "tokens", "pixels"])
def test_means_are_weighted_as_the_loss_is(layout, generator):
    shape = {"samples": (7, 4), "tokens": (7, 3, 4), "pixels": (7, 4, 2, 3)}[layout]
    logits = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
    places = (
        shape[:1] if layout == "samples" else (7, *(shape[1:-1] if layout == "tokens" else (2, 3)))
    )
    targets = torch.randint(4, places, generator=generator)
    targets.flatten()[::4] = 9
    weights = torch.tensor([0.5, 2.0, 1.0, 3.0], dtype=torch.float64)
    loss = CrossEntropy(
        class_weights=weights, ignore_index=9, class_dim=-1 if layout == "tokens" else 1
    )
    data = list(zip(logits.split(3), targets.split(3), strict=True))
    report = sl.measure(Given(), data, loss=loss, measures=ALL)
    rows = logits.movedim(1, -1) if layout == "pixels" else logits
    expected = brute_force(rows.reshape(-1, 4), targets.flatten(), weights, ignored=9)
    for name, value in zip(ALL, expected, strict=True):
        assert report[name].value == pytest.approx(value, rel=1e-12), name
        assert report[name].exact


def test_data_error_is_that_of_a_mean(generator):
    logits = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    report = sl.measure(Given(), (logits, torch.zeros(50).long()), measures=ALL)
    p = logits.softmax(dim=1)
    rows = (1 - p.square().sum(1), torch.special.entr(p).sum(1), p.amax(1))
    for name, values in zip(ALL, rows, strict=True):
        error = float(values.std() / 50**0.5)
        assert report[name].data_stderr == pytest.approx(error, rel=1e-10)


class Tokens(nn.Module):
    """A language model in miniature."""

    def __init__(self, classes):
        super().__init__()
        self.embed = nn.Embedding(classes, 5)
        self.mid = nn.Linear(5, 6)
        self.head = nn.Linear(6, classes)

    def forward(self, tokens):
        return self.head(torch.tanh(self.mid(self.embed(tokens))))


@pytest.mark.parametrize("bias", [True, False])
def test_streamed_head_gives_the_numbers_of_the_whole_outputs(bias, generator, monkeypatch):
    torch.manual_seed(0)
    model = Tokens(60).double().eval()
    if not bias:
        model.head = nn.Linear(6, 60, bias=False).double()
    with torch.no_grad():
        model.head.weight *= 5
    x = torch.randint(60, (6, 7), generator=generator)
    y = torch.randint(60, (6, 7), generator=generator)
    y[0, :3] = -100
    y[4] = -100
    data = list(zip(x.split(4), y.split(4), strict=True))
    names = [*ALL, "norms.margin", "norms.margin_mean"]
    whole = sl.measure(model, data, measures=names)
    monkeypatch.setattr(workspace_module, "STREAM_FROM", 10)
    formed = []
    head = model.head.register_forward_hook(
        lambda m, a, out: formed.append(out.untyped_storage().nbytes())
    )
    streamed = sl.measure(model, data, measures=names, memory=40_000)
    head.remove()
    assert min(formed) <= 8  # the head's stand-in: one number, expanded
    logits, labels = model(x).detach().reshape(-1, 60), y.flatten()
    expected = brute_force(logits, labels, torch.ones(60), ignored=-100)
    for name, value in zip(ALL, expected, strict=True):
        assert streamed[name].value == pytest.approx(value, rel=1e-11), name
    for name in names:
        assert streamed[name].value == pytest.approx(whole[name].value, rel=1e-11), name
        if whole[name].data_stderr is not None:
            error = whole[name].data_stderr
            assert streamed[name].data_stderr == pytest.approx(error, rel=1e-9), name


@pytest.mark.parametrize("budget", [1, 5_000, 2**30])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lead", [0.0, 20.0, 60.0])
def test_streamed_entropy_is_that_of_the_whole_matrix(lead, dtype, budget):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(9, 8, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(100, 8, generator=generator, dtype=torch.float64).to(dtype)
    bias = torch.zeros(100, dtype=dtype)
    bias[37] = lead
    sums = stream_tokens(features, weight, bias, kappa=False, budget=budget)
    z = features.double() @ weight.double().T + bias.double()
    expected = [decimal_entropy(row) for row in z.tolist()]
    # float32 logits of 60 are off by 4e-6, and their exponentials by as much
    rel = 1e-12 if dtype is torch.float64 else 2e-5
    assert sums.entropy.tolist() == pytest.approx(expected, rel=rel, abs=0)
    largest = z.softmax(dim=1).amax(dim=1).tolist()
    assert sums.confidence.tolist() == pytest.approx(largest, rel=rel)


def test_all_of_them_share_one_forward_pass():
    problem = problems.relu_mlp()
    sl.measure(problem.model, problem.data, measures="softmax.gini")  # finds out about the network
    one = sl.measure(problem.model, problem.data, measures="softmax.gini")
    many = sl.measure(problem.model, problem.data, measures=[*ALL, "norms.margin", "norms.weight"])
    assert many["softmax.entropy"].cost == sl.results.Cost(forwards=8)
    assert many.cost.forwards - one.cost.forwards == 1  # the sample that shows the targets' type
    assert many.cost.backwards == one.cost.backwards
