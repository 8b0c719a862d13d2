"""Relative flatness after every layer's input features were brought to one scale.

A copy of the network has W V in place of a layer's W and divides what goes into the layer by V, a
diagonal matrix with one entry an input feature. It computes the same function, and κ of its layers
is mean Σ_k ‖V Wᵀ G V⁻¹‖² of the original's. One forward pass finds V; the copy then goes through
the same sweep, certificate and probes as any network.

V is the standard deviation of a feature over the data, or its variance. The feature is an input
channel in a convolution (over samples and positions) and a token in an embedding (its one-hot
entry). A constant factor in V cancels, so V is given relative to its largest entry.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .. import _batches
from .._core import Cost, SpiritlevelError
from ..hygiene import full_precision
from ..layers import AbstractMatrixRule
from ..layers.embedding import EmbeddingRule
from ..layers.patches import ConvRule, ConvTransposeRule, TransposedLinearRule
from ..surface import Place, Surface
from ..taps import parameter_uses
from .hessian import HessianRows, precise
from .plan import matrix_layers
from .work import Work

Take = Callable[[str, Tensor], None]  # a layer and what goes into it


@dataclasses.dataclass(frozen=True)
class Spread:
    """Count, mean and Σ (a − mean)² of every feature, in float64."""

    count: int
    mean: Tensor
    squares: Tensor
    round_off: float = 0.0  # relative: what varies by less is constant

    @classmethod
    def of_rows(cls, rows: Tensor) -> Spread:
        """From values of shape (positions, features)."""
        wide = rows.double()
        mean = wide.mean(dim=0) if len(rows) else wide.new_zeros(rows.shape[1])
        round_off = min(1e3 * torch.finfo(rows.dtype).eps, 0.05)
        return cls(len(rows), mean, (wide - mean).square().sum(dim=0), round_off)

    @classmethod
    def of_tokens(cls, tokens: Tensor, num_tokens: int) -> Spread:
        """Of the one-hot entries of tokens: q and q(1 − q) for a token of frequency q."""
        count = tokens.numel()
        seen = torch.bincount(tokens.flatten(), minlength=num_tokens).double()
        mean = seen / max(count, 1)
        return cls(count, mean, seen * (1 - mean))

    def __add__(self, other: Spread) -> Spread:
        """Of both parts of the data; stable, unlike Σa² − (Σa)²/n (Chan, Golub and LeVeque)."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        between = apart.square() * (self.count * other.count / count)
        round_off = max(self.round_off, other.round_off)
        return Spread(count, mean, self.squares + other.squares + between, round_off)

    def on(self, device: torch.device) -> Spread:
        """The same elsewhere."""
        return dataclasses.replace(self, mean=self.mean.to(device), squares=self.squares.to(device))

    def scale(self, power: int) -> Tensor:
        """V: the standard deviation of every feature (power 1) or its variance (power 2).

        A feature that is constant has |mean| in its place, which scales as a deviation does and so
        keeps the invariance. One that is zero everywhere has 0 and takes no part.

        >>> Spread.of_rows(torch.tensor([[0.0, 5.0, 1.0], [0.0, 5.0, 3.0]])).scale(1).tolist()
        [0.0, 1.0, 0.2]
        """
        deviation = (self.squares / max(self.count, 1)).sqrt()
        size = self.mean.abs()
        v = torch.where(deviation <= self.round_off * size, size, deviation)
        return (v / v.max().clamp_min(torch.finfo(v.dtype).tiny)) ** power


