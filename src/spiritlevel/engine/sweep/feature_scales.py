"""The scale of every layer's input features, from one forward pass over the data.

Features are brought to one scale by a diagonal matrix V with one entry per input feature: with W V
in place of a layer's W, and its input divided by V, the network is the same function. κ of such a
network is mean Σ_k ‖V Wᵀ G V⁻¹‖² with the original's G, so the sweep of the original gives it too.

V is the standard deviation of a feature over the data, or its variance. The feature is an input
channel in a convolution (over samples and positions) and a token in an embedding (its one-hot
entry). A constant factor in V cancels, so V is given relative to its largest entry.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...model import batches as _batches
from ...model.arithmetic import full_precision
from ...model.autograd_graph import parameter_uses
from ...model.batches import BatchLocation
from ...model.layer_hooks import of_plain_calls
from ...model.layers import AbstractMatrixRule
from ...model.layers.embedding import EmbeddingRule
from ...model.layers.patches import ConvRule
from ...model.surface import Surface
from ...records.measurements import Cost
from .sums import RowKind

POWERS: dict[RowKind, int] = {"kappa_std": 1, "kappa_var": 2}  # of the deviation, by kind of κ

Scales = Mapping[RowKind, Mapping[str, Tensor]]  # V by kind and layer, one entry per feature
ReportInput = Callable[[str, Tensor], None]  # called with a layer's name and its input


@dataclasses.dataclass(frozen=True)
class FeatureSpread:
    """Count, mean and Σ (a − mean)² of every feature, in float64."""

    count: int
    mean: Tensor
    squares: Tensor
    round_off: float = 0.0  # relative: a feature that varies by less is constant
    smallest: float = 0.0  # below it the precision of the features runs out of digits

    @classmethod
    def of_rows(cls, rows: Tensor) -> FeatureSpread:
        """The spread of values of shape (positions, features)."""
        wide = rows.double()
        mean = wide.mean(dim=0) if len(rows) else wide.new_zeros(rows.shape[1])
        limits = torch.finfo(rows.dtype)
        round_off, smallest = min(1e3 * limits.eps, 0.05), limits.tiny / limits.eps
        return cls(len(rows), mean, (wide - mean).square().sum(dim=0), round_off, smallest)

    @classmethod
    def of_tokens(cls, tokens: Tensor, num_tokens: int) -> FeatureSpread:
        """For one-hot tokens: mean q and variance q(1 − q) for a token of frequency q."""
        count = tokens.numel()
        seen = torch.bincount(tokens.flatten(), minlength=num_tokens).double()
        mean = seen / max(count, 1)
        return cls(count, mean, seen * (1 - mean))

    def __add__(self, other: FeatureSpread) -> FeatureSpread:
        """For both parts of the data; stable, unlike Σa² − (Σa)²/n (Chan, Golub and LeVeque)."""
        count = self.count + other.count
        if not count:
            return self
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        between = apart.square() * (self.count * other.count / count)
        round_off = max(self.round_off, other.round_off)
        smallest = max(self.smallest, other.smallest)
        squares = self.squares + other.squares + between
        return FeatureSpread(count, mean, squares, round_off, smallest)

    def on(self, device: torch.device) -> FeatureSpread:
        """This spread with its tensors on a device."""
        return dataclasses.replace(self, mean=self.mean.to(device), squares=self.squares.to(device))

    def scale(self, power: int) -> Tensor:
        """V: the standard deviation of every feature (power 1) or its variance (power 2).

        A constant feature gets |mean| instead, which scales as a deviation does and so keeps the
        invariance. A feature that is always zero gets 0 and is left out; so does one so close to
        zero, as weight decay leaves behind of dead neurons, that its digits or 1/V do not exist.

        >>> rows = torch.tensor([[0.0, 5.0, 1.0], [0.0, 5.0, 3.0]])
        >>> FeatureSpread.of_rows(rows).scale(1).tolist()
        [0.0, 1.0, 0.2]
        """
        deviation = (self.squares / max(self.count, 1)).sqrt()
        size = self.mean.abs()
        v = torch.where(deviation <= self.round_off * size, size, deviation)
        v = v.where(v >= self.smallest, 0.0)
        relative = (v / v.max().clamp_min(torch.finfo(v.dtype).tiny)) ** power
        return relative.where(relative >= self.smallest, 0.0)


class StandardizedFeatures:
    """What goes into the layers of a network, found when it is asked for."""

    def __init__(self, surface: Surface, chunk: int) -> None:
        """`chunk` samples go through the network together."""
        self._surface, self._chunk = surface, chunk

    @functools.cached_property
    def unseen_layers(self) -> list[str]:
        """Layers whose weight is also used outside of their module: some input is not seen."""
        calls: dict[str, int] = {}

        def count(layer: str, a: Tensor) -> None:
            calls[layer] = calls.get(layer, 0) + 1

        surface = self._surface
        with surface.preserved(), torch.enable_grad(), _watching(surface, count):
            outputs, _ = surface.outputs(surface.first_samples(1), where=BatchLocation(0))
        uses = parameter_uses(outputs)
        return [
            layer
            for layer in surface.layers.matrix_rules
            if uses.get(id(surface.layers.module(layer).weight), 0) > calls.get(layer, 0)
        ]

    @functools.cached_property
    def spreads(self) -> tuple[dict[str, FeatureSpread], Cost]:
        """The spread of each layer's input over the data of all processes, and its cost."""
        surface = self._surface
        rules = surface.layers.matrix_rules
        before, spreads = surface.cost, dict[str, FeatureSpread]()
        exist: Tensor | None = None
        size = 0

        def add(layer: str, a: Tensor) -> None:
            part = _spread_of(rules[layer], surface.layers.module(layer), a, exist, size)
            spreads[layer] = spreads[layer] + part if layer in spreads else part

        with torch.no_grad(), full_precision(), surface.processes.together():
            for where, batch in surface.chunks(self._chunk):
                exist, size = _attention_mask(batch), _batches.num_samples(batch)
                with _watching(surface, add):  # not while a callback may call the model
                    surface.outputs(batch, where=where)
        total: dict[str, FeatureSpread] = {}
        on_host = {layer: spread.on(torch.device("cpu")) for layer, spread in spreads.items()}
        for part in surface.processes.gather(on_host):
            for layer, spread in part.items():
                total[layer] = total[layer] + spread if layer in total else spread
        total = {layer: spread.on(surface.device) for layer, spread in total.items()}
        return total, surface.processes.total_cost(surface.cost - before)

    @functools.cached_property
    def scales(self) -> Scales:
        """V for both kinds of standardized κ."""
        spreads, _ = self.spreads
        return {
            kind: {layer: spread.scale(power) for layer, spread in spreads.items()}
            for kind, power in POWERS.items()
        }


