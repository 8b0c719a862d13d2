"""Slow truths: dense float64 Hessians and Gauss-Newton matrices, and every measure by definition.

Nothing here uses the library. The loss is a plain function (outputs, targets) -> mean loss made of
torch.nn.functional, taken over all data at once.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..model.weight_norm import PlainWeightNorm

TOGETHER = 128  # rows: their derivatives are held at once
LOOKS = 3  # products with random vectors that a matrix must agree with
ROUND_OFF = 1e-13  # of the sum of all sizes in a product: a hundred times what float64 loses


def hessian_of(function: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """The second derivatives of a number in a vector, by torch alone.

    Under vmap, which takes rows together, some derivatives of torch are wrong (LayerNorm's in 2.13)
    and others do not exist. So the matrix must give the products that plain second backwards give,
    in random directions, which no wrong entry leaves alone; otherwise each row is computed alone.
    """
    matrix = _together(function, start)
    return torch.autograd.functional.hessian(function, start) if matrix is None else matrix


def _together(function: Callable[[Tensor], Tensor], start: Tensor) -> Tensor | None:
    start = start.detach().requires_grad_()
    try:
        [gradient] = torch.autograd.grad(function(start), start, create_graph=True)
        units = torch.eye(len(start), dtype=start.dtype).split(TOGETHER)
        rows = [_product(gradient, start, some, is_grads_batched=True) for some in units]
    except RuntimeError:  # no rule for vmap, or a function that does not depend on its argument
        return None
    matrix = torch.cat(rows)
    generator = torch.Generator().manual_seed(0)
    for _ in range(LOOKS):
        vector = torch.randn(len(start), generator=generator, dtype=start.dtype)
        apart = (_product(gradient, start, vector) - vector @ matrix).abs()
        if not bool((apart <= ROUND_OFF * (vector.abs() @ matrix.abs()).max()).all()):
            return None
    return matrix


def _product(gradient: Tensor, start: Tensor, vector: Tensor, **how: bool) -> Tensor:
    [product] = torch.autograd.grad(gradient, start, vector, retain_graph=True, **how)
    return product


ROOT = "(model)"

MeanLoss = Callable[[Tensor, Tensor], Tensor]
Call = Callable[[nn.Module, Any], Tensor]


def concatenated(batches: list[Any]) -> tuple[Any, Tensor]:
    """All batches as one: inputs and targets."""
    inputs = [x for x, _ in batches]
    targets = torch.cat([y for _, y in batches])
    if isinstance(inputs[0], tuple):
        return tuple(torch.cat(parts) for parts in zip(*inputs, strict=True)), targets
    return torch.cat(inputs), targets


class _Outputs(nn.Module):
    """A model and how its inputs reach it, so that `functional_call` can swap its parameters."""

    def __init__(self, model: nn.Module, call: Call) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, inputs: Any) -> Tensor:
        with PlainWeightNorm():
            return self.call(self.model, inputs)


def _twice_differentiable(model: nn.Module) -> nn.Module:
    """The same function without what torch has no second derivative for: bags of embeddings."""
    if not any(isinstance(module, nn.EmbeddingBag) for module in model.modules()):
        return model
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, nn.EmbeddingBag):
            module.forward = functools.partial(_bag, module)  # type: ignore[method-assign]
    return model


def _bag(
    bag: nn.EmbeddingBag,
    tokens: Tensor,
    offsets: Tensor | None = None,
    per_sample_weights: Tensor | None = None,
) -> Tensor:
    """Sums or means of rows, one row after another."""
    if offsets is None:
        offsets = tokens.shape[1] * torch.arange(len(tokens))
    tokens = tokens.flatten()
    numbers = torch.searchsorted(offsets, torch.arange(len(tokens)), right=True) - 1
    rows = bag.weight[tokens]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.flatten()[:, None]
    sums = rows.new_zeros(len(offsets), rows.shape[1]).index_add(0, numbers, rows)
    counts = torch.bincount(numbers, minlength=len(offsets))
    return sums / counts[:, None] if bag.mode == "mean" else sums


SMALL = 400  # parameters: blocks of several layers are then taken out of one matrix


def _ends(parameters: Iterable[Tensor]) -> list[int]:
    return list(itertools.accumulate(p.numel() for p in parameters))


class Truth:
    """The loss of a model over all its data, as dense matrices of chosen parameters."""

    def __init__(
        self,
        model: nn.Module,
        batches: list[Any],
        loss: MeanLoss,
        call: Call | None = None,
    ) -> None:
        model = _twice_differentiable(model)
        self.model, self.loss = model, loss
        self.inputs, self.targets = concatenated(batches)
        self._outputs = _Outputs(model, call or (lambda m, x: m(x)))
        self.parameters = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
        self._cache: dict[tuple[str, tuple[str, ...]], Tensor] = {}

    def layers(self) -> dict[str, list[str]]:
        """Parameter names by the module that owns them."""
        found: dict[str, list[str]] = {}
        for name in self.parameters:
            found.setdefault(name.rpartition(".")[0] or ROOT, []).append(name)
        return found

    def _function(self, names: list[str]) -> tuple[Callable[[Tensor], Tensor], Tensor]:
        """Outputs as a function of the named parameters, flattened into one vector."""
        start = {name: self.parameters[name] for name in names}
        sizes = [value.numel() for value in start.values()]

        def outputs(flat: Tensor) -> Tensor:
            parts = flat.split(sizes)
            swapped = {f"model.{name}": p.detach() for name, p in self.model.named_parameters()}
            for (name, value), part in zip(start.items(), parts, strict=True):
                swapped[f"model.{name}"] = part.view(value.shape)
            return functional_call(self._outputs, swapped, (self.inputs,))

        return outputs, torch.cat([value.flatten() for value in start.values()])

    def hessian(self, names: list[str]) -> Tensor:
        """The Hessian of the mean loss in the named parameters, shape (P, P)."""
        key = ("hessian", tuple(names))
        if self._is_block(names):
            return self._block(self.hessian(list(self.parameters)), names)
        if key not in self._cache:
            outputs, start = self._function(names)
            with sdpa_kernel(SDPBackend.MATH):
                matrix = hessian_of(lambda w: self.loss(outputs(w), self.targets), start)
            self._cache[key] = matrix.detach()
        return self._cache[key]

    def ggn(self, names: list[str]) -> Tensor:
        """J' A J with A the Hessian of the mean loss in all outputs, shape (P, P)."""
        key = ("ggn", tuple(names))
        if self._is_block(names):
            return self._block(self.ggn(list(self.parameters)), names)
        if key not in self._cache:
            outputs, start = self._function(names)
            z = outputs(start)
            A = hessian(lambda v: self.loss(v.view(z.shape), self.targets))(z.flatten())
            with sdpa_kernel(SDPBackend.MATH):
                J = jacrev(lambda w: outputs(w).flatten())(start)
            self._cache[key] = (J.T @ A @ J).detach()
        return self._cache[key]

    def _is_block(self, names: list[str]) -> bool:
        """Whether the matrix of all parameters is small enough to take blocks out of it."""
        everything = list(self.parameters)
        return names != everything and sum(p.numel() for p in self.parameters.values()) <= SMALL

    def _block(self, whole: Tensor, names: list[str]) -> Tensor:
        ends = dict(zip(self.parameters, _ends(self.parameters.values()), strict=True))
        parts = [torch.arange(ends[n] - self.parameters[n].numel(), ends[n]) for n in names]
        index = torch.cat(parts)
        return whole[index][:, index]

    def matrix(self, kind: str, names: list[str]) -> Tensor:
        """`hessian` or `ggn` by name."""
        return {"Hessian": self.hessian, "GGN": self.ggn}[kind](names)


_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED)
_KINDS = (nn.Linear, nn.Embedding, *_CONVOLUTIONS)


