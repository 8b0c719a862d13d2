"""The networks that are asked about, and what is known of them."""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from ours import reference
from tools import DIAGONAL, GGN, LARGEST, LAYERS, Answer, Data, Scores, by_layer, total
from torch import Tensor, nn

import spiritlevel as sl

sys.path.insert(0, str(Path(__file__).parents[1]))

import networks

PROBES = 30  # for the spread of one
Z = 1.96  # standard errors in an interval of 95 %


@dataclasses.dataclass(frozen=True)
class Subject:
    make: Callable[[torch.device], networks.Network]
    is_piecewise_linear: bool = True
    is_certified: bool = True  # all of its diagonal is known exactly


SUBJECTS = {
    "GPT-2 small": Subject(networks.gpt2, False, False),
    "ViT-B/16": Subject(networks.vit, False, False),
    "VGG-small": Subject(networks.vgg_small),
    "ResNet-18": Subject(networks.resnet18),
    "MLP": Subject(networks.mlp),
    "tanh-MLP": Subject(networks.tanh_mlp, False),
    "MLP, untrained": Subject(networks.untrained_mlp),
    "ResNet-18, untrained": Subject(networks.untrained_resnet18),
    "ResNet-50": Subject(networks.resnet50, True, False),
    "head of GPT-2": Subject(networks.language_model_head, True, False),
}


