"""One data set of paper 002, section 6: drawn, fitted, measured.

Four Gaussian clouds in feature space, two per class. The features are drawn first, a linear
classifier ψ is fitted to them, and a network φ with random weights is inverted to find inputs that
have exactly these features. The appendix with the details is not part of the text we have; sizes
and clouds follow the authors' published code: ten features of which three carry the classes, four
are linear mixtures of those and three are noise.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.verbs import measuring as api

from ...population.registry import read_task, task
from ...population.run_results import EpochRow, RunResult
from ...population.runs.run_data import derived_generator
from ...population.runs.tasks import task_result
from ...population.settings.run import RunSettings

FEATURES, CARRYING, MIXED = 10, 3, 4
CLOUDS = 4  # cloud k belongs to class k mod 2
LAYERS = 4  # of φ
SLOPE = 0.5  # of the leaky ReLU below zero: so it can be inverted everywhere
RIDGE = 1.0  # weight of ‖w‖² beside a sum over samples, for both classifiers
NEWTON_STEPS = 50


@dataclasses.dataclass(frozen=True)
class Clouds:
    """One random distribution of features; `separation` scales the corners the clouds sit on."""

    centres: Tensor  # (4, 3)
    mixing: Tensor  # (4, 3, 3): the shape of each cloud
    redundant: Tensor  # (3, 4)
    order: Tensor  # of the features

    @classmethod
    def draw(cls, separation: float, generator: torch.Generator) -> Clouds:
        """Four different corners of a cube with edges of twice the separation, and their shapes."""
        corners = torch.randperm(2**CARRYING, generator=generator)[:CLOUDS]
        bits = (corners[:, None] >> torch.arange(CARRYING)) & 1
        return cls(
            centres=separation * (2.0 * bits.double() - 1.0),
            mixing=_uniform((CLOUDS, CARRYING, CARRYING), generator),
            redundant=_uniform((CARRYING, MIXED), generator),
            order=torch.randperm(FEATURES, generator=generator),
        )

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Features (count, 10) and classes 0 or 1; clouds are equally large up to one point."""
        cloud = torch.arange(count) % CLOUDS
        noise = torch.randn(count, CARRYING, generator=generator, dtype=torch.float64)
        carrying = torch.einsum("ni,nij->nj", noise, self.mixing[cloud]) + self.centres[cloud]
        rest = FEATURES - CARRYING - MIXED
        more = torch.randn(count, rest, generator=generator, dtype=torch.float64)
        features = torch.cat([carrying, carrying @ self.redundant, more], dim=1)
        return features[:, self.order], cloud % 2


def random_extractor(generator: torch.Generator) -> nn.Sequential:
    """φ: four layers with random orthogonal weights, random biases and leaky ReLUs between them."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i in range(1, LAYERS + 1):
        linear = nn.Linear(FEATURES, FEATURES, dtype=torch.float64)
        drawn = torch.randn(FEATURES, FEATURES, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.linalg.qr(drawn)[0])
            linear.bias.copy_(_uniform((FEATURES,), generator))
        layers[f"fc{i}"] = linear
        if i < LAYERS:
            layers[f"act{i}"] = nn.LeakyReLU(SLOPE)
    return nn.Sequential(layers)


@torch.no_grad()
def inputs_of(extractor: nn.Sequential, features: Tensor) -> Tensor:
    """φ⁻¹: the inputs that have these features."""
    z = features
    for layer in reversed(list(extractor)):
        if isinstance(layer, nn.Linear):
            z = torch.linalg.solve(layer.weight, (z - layer.bias).mT).mT
        else:
            z = torch.where(z >= 0, z, z / SLOPE)
    return z


def fit_ridge(features: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (10,) and bias of least squares on targets ±1 plus ‖w‖²; its bias is free."""
    targets = 2.0 * classes.double() - 1.0
    middle, centre = features.mean(dim=0), targets.mean()
    x = features - middle
    gram = x.mT @ x + RIDGE * torch.eye(FEATURES, dtype=torch.float64)
    weight = torch.linalg.solve(gram, x.mT @ (targets - centre))
    return weight, centre - middle @ weight


