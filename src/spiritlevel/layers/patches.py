"""Linear and convolutional layers: a matrix applied to every input patch."""

from __future__ import annotations

import abc
import dataclasses
import math

import torch
from torch import Tensor, nn

from ..math import contractions
from ..math.contractions import Form, Shape
from ._rules import AbstractCall, AbstractMatrixRule, Contracted, Layout, Wants, contract_gradient
from .unfold import conv_patches, transposed_patches


@dataclasses.dataclass
class MatrixCall(AbstractCall):
    """One use of a linear or convolutional layer."""

    rule: PatchRule
    module: nn.Module
    layout: Layout
    a: Tensor
    form: Form
    memory: Tensor  # what `contractions.remember` kept of the patches

    @property
    def needs_input_gradient(self) -> bool:
        """ρ comes from G where G is formed, else from the gradient at the layer's input."""
        return self.form != "direct"

    def gradients(self, delta: Tensor) -> dict[str, Tensor]:
        """G of the weight, needs the direct form; and of the bias."""
        signal = self.rule.signal(self.module, delta, self.layout)
        out = {"weight": contractions.gradient(signal, self.memory)}
        out["weight"] = self.rule.from_matrix(self.module, out["weight"])
        out["bias"] = signal.sum(dim=3).flatten(1)
        return out

    def bias_gradient(self, delta: Tensor) -> Tensor:
        """G of the bias, shape (N, out)."""
        return self.rule.signal(self.module, delta, self.layout).sum(dim=3).flatten(1)

    def contract(self, delta: Tensor, weight: Tensor, gram: Tensor | None, rho: bool) -> Contracted:
        """Trace, κ (if `gram` = W Wᵀ is given) and, in the direct form, the terms of ρ."""
        signal = self.rule.signal(self.module, delta, self.layout)
        if self.form == "direct":
            G = contractions.gradient(signal, self.memory)
            return contract_gradient(G, weight, gram, self.rule.neurons(self.module), rho=rho)
        kappa = None
        if gram is not None:
            kappa = contractions.kappa(signal, self.memory, self.form, gram)
        return Contracted(contractions.trace(signal, self.memory, self.form), kappa, None)

    def contract_input(self, input_gradient: Tensor) -> Tensor:
        """The terms of ρ from the gradient at the input, shape (N, neurons)."""
        return self.rule.per_neuron(self.module, self.a * input_gradient, self.layout)