def by_column(scale: Tensor, matrix: Tensor) -> Tensor:
    """V for every column of a layer's matrix (g, out, in), shape (g, 1, in).

    Neuron j of a group owns the columns j, j + neurons, j + 2·neurons, ...
    """
    of_groups = scale.reshape(len(matrix), 1, -1)
    return of_groups.repeat(1, 1, matrix.shape[2] // of_groups.shape[2])


def _spread_of(
    rule: AbstractMatrixRule, module: nn.Module, a: Tensor, exist: Tensor | None, size: int
) -> FeatureSpread:
    """The spread of one input; `exist` marks the tokens of a padded batch that are no padding."""
    if isinstance(rule, EmbeddingRule):
        if len(a) == 1 < size:  # positions that all samples share
            a = a.expand(size, *a.shape[1:])
        tokens = a[exist] if exist is not None and exist.shape == a.shape else a
        return FeatureSpread.of_tokens(tokens, rule.neurons(module))
    rows = a.detach().movedim(_feature_dim(rule, module, a), -1)
    if exist is not None and rows.shape[:-1] == exist.shape:
        return FeatureSpread.of_rows(rows[exist])
    return FeatureSpread.of_rows(rows.reshape(-1, rows.shape[-1]))


def _feature_dim(rule: AbstractMatrixRule, module: Any, a: Tensor) -> int:
    """The dimension of a layer's input that holds the features."""
    return a.dim() - 1 - (len(module.kernel_size) if isinstance(rule, ConvRule) else 0)


def _attention_mask(batch: Any) -> Tensor | None:
    """Which tokens are no padding, if the batch has an attention mask."""
    if isinstance(batch, Mapping):
        mask = batch.get("attention_mask")
        return mask != 0 if isinstance(mask, Tensor) else None
    parts = batch if isinstance(batch, list | tuple) else []
    masks = [mask for mask in map(_attention_mask, parts) if mask is not None]
    return masks[0] if masks else None


@contextmanager
def _watching(surface: Surface, report: ReportInput) -> Iterator[None]:
    """Report every input of a measured layer during the block."""

    def watch(layer: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            report(layer, (*args, *kwargs.values())[0])

        return of_plain_calls(hook)

    with ExitStack() as stack:
        for layer in surface.layers.matrix_rules:
            module = surface.layers.module(layer)
            handle = module.register_forward_pre_hook(watch(layer), with_kwargs=True)
            stack.callback(handle.remove)
        yield
