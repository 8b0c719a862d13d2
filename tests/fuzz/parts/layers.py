"""Layers that are written in unusual ways: subclasses, hooks, bare parameters, functional calls."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize


class BareMatrix(nn.Module):
    """A product with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4) / 2)
        self.shift = nn.Parameter(torch.randn(4) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix + self.shift


class Einsum(nn.Module):
    """A contraction written as einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("...i,ij->...j", x, self.matrix)


class ComplexFilter(nn.Module):
    """A filter of frequencies whose weights are real numbers in pairs, read as complex ones."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = nn.Parameter(torch.ones(1))  # what follows may begin at an odd place
        self.pairs = nn.Parameter(torch.randn(6) / 2)

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(
            x.dtype, torch.float32
        )  # there is no transform in half precision
        pairs = torch.view_as_complex(self.pairs.to(wide).view(3, 2))
        return (torch.fft.irfft(torch.fft.rfft(x.to(wide)) * pairs, n=4) * self.odd).to(x.dtype)


class PackedSlices(nn.Module):
    """Two projections are slices of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        first = F.linear(x, self.packed.weight[:4], self.packed.bias[:4])
        return F.linear(F.relu(first), self.packed.weight[4:], self.packed.bias[4:])


class FunctionalLinear(nn.Module):
    """The weight of a layer is used without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.layer.weight, self.layer.bias)


class CalledAndBorrowed(nn.Module):
    """A layer is called, and its weight is used once more outside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + F.relu(x) @ self.layer.weight


class InnerFunctionalCall(nn.Module):
    """The model itself swaps weights by `functional_call`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        doubled = {name: 2.0 * p for name, p in self.layer.named_parameters()}
        return functional_call(self.layer, doubled, (x,))


class ScaledLinear(nn.Linear):
    """A subclass with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, 0.7 * self.weight, self.bias)


class PlainSubclass(nn.Linear):
    """A subclass that changes nothing."""


class KeywordLinear(nn.Module):
    """A layer that is called by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(input=x)


class HookedLinear(nn.Module):
    """A user's hooks change what goes into a layer and what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer.register_forward_pre_hook(lambda module, args: (args[0] + 0.5,))
        self.layer.register_forward_hook(lambda module, args, out: 2.0 * out)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class BendingHook(nn.Module):
    """A user's hook makes the output of a layer bend."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer.register_forward_hook(lambda module, args, out: out * out.sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class SquaredWeight(nn.Module):
    """The outputs are linear in the input and bend along the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.randn(4, 4) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.root * self.root.abs())


class LowRank(nn.Module):
    """A weight that is a product of two parameters, as in LoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, 4) / 2)
        self.up = nn.Parameter(torch.randn(4, 2) / 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down.T @ self.up.T


class Bilinear(nn.Module):
    """torch's bilinear layer on one input twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(2, 2, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[..., :2].contiguous(), x[..., 2:].contiguous())


class _Softplus(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return F.softplus(weight)


class _Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


def positive(layer: nn.Module) -> nn.Module:
    """A layer with positive weights, by a parametrization."""
    return parametrize.register_parametrization(layer, "weight", _Softplus())


def symmetric(layer: nn.Module) -> nn.Module:
    """A layer with a symmetric weight, by a parametrization that is linear."""
    return parametrize.register_parametrization(layer, "weight", _Symmetric())


class ReflectedConv(nn.Conv2d):
    """A subclass that pads by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (1, 1, 1, 1), mode="replicate"))


class StandardizedConv(nn.Conv2d):
    """A subclass that changes the weight below `forward`."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        flat = weight.flatten(1)
        centred = (flat - flat.mean(dim=1, keepdim=True)) / (flat.std(dim=1, keepdim=True) + 0.1)
        return super()._conv_forward(x, centred.view_as(weight), bias)


class FunctionalConv(nn.Module):
    """A convolution with a bare kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(2, 2, 3, 3) / 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernel, padding=1)


class UnfoldedConv(nn.Module):
    """A convolution as a matrix product of patches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(18, 2)

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, 3, padding=1).transpose(1, 2)
        return self.layer(patches).transpose(1, 2).reshape(x.shape)


class ChannelsLast(nn.Module):
    """A linear layer on the channels of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class PatchedForward(nn.Module):
    """The forward of one instance is replaced, as some libraries do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.layer.forward = self.patched

    def patched(self, x: Tensor) -> Tensor:
        return F.linear(2.0 * x, self.layer.weight, self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class LearnedQuery(nn.Module):
    """A layer sees a learned constant of five rows, the same for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(5, 4))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.layer(self.query).relu().mean(dim=0)


class InputGate(nn.Module):
    """The weight itself is multiplied by something that each sample brings."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.layer.weight * (1 + x[..., None, :])
        return (weights @ x[..., :, None])[..., 0] + self.layer.bias


class ReadAsNumber(nn.Module):
    """A parameter is read as a Python number: no gradient knows of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return float(self.scale) * self.layer(x)