class PatchRule(AbstractMatrixRule):
    """Layers of the form output_t = W u_t + b: linear and convolutional."""

    @abc.abstractmethod
    def patches(self, module: nn.Module, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """u of shape (N, g, in, T)."""

    @abc.abstractmethod
    def signal(self, module: nn.Module, delta: Tensor, layout: Layout) -> Tensor:
        """δ of shape (N, g, out, T)."""

    @abc.abstractmethod
    def from_matrix(self, module: nn.Module, G: Tensor) -> Tensor:
        """The inverse of `matrix`: (N, g, out, in) back to (N, *weight)."""

    @abc.abstractmethod
    def per_neuron(self, module: nn.Module, x: Tensor, layout: Layout) -> Tensor:
        """Sum x, shaped as the layer's input, over all but samples and input neurons."""

    def begin(
        self, module: nn.Module, a: Tensor, out: torch.Size, layout: Layout, wants: Wants
    ) -> MatrixCall:
        """Choose the form and compute once what all factor columns share."""
        shape = self.shape(module, a, out, layout)
        form = wants.form or contractions.choose_form(
            shape, num_columns=wants.num_columns, kappa=wants.kappa
        )
        memory = contractions.remember(self.patches(module, a, out, layout), form)
        return MatrixCall(self, module, layout, a, form, memory)


class LinearRule(PatchRule):
    """y = W a + b over any leading dimensions."""

    def leading(self, module: nn.Module, out: torch.Size) -> int:
        """All but the features."""
        return len(out) - 1

    def patches(self, module: nn.Module, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """Every position is a patch."""
        return self.signal(module, a, layout)

    def signal(self, module: nn.Module, delta: Tensor, layout: Layout) -> Tensor:
        """δ of shape (N, 1, out, T)."""
        split = layout.split(delta)
        return split.reshape(len(split), 1, -1, delta.shape[-1]).mT

    def matrix(self, module: nn.Module, weight: Tensor) -> Tensor:
        """One group."""
        return weight.unsqueeze(-3)

    def from_matrix(self, module: nn.Module, G: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        return G.squeeze(1)

    def neurons(self, module: nn.Module) -> int:
        """One a feature."""
        return int(module.in_features)  # type: ignore[arg-type]

    def per_neuron(self, module: nn.Module, x: Tensor, layout: Layout) -> Tensor:
        """Sum over positions."""
        split = layout.split(x)
        return split.reshape(len(split), -1, x.shape[-1]).sum(dim=1)

    def shape(self, module: nn.Module, a: Tensor, out: torch.Size, layout: Layout) -> Shape:
        """T counts all positions of a sample."""
        num_samples = out[layout.dim] // layout.repeats
        return Shape(1, out[-1], a.shape[-1], math.prod(out[:-1]) // num_samples)


class ConvRule(PatchRule):
    """Convolutions in 1, 2 or 3 dimensions with groups, stride, dilation and any padding mode."""

    def leading(self, module: nn.Module, out: torch.Size) -> int:
        """Convolutions take their batch first."""
        return 1

    def patches(self, module: nn.Module, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """Unfolded input windows."""
        return _merge_repeats(conv_patches(module, a), layout)

    def signal(self, module: nn.Module, delta: Tensor, layout: Layout) -> Tensor:
        """δ of shape (N, g, out/g, T)."""
        grouped = delta.reshape(len(delta), module.groups, delta.shape[1] // module.groups, -1)
        return _merge_repeats(grouped, layout)

    def matrix(self, module: nn.Module, weight: Tensor) -> Tensor:
        """(out, in/g, k…) to (g, out/g, in/g·K)."""
        lead = weight.shape[: -2 - _spatial(module)]
        groups, out = int(module.groups), int(module.out_channels)  # type: ignore[arg-type]
        return weight.reshape(*lead, groups, out // groups, -1)

    def from_matrix(self, module: nn.Module, G: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        return G.reshape(len(G), *module.weight.shape)  # type: ignore[union-attr]

    def neurons(self, module: nn.Module) -> int:
        """One an input channel."""
        return int(module.in_channels) // int(module.groups)  # type: ignore[arg-type]

    def per_neuron(self, module: nn.Module, x: Tensor, layout: Layout) -> Tensor:
        """Sum over positions, keep channels."""
        return layout.split(x.flatten(2).sum(dim=2)).sum(dim=1)

    def shape(self, module: nn.Module, a: Tensor, out: torch.Size, layout: Layout) -> Shape:
        """T counts output positions."""
        fan_in = self.neurons(module) * math.prod(module.kernel_size)  # type: ignore[arg-type]
        groups, rows = int(module.groups), out[1] // int(module.groups)  # type: ignore[arg-type]
        return Shape(groups, rows, fan_in, math.prod(out[2:]) * layout.repeats)


class ConvTransposeRule(ConvRule):
    """A transposed convolution as the linear map it is: rows are output channels."""

    def patches(self, module: nn.Module, a: Tensor, out: torch.Size, layout: Layout) -> Tensor:
        """Windows of the input with zeros between its entries."""
        return _merge_repeats(transposed_patches(module, a, out[2:]), layout)

    def matrix(self, module: nn.Module, weight: Tensor) -> Tensor:
        """(in, out/g, k…) to (g, out/g, in/g·K), kernel reversed as the map applies it."""
        spatial = _spatial(module)
        groups = int(module.groups)  # type: ignore[arg-type]
        lead = weight.shape[: -2 - spatial]
        flipped = weight.flip(tuple(range(-spatial, 0)))
        fan_in, out = weight.shape[-2 - spatial] // groups, weight.shape[-1 - spatial]
        grouped = flipped.reshape(*lead, groups, fan_in, out, -1)
        return grouped.transpose(-3, -2).flatten(-2)

    def from_matrix(self, module: nn.Module, G: Tensor) -> Tensor:
        """The inverse of `matrix`."""
        spatial = _spatial(module)
        weight_shape = module.weight.shape  # type: ignore[union-attr]
        num_samples, groups, out, _ = G.shape
        taps = math.prod(weight_shape[2:])
        grouped = G.reshape(num_samples, groups, out, -1, taps).transpose(2, 3)
        return grouped.reshape(num_samples, *weight_shape).flip(tuple(range(-spatial, 0)))


def _spatial(module: nn.Module) -> int:
    return len(module.kernel_size)  # type: ignore[arg-type]


def _merge_repeats(x: Tensor, layout: Layout) -> Tensor:
    """(N·r, g, c, T) to (N, g, c, r·T): repeats of a sample are further positions."""
    if layout.repeats == 1:
        return x
    return layout.split(x).permute(0, 2, 3, 1, 4).flatten(3)
