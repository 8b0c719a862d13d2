"""Linear and convolutional layers: a matrix applied to every input patch."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...math import contractions
from ...math.contractions import Form, Shape
from .layer_matrix import Contracted, LayerMatrix, over_columns
from .layer_rule import AbstractMatrixGradients, AbstractMatrixRule, ContractionRequest
from .layout import Layout
from .unfold import conv_windows, transposed_windows

# The patches of a few samples at a time stay in a CPU core's cache. Allocating them for all samples
# costs ten times as much as the copy, since memory above 32 MiB is allocated page by page.
BLOCK_BYTES = 4 << 20


@dataclasses.dataclass
class PatchGradients(AbstractMatrixGradients):
    """One use of a linear or convolutional layer."""

    rule: PatchRule
    module: Any
    layout: Layout
    a: Tensor
    out: torch.Size
    shape: Shape
    form: Form
    memory: Tensor | None = None  # what the vector and gram forms need of the patches
    memories: dict[str, Tensor] = dataclasses.field(default_factory=dict)  # for u V⁻¹, by kind of κ

    @property
    def needs_input_gradient(self) -> bool:
        """ρ is computed from G where G is formed, otherwise from the gradient at the input."""
        return self.form != "direct"

    def gradients(self, delta: Tensor) -> dict[str, Tensor]:
        """The per-sample gradients of the weight and the bias."""
        signal = self.rule.signal(self.module, delta, self.layout)
        patches = self.rule.patches(self.module, self.a, self.out, self.layout)
        G = self.rule.from_matrix(self.module, contractions.gradient(signal, patches))
        return {"weight": G, "bias": self.bias_gradient(delta)}

    def bias_gradient(self, delta: Tensor) -> Tensor:
        """The per-sample gradients of the bias, shape (N, out)."""
        return self.rule.signal(self.module, delta, self.layout).sum(dim=3).flatten(1)

    def contract(
        self, deltas: list[Tensor], factors: Tensor, weight: LayerMatrix
    ) -> list[Contracted]:
        """Trace, κ and, in the direct form, the terms of ρ."""
        if self.form == "direct":
            return self._contract_direct(deltas, factors, weight)
        memory, form = self.memory, self.form
        assert memory is not None

        def column(delta: Tensor) -> tuple[Tensor, ...]:
            signal = self.rule.signal(self.module, delta, self.layout)
            values = [contractions.trace(signal, memory, form)]
            for kind, relative in weight.kappas.items():
                patch_memory = self.memories.get(kind, memory)
                values.append(contractions.kappa(signal, patch_memory, form, relative.gram))
            return tuple(values)

        trace, *kappas = over_columns(column, deltas)
        return [Contracted(factors, trace, dict(zip(weight.kappas, kappas, strict=True)), None)]

    def _contract_direct(
        self, deltas: list[Tensor], factors: Tensor, weight: LayerMatrix
    ) -> list[Contracted]:
        """In blocks of samples, so that their patches stay in cache for all columns."""
        signals = [self.rule.signal(self.module, delta, self.layout) for delta in deltas]
        parts = []
        for part, patches in self._blocks(len(factors)):
            products = [contractions.gradient(signal[part], patches) for signal in signals]
            parts.append(weight.contract(torch.stack(products, dim=1), factors[part]))
        return parts

    def _blocks(self, num_samples: int) -> Iterator[tuple[slice, Tensor]]:
        """Pieces of the batch with their patches, unfolded one by one into a small buffer."""
        windows = self.rule.windows(self.module, self.a, self.out, self.layout)
        if windows is None or self.a.device.type != "cpu":
            yield slice(None), self.rule.patches(self.module, self.a, self.out, self.layout)
            return
        size = max(1, BLOCK_BYTES // (windows[0].numel() * windows.element_size()))
        threads = torch.get_num_threads()
        size = -(-size // threads) * threads  # the same number of samples for each thread
        buffer = windows.new_empty(min(size, num_samples), *windows.shape[1:])
        for start in range(0, num_samples, size):
            part = slice(start, start + size)
            piece = windows[part]
            block = buffer[: len(piece)].copy_(piece)
            yield part, block.view(len(piece), self.shape.groups, -1, self.shape.columns)

    def contract_input(self, input_gradient: Tensor) -> Tensor:
        """The terms of ρ from the gradient at the input, shape (N, neurons)."""
        return self.rule.per_neuron(self.module, self.a * input_gradient, self.layout)


class PatchRule(AbstractMatrixRule):
    """Layers of the form output_t = W u_t + b: linear and convolutional."""

    @abc.abstractmethod
    def patches(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """Input patches u of shape (N, g, T, in)."""

    @abc.abstractmethod
    def windows(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor | None:
        """The patches as a view of the input, not copied yet; None if there is no such view."""

    @abc.abstractmethod
    def signal(self, module: Any, delta: Tensor, layout: Layout) -> Tensor:
        """The gradient δ at the output, in shape (N, g, out, T)."""

    @abc.abstractmethod
    def from_matrix(self, module: Any, G: Tensor) -> Tensor:
        """The inverse of `matrix`: (N, g, out, in) becomes (N, *weight)."""

    @abc.abstractmethod
    def per_neuron(self, module: Any, x: Tensor, layout: Layout) -> Tensor:
        """Sum x, which has the input's shape, over everything but samples and input neurons."""

    def prepare(
        self, module: Any, a: Tensor, out: torch.Size, layout: Layout, request: ContractionRequest
    ) -> PatchGradients:
        """Choose the form and compute once what all factor columns share."""
        shape = self.shape(module, a, out, layout)
        form = contractions.choose_form(shape, num_columns=request.num_columns, kappa=request.kappa)
        form = "direct" if request.direct else form
        prepared = PatchGradients(self, module, layout, a, out, shape, form)
        if form != "direct" and request.contract:
            patches = self.patches(module, a, out, layout)
            prepared.memory = contractions.remember(patches, form)
            for kind, inverse in request.inverses.items():
                prepared.memories[kind] = contractions.remember(patches * inverse, form)
        return prepared