class Made:
    """One subject, trained, with the truths that answers are compared with.

    It is kept on the host, so that its memory is not counted as that of a call.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.subject, self.device = SUBJECTS[name], device
        model, data = self.subject.make(device)
        self.loss, self.accuracy = score(model, data)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.model, self.data = model.cpu(), data
        self.part: int | None = None  # samples at a time that take as much memory as we do
        self._truths: dict[str, Answer] = {}
        self.known_to: dict[str, float] = {}  # relative
        self.spread: dict[str, float] = {}

    def fresh(self) -> nn.Module:
        return copy.deepcopy(self.model).to(self.device)

    def truth(self, question: str) -> Answer | None:
        """What the answer is, or None for questions whose answer is no one number."""
        kind = question if question in (LAYERS, GGN, LARGEST, DIAGONAL) else "trace"
        if kind not in self._truths:
            self._find(kind)
        return self._truths.get(kind)

    def _find(self, kind: str) -> None:
        model = self.fresh()
        if kind == LARGEST:
            found = sl.eigenvalues(model, self.data, rtol=1e-4, max_passes=500)
            self._truths[LARGEST], self.known_to[LARGEST] = float(found.values[0]), 1e-4
        elif self.subject.is_certified:
            diagonal = exact_diagonal(model, self.data)
            self._truths |= {LAYERS: by_layer(diagonal), DIAGONAL: diagonal}
            self._truths["trace"] = self._truths[GGN] = total(diagonal)
            self.known_to["trace"] = self.known_to[GGN] = 0.0
            if not self.subject.is_piecewise_linear:
                ggn = sl.measure(model, self.data, measures="curvature.ggn_trace", method="exact")
                self._truths[GGN] = ggn["curvature.ggn_trace"].value
        else:
            report = reference(model, self.data, 0.005)
            for measure, name in (("curvature.trace", "trace"), ("curvature.ggn_trace", GGN)):
                found = report[measure]
                self._truths[name] = found.value
                self.known_to[name] = Z * (found.stderr or 0.0) / abs(found.value)
            layers = report.layers["curvature.trace"]
            self._truths[LAYERS] = {n: torch.tensor(v.value).double() for n, v in layers.items()}
            errors = sum(Z * (v.stderr or 0.0) for v in layers.values())
            self.known_to[LAYERS] = errors / sum(abs(v.value) for v in layers.values())

    def products(self, question: str, tolerance: float) -> int:
        """With random signs: so many that a 95 % interval is as narrow as the tolerance."""
        kind = question if question in (GGN, LAYERS) else "trace"
        if kind not in self.spread:
            self.spread |= spreads(self.fresh(), self.data, self.truth)
        return max(1, math.ceil((Z * self.spread[kind] / tolerance) ** 2))


def exact_diagonal(model: nn.Module, data: Data) -> dict[str, Tensor]:
    """Of the Hessian, in float64; without our library where all layers are plain and in a row."""
    weighted = {type(m) for m in model.modules() if list(m.parameters(recurse=False))}
    if not isinstance(model, nn.Sequential) or weighted != {nn.Linear}:
        found = sl.diagonal(model, data, kind="hessian")
        if not all(found.exact.values()):
            raise ValueError(f"the diagonal is not exact: {found.text}")
        return {name: entries.detach().cpu() for name, entries in found.values.items()}
    model = copy.deepcopy(model).double()
    x, added, inputs = data[0].double(), {}, {}
    for name, layer in model.named_children():
        if isinstance(layer, nn.Linear):  # what is added to its output has the Hessian of a sample
            inputs[name] = x.detach()
            added[name] = torch.zeros(len(x), layer.out_features).to(x).requires_grad_()
            x = layer(x) + added[name]
        else:
            x = layer(x)
    loss = F.cross_entropy(x, data[1], reduction="sum")
    diagonal = {}
    for name, e in added.items():
        (slope,) = torch.autograd.grad(loss, e, create_graph=True)
        rows = [
            torch.autograd.grad(slope[:, i].sum(), e, retain_graph=True)[0][:, i]
            for i in range(e.shape[1])
        ]
        curvature = torch.stack(rows, dim=1) / len(x)  # by sample and output
        diagonal[f"{name}.weight"] = (curvature.T @ inputs[name].square()).cpu()
        diagonal[f"{name}.bias"] = curvature.sum(0).cpu()
    return diagonal


def score(model: nn.Module, data: Data) -> tuple[float, float]:
    """Loss and accuracy on the data that is measured."""
    with torch.no_grad():
        scores, labels = Scores(model)(data[0]), data[1].flatten()
        loss = F.cross_entropy(scores, labels)
    return float(loss), float((scores.argmax(-1) == labels).double().mean())


def spreads(
    model: nn.Module, data: Data, truth: Callable[[str], Answer | None]
) -> dict[str, float]:
    """Standard deviation of one product with random signs, relative to the value.

    By plain torch. For all layers it is the sum of theirs over the sum of the traces.
    """
    scores, labels = Scores(model), data[1].flatten()
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    generator = torch.Generator(data[0].device).manual_seed(1)
    loss = F.cross_entropy(scores(data[0]), labels)
    slopes = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    by_matrix: dict[str, list[float]] = {"trace": [], GGN: []}
    layers: list[Mapping[str, Tensor]] = []
    for _ in range(PROBES):
        signs = {
            n: torch.randint(2, p.shape, generator=generator, device=p.device).to(p) * 2 - 1
            for n, p in parameters.items()
        }
        dotted = sum((s * v).sum() for s, v in zip(slopes, signs.values(), strict=True))
        found = torch.autograd.grad(dotted, list(parameters.values()), retain_graph=True)
        part = {n: (signs[n] * hv).sum() for n, hv in zip(parameters, found, strict=True)}
        layers.append(by_layer(part))
        by_matrix["trace"].append(total(part))
    del loss, slopes
    for probe in range(PROBES):
        by_matrix[GGN].append(ggn_form(scores, parameters, data[0], probe))
    made = {}
    for name, values in by_matrix.items():
        made[name] = float(torch.tensor(values).std() / abs(float(truth(name))))  # type: ignore[arg-type]
    known = truth(LAYERS)
    deviations = [torch.stack([found[n] for found in layers]).std() for n in layers[0]]
    made[LAYERS] = float(sum(deviations) / sum(abs(float(v)) for v in known.values()))  # type: ignore[union-attr]
    return made


def ggn_form(scores: nn.Module, parameters: dict[str, Tensor], x: Tensor, seed: int) -> float:
    """vᵀGv with random signs v, by one forward derivative of the outputs."""
    generator = torch.Generator(x.device).manual_seed(seed)
    signs = {
        n: torch.randint(2, p.shape, generator=generator, device=p.device).to(p) * 2 - 1
        for n, p in parameters.items()
    }
    names = {f"model.{n}": p.detach() for n, p in parameters.items()}
    tangents = {f"model.{n}": v for n, v in signs.items()}

    def outputs(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(scores, weights, (x,))

    with torch.no_grad():
        logits, change = torch.func.jvp(outputs, (names,), (tangents,))
        p = logits.double().softmax(-1)
        change = change.double()
        mean = (p * change).sum(-1, keepdim=True)
        return float((p * (change - mean) ** 2).sum(-1).mean())


def error(answer: Answer, truth: Answer) -> float:
    """Relative: of a number; of entries, in the 2-norm; of layers, sums of absolute values."""
    if isinstance(truth, float):
        return abs(float(answer) - truth) / abs(truth)  # type: ignore[arg-type]
    assert not isinstance(answer, float)
    if set(answer) != set(truth):
        raise ValueError(f"other layers: {sorted(set(answer) ^ set(truth))[:4]}")
    pairs = [
        (answer[name].detach().cpu().double(), known.double()) for name, known in truth.items()
    ]
    if all(known.ndim == 0 for _, known in pairs):
        off = sum(abs(float(found - known)) for found, known in pairs)
        return off / sum(abs(float(known)) for _, known in pairs)
    off = sum(float(((found - known) ** 2).sum()) for found, known in pairs)
    return math.sqrt(off / sum(float((known**2).sum()) for _, known in pairs))