def fit_logistic(features: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (10,) and bias of the logistic loss plus ½‖w‖², by Newton steps to round-off."""
    x = torch.cat([features, torch.ones(len(features), 1, dtype=torch.float64)], dim=1)
    penalty = torch.full((FEATURES + 1,), RIDGE, dtype=torch.float64)
    penalty[-1] = 0.0
    w = torch.zeros(FEATURES + 1, dtype=torch.float64)

    def objective(at: Tensor) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(x @ at, classes.double(), reduction="sum")
        return losses + 0.5 * (penalty * at.square()).sum()

    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(x @ w)
        gradient = x.mT @ (p - classes.double()) + penalty * w
        hessian = x.mT @ ((p * (1 - p))[:, None] * x) + torch.diag(penalty)
        move = torch.linalg.solve(hessian, gradient)
        size = 1.0
        while objective(w - size * move) > objective(w) and size > 1e-10:
            size /= 2  # far from the minimum a whole step may overshoot
        w = w - size * move
        if float(move.norm()) <= 1e-10 * float(w.norm()):
            break
    return w[:-1], w[-1]


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform random numbers from −1 to 1."""
    return 2.0 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1.0


FITS = {"ridge": (fit_ridge, "mse"), "logistic": (fit_logistic, "bce")}


@dataclasses.dataclass(frozen=True)
class SeparationArguments:
    """How the points are drawn, and what is fitted to them."""

    separation: float = 1.0
    classifier: str = "ridge"  # or "logistic"
    points: int = 500
    fresh: int = 200_000  # points to test on


@task(
    "tasks_class_separation", uses=(), arguments=SeparationArguments
)  # points and classifier are made here
def run(settings: RunSettings, device: str | torch.device = "cpu") -> RunResult:
    """Everything depends on the seed and the task's arguments.

    The sums are small and in float64: they are done on the CPU whatever the device.
    """
    arguments = read_task(settings, SeparationArguments)
    if arguments.classifier not in FITS:
        raise SpiritlevelError(
            f"The study's task.classifier must be one of {', '.join(FITS)}. "
            f"Got {arguments.classifier!r}."
        )
    fit, loss = FITS[arguments.classifier]
    clouds = Clouds.draw(arguments.separation, derived_generator(settings.seed, "clouds"))
    extractor = random_extractor(derived_generator(settings.seed, "extractor"))
    features, classes = clouds.sample(
        arguments.points, derived_generator(settings.seed, "training points")
    )
    fresh, fresh_classes = clouds.sample(
        arguments.fresh, derived_generator(settings.seed, "fresh points")
    )
    weight, bias = fit(features, classes)
    head = nn.Linear(len(weight), 1, dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(weight[None])
        head.bias.copy_(bias)
    model = nn.Sequential(OrderedDict([*extractor.named_children(), ("head", head)])).eval()
    report = api.measure(
        model,
        [(inputs_of(extractor, features), _targets(classes, loss)[:, None])],
        loss=loss,
        measures=settings.measures,
        seed=settings.seed,
        distributed=False,
        **_measure_options(settings),
    )
    row = EpochRow(
        1,
        *_evaluate(features @ weight + bias, classes, loss),
        *_evaluate(fresh @ weight + bias, fresh_classes, loss),
    )
    return task_result(
        settings,
        report,
        outcome="fitted",
        epochs=(row,),
        num_train=len(features),
        num_test=len(fresh),
    )


def _measure_options(settings: RunSettings) -> dict[str, Any]:
    """The study's options; all points are measured, and only the linear layer is trained."""
    asked = settings.measure_options
    if asked.samples is not None:
        raise SpiritlevelError(
            "The study's measure_options.samples must be left out with this task: it measures on "
            f"all of its points. Got {asked.samples!r}. Set task.points instead."
        )
    return {"layers": "head", "options": asked.options} | asked.arguments


def _targets(classes: Tensor, loss: str) -> Tensor:
    """Classes as targets: ±1 for the squared loss, 0 and 1 for the logistic one."""
    return 2.0 * classes.double() - 1.0 if loss == "mse" else classes.double()


def _evaluate(outputs: Tensor, classes: Tensor, loss: str) -> tuple[float, float]:
    """Mean loss and accuracy."""
    targets = _targets(classes, loss)
    values = F.mse_loss if loss == "mse" else F.binary_cross_entropy_with_logits
    right = (outputs > 0) == (classes == 1)
    return float(values(outputs, targets)), float(right.double().mean())
