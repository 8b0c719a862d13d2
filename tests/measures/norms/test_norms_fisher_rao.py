"""The Fisher–Rao norm against loops over samples with autograd, and its closed form."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import spiritlevel as sl
from spiritlevel.measures.norms import along_weights
from spiritlevel.model.losses import CrossEntropy
from spiritlevel.testing import references
from spiritlevel.verbs import reference_problems as problems
from zoo.cases import CASES
from zoo.losses import LOSSES

FISHER = ["norms.fisher_rao", "norms.fisher_rao_model"]


def value(model, data, name, **options):
    return sl.measure(model, data, measures=name, **options)[name].value


def slope(model, loss, names=None):
    """⟨θ, ∇_θ loss⟩ by one backward."""
    wanted = [p for n, p in model.named_parameters() if names is None or n in names]
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    pairs = zip(wanted, gradients, strict=True)
    return float(sum((p.detach() * g).sum() for p, g in pairs if g is not None))


def drawn(shape, generator):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


# -- the definition -----------------------------------------------------------------------------


def smooth_net():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)
    ).double()


def brute_force(model, x, y, loss, names=None):
    """mean_n ⟨θ, ∇ℓ_n⟩², one sample at a time."""
    rows = [slope(model, loss(model(x[n : n + 1]), y[n : n + 1]), names) for n in range(len(x))]
    return sum(s * s for s in rows) / len(rows)


@pytest.mark.parametrize("name", ["linear_regression", "relu_mlp", "relu_convnet", "smooth"])
def test_fisher_rao_is_the_mean_over_samples_of_the_squared_slope(name):
    problem = problems.relu_mlp() if name == "smooth" else problems.ALL[name](torch.float64)
    model = smooth_net() if name == "smooth" else problem.model
    report = sl.measure(model, problem.data, loss=problem.loss, measures=FISHER)
    loss = F.mse_loss if problem.loss == "mse" else F.cross_entropy
    x, y = problem.inputs(), problem.targets()
    expected = brute_force(model, x, y, loss)
    assert report["norms.fisher_rao"].value == pytest.approx(expected, rel=1e-11)
    truth = references.Truth(model, problem.data, loss)
    G = truth.ggn(list(truth.parameters))
    theta = torch.cat([p.flatten() for p in truth.parameters.values()])
    expected = float(theta @ G @ theta)
    assert report["norms.fisher_rao_model"].value == pytest.approx(expected, rel=1e-11)
    assert all(report[n].exact for n in FISHER)


@pytest.mark.parametrize("name", CASES)
def test_fisher_rao_of_the_model_is_the_quadratic_form_of_the_dense_matrix(name):
    case = CASES[name]
    model, data = case.make()
    loss = LOSSES[case.loss]
    call = (lambda m, x: m(*x)) if isinstance(data[0][0], tuple) else None
    truth = references.Truth(model, data, loss.plain, call)
    theta = torch.cat([p.flatten() for p in truth.parameters.values()])
    expected = float(theta @ truth.ggn(list(truth.parameters)) @ theta)
    report = sl.measure(model, data, loss=loss.given, measures="norms.fisher_rao_model")
    found = report["norms.fisher_rao_model"]
    # a saddle cancels; an embedding bag has no second derivative and goes by differences
    assert found.value == pytest.approx(expected, rel=1e-10)
    assert found.exact == (name != "embedding_bag")


def test_fisher_rao_of_the_model_is_the_mean_over_labels_it_would_draw():
    # Σ_y p_y ⟨θ, ∇ℓ(y)⟩²: every label of every sample, by its probability
    problem = problems.relu_mlp()
    total = 0.0
    for x in problem.inputs():
        p = problem.model(x[None]).detach().softmax(dim=1)[0]
        for label in range(3):
            loss = F.cross_entropy(problem.model(x[None]), torch.tensor([label]))
            total += float(p[label]) * slope(problem.model, loss) ** 2
    found = value(problem.model, problem.data, "norms.fisher_rao_model")
    assert found == pytest.approx(total / 8, rel=1e-12)


def test_fisher_rao_of_chosen_layers():
    problem = problems.relu_mlp()
    x, y = problem.inputs(), problem.targets()
    expected = brute_force(problem.model, x, y, F.cross_entropy, names=["2.weight", "2.bias"])
    found = value(problem.model, problem.data, "norms.fisher_rao", layers="2")
    assert found == pytest.approx(expected, rel=1e-11)


class PerToken(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


def test_fisher_rao_counts_positions_and_class_weights_as_the_loss_does(generator):
    torch.manual_seed(0)
    model = PerToken().double()
    x, y = drawn((6, 5, 4), generator), torch.randint(3, (6, 5), generator=generator)
    y[1, 2:] = -100
    y[4] = -100
    weights = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)
    loss = CrossEntropy(class_weights=weights, class_dim=-1)
    total, mass = 0.0, 0.0
    for row, label in zip(x.reshape(-1, 4), y.flatten().tolist(), strict=True):
        if label != -100:
            plain = F.cross_entropy(model(row[None]), torch.tensor([label]))
            total += float(weights[label]) * slope(model, plain) ** 2
            mass += float(weights[label])
    data = list(zip(x.split(4), y.split(4), strict=True))
    found = value(model, data, "norms.fisher_rao", loss=loss)
    assert found == pytest.approx(total / mass, rel=1e-11)


def test_fisher_rao_of_a_confident_network_keeps_its_digits():
    # one weight w, outputs (w, 0): ⟨θ, ∇ℓ⟩ = −w p_2 with p_2 = e^-w / (1 + e^-w)
    class Scale(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(size, dtype=torch.float64))

        def forward(self, x):
            return torch.stack([self.w * x, 0 * x], dim=1)

    for size in (1.0, 28.0, 45.0, 80.0):
        data = (torch.ones(3, dtype=torch.float64), torch.zeros(3).long())
        report = sl.measure(Scale(size), data, measures=FISHER)
        small = float(torch.tensor(-size, dtype=torch.float64).sigmoid())
        large = float(torch.tensor(size, dtype=torch.float64).sigmoid())
        expected = (size * small) ** 2
        assert report["norms.fisher_rao"].value == pytest.approx(expected, rel=1e-12, abs=0)
        expected = size**2 * small * large
        assert report["norms.fisher_rao_model"].value == pytest.approx(expected, rel=1e-12, abs=0)


@pytest.mark.parametrize("way", ["forward", "reverse", "difference"])
def test_every_way_gives_the_same_numbers(way, monkeypatch):
    problem, model = problems.relu_mlp(), smooth_net()
    expected = brute_force(model, problem.inputs(), problem.targets(), F.cross_entropy)
    monkeypatch.setattr(along_weights, "choose_method", lambda surface: way)
    report = sl.measure(model, problem.data, measures=FISHER)
    found = report["norms.fisher_rao"]
    assert found.value == pytest.approx(expected, rel=1e-8 if way == "difference" else 1e-11)
    assert found.exact == (way != "difference")
    if way == "difference":
        assert abs(found.value - expected) <= found.residual
        assert found.residual <= 1e-4 * found.value
        assert "differences" in found.text


class Once(torch.autograd.Function):
    """A rectifier with a gradient, without a forward derivative or a second backward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * (ctx.saved_tensors[0] > 0)