@dataclasses.dataclass(frozen=True)
class MatrixView:
    """Positions of a weight's entries: which make a row, and which belong to an input neuron."""

    rows: list[list[Tensor]]  # by group, then row: flat positions, columns in one order
    neurons: list[Tensor]  # by input neuron: flat positions


def matrix_view(module: nn.Module) -> MatrixView | None:
    """How the weight of a module is a matrix; None where its forward does not use it as one."""
    forward = type(module).forward
    if not any(isinstance(module, kind) and forward is kind.forward for kind in _KINDS):
        return None
    weight = module.weight
    assert isinstance(weight, Tensor)
    return _view(module, weight.shape)


def matrices(model: nn.Module) -> dict[str, tuple[str, MatrixView]]:
    """Every parameter that acts as a matrix, by layer or own name: its name and its view.

    Also in subclasses, and in cells and parametrizations, which torch keeps as (out, in).
    """
    modules, found = dict(model.named_modules()), {}
    for name, parameter in model.named_parameters():
        owner, _, short = name.rpartition(".")
        module = modules[owner.partition("parametrizations")[0].rstrip(".")]
        known = isinstance(module, (*_KINDS, nn.EmbeddingBag)) and short != "bias"
        plain = parameter.dim() == 2 and "Norm" not in type(module).__name__
        if parameter.requires_grad and parameter.dim() > 1 and (known or plain):
            if not known and min(parameter.shape) == 1:
                continue  # a vector
            if "original" in short and min(parameter.shape) == 1:
                continue  # the lengths of a weight_norm
            row = (owner or ROOT) if short == "weight" else name
            found[row] = (name, _view(module, parameter.shape))
    return found


