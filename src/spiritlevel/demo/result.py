"""Running the demo, and everything it leaves behind."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .. import api
from .._core import Report, require
from ..checkpoints import checkpoint_bytes
from ..symmetries import rescale_layers, rescale_neurons
from . import networks
from .agreement import Agreement, agreement
from .networks import HIDDEN, RUNS, SGD, Trained, train

SHOWN = ("curvature.trace", "relative.kappa", "neuron.rho_sum", "softmax.gini")
ALL, CLEAN = "all networks", "those with clean labels"
SAME = "those with clean labels and equal training loss"
MOVED = ("curvature.trace", "relative.kappa", "neuron.rho_sum")

Progress = Callable[[float, float, str], None]  # steps done, steps in all, what is being done


@dataclasses.dataclass(frozen=True)
class Rescaling:
    """Measures of networks with the function of one network and other weights."""

    factors: list[float]
    curves: dict[str, list[float]]  # one value a factor
    change: float  # largest difference of an output, relative to the largest output


@dataclasses.dataclass(frozen=True)
class Demo:
    """What the demo found."""

    seed: int
    quick: bool
    trained: dict[str, Trained]
    reports: dict[str, Report]
    layerwise: Rescaling  # fc1 × α, fc2 ÷ α
    neuronwise: Rescaling  # the same for every second neuron only

    def agreement(self, measure: str, names: list[str]) -> Agreement:
        """Of a measure with the generalization gap, among some of the networks."""
        values = [self.reports[name][measure].value for name in names]
        return agreement(values, [self.trained[name].gap for name in names])

    def groups(self) -> dict[str, list[str]]:
        """Sets of networks in which measure and gap are compared."""
        clean = [name for name, t in self.trained.items() if not t.has_wrong_labels]
        level = self.trained[SGD].target_loss
        same = [
            n for n in clean if self.trained[n].target_loss == level and self.trained[n].reached
        ]
        groups = {ALL: list(self.trained), CLEAN: clean, SAME: same}
        return {name: members for name, members in groups.items() if len(members) > 2}

    def files(self) -> dict[str, bytes]:
        """Names and contents: the numbers, the picture, the page, the networks themselves."""
        from .page import page
        from .picture import draw

        picture = draw(self)
        found = {
            "demo.json": f"{json.dumps(self.to_dict(), indent=1, allow_nan=False)}\n".encode(),
            "picture.png": picture["png"],
            "picture.svg": picture["svg"],
            "report.html": page(self, picture["svg"].decode()).encode(),
        }
        for name, t in self.trained.items():
            found[f"networks/{file_name(name)}"] = checkpoint_bytes(t.model)
        return found

    def to_dict(self) -> dict[str, Any]:
        """All numbers, in plain types."""
        outcomes = ["recipe", "epochs", "target_loss", "reached", "train_loss", "test_loss"]
        outcomes += ["test_loss_stderr", "test_accuracy", "gap"]
        return {
            "format": "spiritlevel-demo-1",
            "seed": self.seed,
            "quick": self.quick,
            "network": f"mlp, hidden {HIDDEN}",
            "num_train": networks.NUM_TRAIN,
            "networks": {
                name: {key: getattr(t, key) for key in outcomes}
                | {"report": self.reports[name].to_dict()}
                for name, t in self.trained.items()
            },
            "agreement": {
                group: {m: dataclasses.asdict(self.agreement(m, names)) for m in SHOWN}
                for group, names in self.groups().items()
            },
            "rescaling": {
                "network": SGD,
                "layerwise": dataclasses.asdict(self.layerwise),
                "neuronwise": dataclasses.asdict(self.neuronwise),
            },
        }


def run(*, seed: int = 0, quick: bool = False, progress: Progress | None = None) -> Demo:
    """Train, measure, rescale. The same seed gives the same numbers on the same machine."""
    for package, what, extra in (
        ("matplotlib", "The demo's picture", "plots"),
        ("safetensors.torch", "Writing .safetensors files", "cli"),
    ):
        require(package, what=what, extra=extra)  # now, not after the training
    tell = progress or (lambda done, total, text: None)
    total = 2 * sum(len(r.stops) for r in RUNS) + 2
    trained: dict[str, Trained] = {}
    with _one_thread():
        for r in RUNS:
            tell(len(trained), total, f"training: {', '.join(r.stops)}")
            for network in train(r, seed=seed, quick=quick):
                trained[network.name] = network
                tell(len(trained), total, f"training: {', '.join(r.stops)}")
        reports: dict[str, Report] = {}
        for name, t in trained.items():
            tell(len(trained) + len(reports), total, f"measuring: {name}")
            reports[name] = api.measure(t.model, (t.x, t.y), seed=seed)
        tell(total - 2, total, "rescaling one of them")
        width = HIDDEN[0]
        half = torch.arange(width) % 2 == 0
        every = torch.ones(width, dtype=torch.bool)
        steps = 2 if quick else 8
        factors = [10 ** (i / steps) for i in range(-steps, steps + 1)]  # 0.1 to 10
        layerwise = _rescaled(trained[SGD], every, factors)
        tell(total - 1, total, "rescaling half of its neurons")
        neuronwise = _rescaled(trained[SGD], half, factors)
        tell(total, total, "drawing")
    return Demo(seed, quick, trained, reports, layerwise, neuronwise)


def _rescaled(t: Trained, which: Tensor, factors: list[float]) -> Rescaling:
    """Measure copies whose chosen fc1 neurons are multiplied by α, and divided out in fc2."""
    curves: dict[str, list[float]] = {name: [] for name in MOVED}
    change = 0.0
    with torch.no_grad():
        before = t.model(t.x)
    for factor in factors:
        moved = _move(t.model, which, factor)
        with torch.no_grad():
            gap = (moved(t.x) - before).abs().max() / before.abs().max()
        change = max(change, float(gap))
        report = api.measure(moved, (t.x, t.y), measures=MOVED)
        for name in MOVED:
            curves[name].append(report[name].value)
    return Rescaling(factors, curves, change)


def _move(model: nn.Module, which: Tensor, factor: float) -> nn.Module:
    if bool(which.all()):
        return rescale_layers(model, "fc1", "fc2", factor)
    return rescale_neurons(model, "fc1", "fc2", torch.where(which, factor, 1.0))


def spread_of(values: list[float]) -> float:
    """Largest over smallest."""
    return max(values) / min(values) if min(values) > 0 else math.inf


def file_name(network: str) -> str:
    """The file a network is kept in.

    >>> file_name("SGD, full batch")
    'sgd-full-batch.safetensors'
    """
    return "-".join(network.lower().replace(",", "").split()) + ".safetensors"


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Small networks run fastest on one, and sums then come in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