class LinearRule(PatchRule):
    """y = W a + b over any leading dimensions."""

    def leading(self, module: Any, out: torch.Size) -> int:
        """All dimensions but the last, which holds the features."""
        return len(out) - 1

    def patches(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """The input at every position."""
        split = layout.split(a)
        return split.reshape(len(split), 1, -1, a.shape[-1])

    def windows(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor | None:
        """None: a linear layer has nothing to unfold."""
        return None

    def squared_inputs(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """The squared input, summed over positions and features."""
        return layout.split(a).double().square().flatten(1).sum(dim=1)

    def signal(self, module: Any, delta: Tensor, layout: Layout) -> Tensor:
        """The gradient δ at the output, in shape (N, 1, out, T)."""
        split = layout.split(delta)
        return split.reshape(len(split), 1, -1, delta.shape[-1]).mT

    def matrix(self, module: Any, weight: Tensor) -> Tensor:
        """(out, in) becomes (1, out, in)."""
        return weight.unsqueeze(-3)

    def from_matrix(self, module: Any, G: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        return G.squeeze(1)

    def neurons(self, module: Any) -> int:
        """One per input feature."""
        return module.in_features

    def per_neuron(self, module: Any, x: Tensor, layout: Layout) -> Tensor:
        """Sum over the positions."""
        split = layout.split(x)
        return split.reshape(len(split), -1, x.shape[-1]).sum(dim=1)

    def shape(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Shape:
        """T counts all positions of a sample."""
        return Shape(1, out[-1], a.shape[-1], math.prod(out[:-1]) // layout.num_samples)


class TransposedLinearRule(LinearRule):
    """y = a W + b: a linear layer that keeps its weight as (in, out)."""

    rows_first = False

    def matrix(self, module: Any, weight: Tensor) -> Tensor:
        """(in, out) becomes (1, out, in)."""
        return weight.mT.unsqueeze(-3)

    def from_matrix(self, module: Any, G: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        return G.squeeze(1).mT

    def neurons(self, module: Any) -> int:
        """One per input feature."""
        return len(module.weight)


class ConvRule(PatchRule):
    """Convolutions in 1, 2 or 3 dimensions with groups, stride, dilation and any padding mode."""

    def leading(self, module: Any, out: torch.Size) -> int:
        """Only the first: convolutions take the batch there, unless they run without one."""
        return 1 if len(out) == 2 + _spatial(module) else 0

    def patches(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """The unfolded input windows."""
        windows = self.raw_windows(module, a, out)
        spatial = _spatial(module)
        patches = windows.flatten(2 + spatial).flatten(2, 1 + spatial)
        return _merge_repeats(patches.mT, layout).mT

    def windows(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor | None:
        """A view of the padded input; None if samples are repeated."""
        return self.raw_windows(module, a, out) if layout.repeats(a.shape) == 1 else None

    def raw_windows(self, module: Any, a: Tensor, out: torch.Size) -> Tensor:
        """Input windows of shape (N, groups, positions…, kernel…, in/groups)."""
        return conv_windows(module, a)

    def squared_inputs(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """Windows of the squares, whose channels are summed first: padding commutes with both."""
        squares = a.double().square().unflatten(1, (module.groups, -1)).sum(dim=2)
        windows = self.raw_windows(module, squares, out)
        return layout.split(windows.flatten(1).sum(dim=1)).sum(dim=1)

    def signal(self, module: Any, delta: Tensor, layout: Layout) -> Tensor:
        """The gradient δ at the output, in shape (N, g, out/g, T)."""
        grouped = delta.reshape(len(delta), module.groups, delta.shape[1] // module.groups, -1)
        return _merge_repeats(grouped, layout)

    def matrix(self, module: Any, weight: Tensor) -> Tensor:
        """(out, in/g, k…) becomes (g, out/g, K·in/g)."""
        groups = module.groups
        rows = weight.flatten(-_spatial(module)).mT.flatten(-2)  # (…, out, K·in/g)
        return rows.unflatten(-2, (groups, -1))

    def from_matrix(self, module: Any, G: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        shape = module.weight.shape
        taps = math.prod(shape[2:])
        return G.flatten(1, 2).unflatten(-1, (taps, -1)).mT.reshape(len(G), *shape)

    def neurons(self, module: Any) -> int:
        """One per input channel of a group."""
        return module.in_channels // module.groups

    def per_neuron(self, module: Any, x: Tensor, layout: Layout) -> Tensor:
        """Sum over the positions of each channel."""
        return layout.split(x.flatten(2).sum(dim=2)).sum(dim=1)

    def shape(self, module: Any, a: Tensor, out: torch.Size, layout: Layout) -> Shape:
        """The sizes of the matrix; its positions are those of the output."""
        fan_in = self.neurons(module) * math.prod(module.kernel_size)
        groups, rows = module.groups, out[1] // module.groups
        return Shape(groups, rows, fan_in, math.prod(out[2:]) * layout.repeats(out))


class ConvTransposeRule(ConvRule):
    """A transposed convolution as a convolution of the input with zeros inserted."""

    rows_first = False

    def raw_windows(self, module: Any, a: Tensor, out: torch.Size) -> Tensor:
        """Windows of the input with zeros between its entries."""
        return transposed_windows(module, a, out[2:])

    def matrix(self, module: Any, weight: Tensor) -> Tensor:
        """(in, out/g, k…) becomes (g, out/g, K·in/g), with the kernel reversed."""
        groups = module.groups
        taps = weight.flatten(-_spatial(module)).flip(-1)  # (…, in, out/g, K)
        return taps.unflatten(-3, (groups, -1)).transpose(-3, -1).transpose(-3, -2).flatten(-2)

    def from_matrix(self, module: Any, G: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        shape = module.weight.shape
        taps = math.prod(shape[2:])
        spread = G.unflatten(-1, (taps, -1)).transpose(-3, -2).transpose(-3, -1)
        return spread.flip(-1).reshape(len(G), *shape)


def _spatial(module: Any) -> int:
    return len(module.kernel_size)


def _merge_repeats(x: Tensor, layout: Layout) -> Tensor:
    """(N·r, g, c, T) becomes (N, g, c, r·T): repeats of a sample are further positions."""
    if layout.repeats(x.shape) == 1:
        return x
    return layout.split(x).permute(0, 2, 3, 1, 4).flatten(3)