def _view(module: nn.Module, shape: torch.Size) -> MatrixView:
    index = torch.arange(shape.numel()).view(shape)
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):  # linear in one-hot tokens: weight'
        return MatrixView([list(index.T)], list(index))
    if not isinstance(module, _CONVOLUTIONS):
        return MatrixView([list(index)], list(index.T))
    rows, neurons = [], []
    for group in range(module.groups):
        if isinstance(module, _TRANSPOSED):  # weight is (in, out / groups, ...)
            width = module.in_channels // module.groups
            part = index[group * width : (group + 1) * width].transpose(0, 1)
        else:  # weight is (out, in / groups, ...)
            width = module.out_channels // module.groups
            part = index[group * width : (group + 1) * width]
        rows.append([row.flatten() for row in part])
        neurons += [part[:, channel].flatten() for channel in range(part.shape[1])]
    return MatrixView(rows, neurons)


def kappa(H: Tensor, weight: Tensor, view: MatrixView) -> float:
    """Sum over groups and rows s, s' of <w_s, w_s'> Tr H_(s,s')."""
    w = weight.detach().flatten()
    total = 0.0
    for group in view.rows:
        for s in group:
            for t in group:
                total += float(w[s] @ w[t]) * float(H[s, t].sum())
    return total


def rho(H: Tensor, weight: Tensor, view: MatrixView) -> list[float]:
    """w_j' H_jj w_j for each input neuron j."""
    w = weight.detach().flatten()
    return [float(w[j] @ H[j][:, j] @ w[j]) for j in view.neurons]


def linear_model_forms(model: nn.Linear, x: Tensor, loss: str) -> dict[str, Tensor]:
    """Every measure of one linear layer with two outputs and "mse", or with "cross_entropy".

    The Hessian of the weights, rows one after the other, is mean A_n ⊗ x_n x_n' from the textbook.
    """
    W, num_outputs = model.weight.detach(), len(model.weight)
    if loss == "mse":
        A = torch.eye(num_outputs, dtype=torch.float64).expand(len(x), -1, -1) * 2 / num_outputs
    else:
        p = model(x).detach().softmax(dim=1)
        A = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    H = _mean_kron(A, x)
    with_bias = _mean_kron(A, torch.cat([x, ones], dim=1))  # the bias sees an input of 1
    spectrum, norm = torch.linalg.eigvalsh(with_bias), W.square().sum()
    gini = A.diagonal(dim1=1, dim2=2).sum(dim=1)
    squares = x.square().sum(dim=1)
    kappa = (torch.einsum("ij,nik,kj->n", W, A, W) * squares).mean()
    rho = (x.square() * torch.einsum("ij,nik,kj->nj", W, A, W)).mean(dim=0)
    top = torch.linalg.eigvalsh(H)[-1]
    forms = {
        "curvature.trace": with_bias.trace(),
        "curvature.ggn_trace": with_bias.trace(),
        "curvature.trace_squared": with_bias.square().sum(),
        "curvature.lambda_max": spectrum[-1],
        "curvature.lambda_min": spectrum[0],
        "head.trace": (gini * squares).mean(),
        "head.kappa": kappa,
        "head.trace_squared": H.square().sum(),
        "head.lambda_max": top,
        "head.scaled_lambda_max": norm * top,
        "relative.kappa": kappa,
        "relative.kappa_max": kappa,  # one layer
        "scaled.trace": norm * H.trace(),
        "scaled.trace_max": norm * H.trace(),
        "scaled.lambda_max": norm * top,
        "scaled.lambda_max_max": norm * top,
        "neuron.rho_sum": rho.sum(),
        "neuron.rho_max": rho.max(),
    }
    if loss == "cross_entropy":
        forms["softmax.gini"] = gini.mean()
    return forms


def _mean_kron(A: Tensor, x: Tensor) -> Tensor:
    blocks = [torch.kron(a, torch.outer(v, v)) for a, v in zip(A, x, strict=True)]
    return torch.stack(blocks).mean(dim=0)
