"""The residual split on a small transformer: what it saves after training, what it costs before.

A probe of random signs has variance 2(‖M‖² − ‖diag M‖²) for a symmetric matrix M, so the products
that a given error takes are compared in closed form, on dense float64 matrices.
"""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import references
import spiritlevel as sl
from dense_problem import DenseProblem
from spiritlevel.api import open_work
from spiritlevel.estimators.metrics import Metric
from spiritlevel.estimators.weight_probes import WeightProbes
from spiritlevel.losses import CrossEntropy

TEXT = "the cat sat on the mat and the dog sat on the log "
LENGTH, WIDTH, SAMPLES = 6, 8, 20
TRACE = "curvature.trace"


class LanguageModel(nn.Module):
    """One causal block over characters, with torch's own attention."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.block = nn.TransformerEncoderLayer(
            WIDTH, 2, 2 * WIDTH, 0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -math.inf).triu(1))

    def forward(self, x):
        return self.head(self.norm(self.block(self.embedding(x) + self.position, self.mask)))


def characters():
    numbers = {c: i for i, c in enumerate(sorted(set(TEXT)))}
    windows = torch.tensor([numbers[c] for c in TEXT]).unfold(0, LENGTH + 1, 1)[:SAMPLES]
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous(), len(numbers)


def token_loss(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def language_model(steps, seed):
    """After some steps of Adam, with its data."""
    x, y, vocabulary = characters()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LanguageModel(vocabulary).double()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(steps):
            optimizer.zero_grad()
            token_loss(model(x), y).backward()
            optimizer.step()
    model.zero_grad(set_to_none=True)
    return model.eval(), (x, y)


def probe_variance(M):
    """Of ⟨z, Mz⟩ over random signs z."""
    return float(2 * (M.square().sum() - M.diagonal().square().sum()))


@functools.cache  # a dense Hessian takes seconds, and the fixtures hand out the same objects
def variances(model, data):
    """Of a probe of the Hessian and of the residual, over all parameters; and Tr H."""
    truth = references.Truth(model, [data], token_loss)
    names = list(truth.parameters)
    H, ggn = truth.hessian(names), truth.ggn(names)
    return probe_variance(H), probe_variance(H - ggn), float(H.trace())


@pytest.fixture(scope="module")
def trained():
    return language_model(steps=200, seed=0)


@pytest.fixture(scope="module")
def initial():
    return language_model(steps=0, seed=0)


def test_twenty_times_fewer_products_after_training(trained):
    of_hessian, of_residual, trace = variances(*trained)
    assert token_loss(trained[0](trained[1][0]), trained[1][1]) < 0.5  # it has learned something
    assert trace > 0
    assert of_hessian >= 20 * of_residual


@pytest.mark.parametrize("state", ["trained", "initial"])
def test_probes_vary_as_the_matrices_say(state, request):
    """The library's own products, 64 probes of each operator."""
    model, data = request.getfixturevalue(state)
    work = open_work(model, data, loss=CrossEntropy(class_dim=-1))
    with work.surface.preserved():
        metric = Metric(work.surface, "trace", list(work.surface.parameters))
        probes = WeightProbes(work.products, metric, seed=1, num_samples=SAMPLES)
        probes.draw(["residual", "hessian"], 64)
        factors = dict.fromkeys(work.surface.parameters, 1.0)
        found = {op: probes.spread(op, factors, 64) for op in ("hessian", "residual")}
    of_hessian, of_residual, _ = variances(model, data)
    # 64 draws know a variance to 18 % if they are normal; these have longer tails
    assert found["hessian"] == pytest.approx(of_hessian, rel=0.6)
    assert found["residual"] == pytest.approx(of_residual, rel=0.6)


def test_split_and_hutchinson_measure_the_same(trained):
    model, data = trained
    options = {"loss": CrossEntropy(class_dim=-1), "measures": TRACE}
    split = sl.measure(model, data, method="split", rtol=0.02, **options)[TRACE]
    plain = sl.measure(model, data, method="hutchinson", max_passes=32, **options)[TRACE]
    truth = variances(model, data)[2]
    assert abs(split.value - truth) < 4 * split.stderr
    assert abs(plain.value - truth) < 4 * plain.stderr
    assert split.status is sl.Status.OK
    assert plain.status is sl.Status.NOT_CONVERGED


def test_auto_takes_the_residual_after_training(trained):
    model, data = trained
    options = {"loss": CrossEntropy(class_dim=-1), "measures": TRACE, "rtol": 0.1}
    for seed in range(3):
        found = sl.measure(model, data, method="auto", seed=seed, **options)[TRACE]
        assert "of the residual H − GGN" in found.text


def test_nothing_is_gained_at_initialization(initial):
    """So that the next test is about the case it means."""
    of_hessian, of_residual, _ = variances(*initial)
    assert 0.5 < of_hessian / of_residual < 2


# -- at initialization: what the first look at both operators costs ---------------------------


def initial_mlp(seed, activation):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 3)).double().eval()
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(24, 4, generator=generator, dtype=torch.float64)
    return DenseProblem(model, x, torch.randint(3, (24,), generator=generator))


@pytest.fixture(scope="module", params=[nn.Tanh, nn.GELU, nn.Softplus])
def initial_problem(request):
    return initial_mlp(3, request.param)


def test_auto_costs_at_most_a_fifth_more_at_initialization(initial_problem):
    """Products for the same interval, over 20 seeds."""
    rtol = 0.1
    products = {"auto": 0, "hutchinson": 0}
    for method in products:
        for seed in range(20):
            rows = initial_problem.rows("trace", seed, method=method, rtol=rtol, max_passes=20000)
            assert rows.found().status is sl.Status.OK
            products[method] += rows.work.products.count
    assert products["auto"] <= 1.2 * products["hutchinson"]


def test_auto_rarely_picks_the_worse_operator():
    """Where one varies twice as much as the other: in one seed of ten at most."""
    judged = 0
    for seed in range(4):
        for activation in (nn.Tanh, nn.Softplus):
            problem = initial_mlp(seed, activation)
            bent = [name for name in problem.names if name.startswith("0.")]
            size = sum(problem.truth.parameters[name].numel() for name in bent)
            H = problem.truth.hessian(problem.names)[:size, :size]
            R = H - problem.truth.ggn(problem.names)[:size, :size]
            ratio = probe_variance(H) / probe_variance(R)
            if not 0.5 < ratio < 2:
                judged += 1
                better = "residual" if ratio > 1 else "hessian"
                picks = [
                    problem.rows("trace", s, method="auto", rtol=0.9).operator for s in range(20)
                ]
                assert picks.count(better) >= 18
    assert judged > 0