class Stopped(nn.Module):
    """A gradient stops at `no_grad`; a forward derivative does not."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x):
        with torch.no_grad():
            gate = self.one(x).sigmoid()
        return self.two(self.one(x).relu() * gate)


class Custom(PerToken):
    def forward(self, x):
        return self.two(Once.apply(self.one(x)))


@pytest.mark.parametrize(("kind", "rel"), [(Stopped, 1e-11), (Custom, 1e-8)])
def test_models_without_a_forward_derivative(kind, rel):
    torch.manual_seed(0)
    problem, model = problems.relu_mlp(), kind().double()
    expected = brute_force(model, problem.inputs(), problem.targets(), F.cross_entropy)
    found = sl.measure(model, problem.data, measures="norms.fisher_rao")["norms.fisher_rao"]
    assert found.value == pytest.approx(expected, rel=rel)
    assert found.exact == (kind is Stopped)


# -- the closed form ----------------------------------------------------------------------------


def plain(depth):
    torch.manual_seed(depth)
    layers = [nn.Linear(4, 7, bias=False), nn.ReLU()]
    for _ in range(depth - 2):
        layers += [nn.Linear(7, 7, bias=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(7, 3, bias=False)).double()


def pooled():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 2, bias=False),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(4, 5, 2, bias=False),
        nn.LeakyReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(5, 3, bias=False),
    ).double()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("network", "problem", "degree"),
    [
        (lambda: plain(2), "relu_mlp", 2),
        (lambda: plain(3), "relu_mlp", 3),
        (lambda: plain(6), "relu_mlp", 6),
        (pooled, "relu_convnet", 3),
        (lambda: nn.Linear(4, 3).double(), "softmax_regression", 1),
    ],
)
def test_closed_form_is_the_definition_on_homogeneous_networks(network, problem, degree, dtype):
    model, problem = network().to(dtype), problems.ALL[problem](dtype)
    report = sl.measure(model, problem.data, measures=[*FISHER, "norms.fisher_rao_closed"])
    found = report["norms.fisher_rao_closed"]
    assert found.text == f"degree {degree}"
    rel = 1e-12 if dtype is torch.float64 else 1e-4
    assert found.value == pytest.approx(report["norms.fisher_rao"].value, rel=rel)
    assert found.data_stderr == pytest.approx(report["norms.fisher_rao"].data_stderr, rel=rel)
    x, y = problem.inputs().double(), problem.targets()
    expected = brute_force(model.double(), x, y, F.cross_entropy)
    assert found.value == pytest.approx(expected, rel=10 * rel)


def test_part_of_a_network_can_be_homogeneous_of_a_lower_degree():
    problem, model = problems.relu_mlp(), plain(4)
    names = ["norms.fisher_rao", "norms.fisher_rao_closed"]
    report = sl.measure(model, problem.data, measures=names, layers=["0", "4"])
    assert report[names[1]].text == "degree 2"
    assert report[names[1]].value == pytest.approx(report[names[0]].value, rel=1e-12)


def normalized():
    torch.manual_seed(0)
    norm = nn.LayerNorm(6, elementwise_affine=False)
    return nn.Sequential(nn.Linear(4, 6, bias=False), norm, nn.Linear(6, 3, bias=False))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (problems.relu_mlp().model, r"It has biases \(0.bias, 2.bias, 4.bias\)"),
        (normalized().double(), "Look for normalization or smooth activations"),
        (
            nn.Sequential(
                nn.Linear(4, 6, bias=False), nn.GELU(), nn.Linear(6, 3, bias=False)
            ).double(),
            "Look for normalization or smooth activations",
        ),
    ],
)
def test_networks_that_are_not_homogeneous_are_refused(model, text):
    problem = problems.relu_mlp()
    with pytest.raises(sl.SpiritlevelError, match=rf"(?s)fisher_rao_closed.*homogeneous.*{text}"):
        value(model, problem.data, "norms.fisher_rao_closed")


def test_one_sample_that_contradicts_the_degree_is_enough():
    class Kinked(nn.Module):
        """Adds a constant to large inputs only, which come last."""

        def __init__(self):
            super().__init__()
            self.map = nn.Linear(4, 3, bias=False)

        def forward(self, x):
            return self.map(x) + (x.abs().amax(dim=1, keepdim=True) > 50)

    problem = problems.relu_mlp()
    x, y = problem.inputs(), problem.targets()
    x[-1, 0] = 100.0
    model = Kinked().double()
    with pytest.raises(sl.SpiritlevelError, match="homogeneous"):
        value(model, (x, y), "norms.fisher_rao_closed")
    assert "norms.fisher_rao_closed" not in sl.measure(model, (x, y), measures="norms.*")


@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e3])
def test_fisher_rao_is_unchanged_by_rescaling(factor):
    problem, model = problems.relu_mlp(), plain(3)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        moved[0].weight *= factor
        moved[4].weight /= factor
    for name in [*FISHER, "norms.fisher_rao_closed"]:
        before, after = (value(m, problem.data, name) for m in (model, moved))
        assert after == pytest.approx(before, rel=1e-11), name


def test_closed_form_costs_three_forwards_and_the_definition_two():
    problem, model = problems.relu_mlp(), plain(3)
    report = sl.measure(model, problem.data, measures=[*FISHER, "norms.fisher_rao_closed"])
    assert report["norms.fisher_rao_closed"].cost == sl.results.Cost(forwards=24)
    for name in FISHER:  # one pass for both
        assert report[name].cost == sl.results.Cost(forwards=16, products=8)