def standardized_rows(
    work: Work, power: int, weights: Mapping[str, str]
) -> tuple[HessianRows, Cost]:
    """κ of the layers of the standardized copy, and all that it cost.

    `weights` gives each layer's parameter.
    """
    key = ("standardized", power)
    if key not in work.cache:
        spreads, cost = feature_spreads(work)
        surface = work.surface
        called: set[str] = set()
        inner = _surface_of_copy(surface, {n: s.scale(power) for n, s in spreads.items()}, called)
        inner.parameters = {name: inner.parameters[name] for name in weights.values()}
        own = Work(inner, memory=work.memory, seed=work.seed, precision=work.precision)
        rows = precise(own, "kappa", weights, dict.fromkeys(weights, 1.0))
        surface.cost += inner.cost
        work.cache[key] = rows, cost + surface.processes.total_cost(inner.cost)
        if spreads and not any(surface.processes.gather(called)):
            raise SpiritlevelError(
                "The 'forward' argument must run the model that it is given: standardized features "
                "are measured on a copy of it, and the copy was never called. Write "
                "forward=lambda model, batch: (model(...), targets)."
            )
    found: tuple[HessianRows, Cost] = work.cache[key]
    return found


def feature_spreads(work: Work) -> tuple[dict[str, Spread], Cost]:
    """The spread of what goes into each layer, over the data of all processes, and its cost."""
    if "feature_spreads" not in work.cache:
        work.cache["feature_spreads"] = _find_spreads(work)
    found: tuple[dict[str, Spread], Cost] = work.cache["feature_spreads"]
    return found


def unseen_layers(work: Work) -> list[str]:
    """Layers whose weight is used past their own module, so that an input of it is not seen."""
    if "unseen_layers" not in work.cache:
        surface = work.surface
        calls: dict[str, int] = {}

        def count(layer: str, a: Tensor) -> None:
            calls[layer] = calls.get(layer, 0) + 1

        with surface.preserved(), torch.enable_grad(), _watching(surface, count):
            outputs, _ = surface.outputs(surface.first_samples(1), where=Place(0))
        uses = parameter_uses(outputs)
        work.cache["unseen_layers"] = [
            layer
            for layer in matrix_layers(surface)
            if uses.get(id(surface.module(layer).weight), 0) > calls.get(layer, 0)
        ]
    found: list[str] = work.cache["unseen_layers"]
    return found


def _find_spreads(work: Work) -> tuple[dict[str, Spread], Cost]:
    surface, rules = work.surface, matrix_layers(work.surface)
    chunk = work.plan.footprint.chunk(work.memory, sweep=False)
    before, found = surface.cost, dict[str, Spread]()
    exist: Tensor | None = None
    size = 0

    def add(layer: str, a: Tensor) -> None:
        part = _spread_of(rules[layer], surface.module(layer), a, exist, size)
        found[layer] = found[layer] + part if layer in found else part

    with torch.no_grad(), full_precision(), surface.processes.together(), _watching(surface, add):
        for where, batch in surface.chunks(chunk):
            exist, size = _attention_mask(batch), _batches.num_samples(batch)
            surface.outputs(batch, where=where)
    total: dict[str, Spread] = {}
    own = {layer: spread.on(torch.device("cpu")) for layer, spread in found.items()}
    for part in surface.processes.gather(own):
        for layer, spread in part.items():
            total[layer] = total[layer] + spread if layer in total else spread
    total = {layer: spread.on(surface.device) for layer, spread in total.items()}
    return total, surface.processes.total_cost(surface.cost - before)


def _spread_of(
    rule: AbstractMatrixRule, module: nn.Module, a: Tensor, exist: Tensor | None, size: int
) -> Spread:
    """Of one use; `exist` marks the tokens of a padded batch that are there."""
    if isinstance(rule, EmbeddingRule):
        if len(a) == 1 < size:  # positions that all samples share
            a = a.expand(size, *a.shape[1:])
        tokens = a[exist] if exist is not None and exist.shape == a.shape else a
        return Spread.of_tokens(tokens, rule.neurons(module))
    rows = a.detach().movedim(_feature_dim(rule, module, a), -1)
    if exist is not None and rows.shape[:-1] == exist.shape:
        return Spread.of_rows(rows[exist])
    return Spread.of_rows(rows.reshape(-1, rows.shape[-1]))


def _feature_dim(rule: AbstractMatrixRule, module: Any, a: Tensor) -> int:
    """Which dimension of a layer's input holds the features."""
    return a.dim() - 1 - (len(module.kernel_size) if isinstance(rule, ConvRule) else 0)


def _attention_mask(batch: Any) -> Tensor | None:
    """Which tokens exist, where a batch says so."""
    if isinstance(batch, Mapping):
        mask = batch.get("attention_mask")
        return mask != 0 if isinstance(mask, Tensor) else None
    parts = batch if isinstance(batch, list | tuple) else []
    found = [mask for mask in map(_attention_mask, parts) if mask is not None]
    return found[0] if found else None


@contextmanager
def _watching(surface: Surface, take: Take) -> Iterator[None]:
    """During the block `take` is given every input of a measured layer."""

    def watch(layer: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            take(layer, (*args, *kwargs.values())[0])

        return hook

    with ExitStack() as stack:
        for layer in matrix_layers(surface):
            module = surface.module(layer)
            handle = module.register_forward_pre_hook(watch(layer), with_kwargs=True)
            stack.callback(handle.remove)
        yield


# -- the copy -----------------------------------------------------------------------------------


def _surface_of_copy(surface: Surface, scales: Mapping[str, Tensor], called: set[str]) -> Surface:
    """The same function with standardized layers, on the same data; `called` notes which ran."""
    try:
        model = copy.deepcopy(surface.model)
    except (RuntimeError, TypeError) as error:
        raise SpiritlevelError(
            "Standardized features are measured on a copy of the model, and it cannot be copied: "
            f"copy.deepcopy raised {type(error).__name__}: {error}. Leave relative.kappa_std and "
            "relative.kappa_var out of 'measures'."
        ) from error
    made = Surface(
        model,
        surface.data,
        loss=surface.loss,
        forward=surface.forward,
        progress=surface.progress,
        processes=surface.processes,
    )
    for layer, rule in matrix_layers(surface).items():
        if layer in scales:
            _standardize(
                rule, made.module(layer), scales[layer], functools.partial(called.add, layer)
            )
    return made


def _standardize(
    rule: AbstractMatrixRule, module: Any, scale: Tensor, note: Callable[[], None]
) -> None:
    """W V for the weight, and V⁻¹ for what goes in; a feature that is always zero stays so."""
    inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
    with torch.no_grad():
        module.weight.copy_(_times_features(rule, module, module.weight.double(), scale))
    if isinstance(rule, EmbeddingRule):  # W V one_hot / v is a row of the table over its v
        module.register_forward_hook(lambda _, args, out: _over_tokens(args[0], out, inverse, note))
        return

    def divide(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        note()
        first = args[0] if args else next(iter(kwargs.values()))
        shape = [1] * first.dim()
        shape[_feature_dim(rule, module, first)] = -1
        changed = first * inverse.reshape(shape).to(first)
        if args:
            return (changed, *args[1:]), kwargs
        return args, kwargs | {next(iter(kwargs)): changed}

    module.register_forward_pre_hook(divide, with_kwargs=True)


def _over_tokens(tokens: Tensor, out: Tensor, inverse: Tensor, note: Callable[[], None]) -> Tensor:
    note()
    return out * inverse[tokens].unsqueeze(-1).to(out)


def _times_features(rule: AbstractMatrixRule, module: Any, weight: Tensor, scale: Tensor) -> Tensor:
    """W V in the weight's own shape, whichever dimension holds the input features."""
    if isinstance(rule, TransposedLinearRule | ConvTransposeRule | EmbeddingRule):
        return weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
    groups = getattr(module, "groups", 1)
    rows = weight.unflatten(0, (groups, -1))  # (groups, out, in, kernel…)
    return (rows * scale.reshape(groups, 1, -1, *[1] * (weight.dim() - 2))).flatten(0, 1)
