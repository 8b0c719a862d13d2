"""Slow truths in float64: the dense Hessian, the Jacobian of the outputs, and the loss's Hessian.

Nothing here uses the library. The Hessian comes from double backward, row by row. Torch's second
derivative can be wrong (a custom function, a parametrization), and so can its gradient (a hook, an
embedding that scales it): both are compared with finite differences along random directions. Where
they disagree, the matrix is taken from differences of gradients, or of the loss itself.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Run = Callable[[nn.Module, Any], tuple[Tensor, Tensor]]
MeanLoss = Callable[[Tensor, Tensor], Tensor]
ROOT = "(model)"


@dataclasses.dataclass(frozen=True)
class Weight:
    """A weight that acts as a matrix: its values and the flat positions of its entries.

    `positions` has one tensor a group, of shape (rows, input neurons, entries of the kernel).
    """

    layer: str
    name: str
    values: Tensor
    positions: list[Tensor]


class Truth:
    """The mean loss of a network over all data, as a function of its trainable parameters."""

    def __init__(self, model: nn.Module, batches: list[Any], run: Run, loss: MeanLoss) -> None:
        self.model = copy.deepcopy(model).double()
        self.batches = [_double(batch) for batch in batches]
        self.run, self.mean_loss = run, loss
        with torch.no_grad():
            self.outputs_and_targets()  # a forward that changes the weights has done so now
        for module in self.model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                # else rows at the limit are shortened when they are moved, and gradients are not
                # those of the loss
                module.max_norm, module.scale_grad_by_freq = None, False
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.start = [p.detach().clone() for p in self.parameters.values()]
        sizes = [p.numel() for p in self.parameters.values()]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        self.slices = {
            name: slice(start, start + size)
            for name, start, size in zip(self.parameters, starts, sizes, strict=True)
        }
        self.size = sum(sizes)
        self.free = self._free()
        self.source = ""  # how the Hessian was found

    def _free(self) -> Tensor:
        """1 for entries that are trained, 0 for the padding rows of embeddings."""
        free = torch.ones(self.size, dtype=torch.float64)
        for module in self.model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                for name, parameter in self.parameters.items():
                    if parameter is module.weight:
                        free[self.slices[name]].view_as(parameter)[module.padding_idx] = 0.0
        return free

    # -- the function ------------------------------------------------------------------------

    def outputs_and_targets(self) -> tuple[Tensor, Tensor]:
        """Of all data, one row a prediction."""
        pairs = [self.run(self.model, batch) for batch in self.batches]
        return torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])

    def loss(self) -> Tensor:
        """The mean over all data."""
        return self.mean_loss(*self.outputs_and_targets())

    def gradient(self, *, create_graph: bool = False) -> Tensor:
        """Of the loss, as one vector; by `backward` where `grad` is refused (checkpoints)."""
        parameters = list(self.parameters.values())
        try:
            parts = torch.autograd.grad(
                self.loss(), parameters, create_graph=create_graph, allow_unused=True
            )
        except RuntimeError:
            if create_graph:
                raise
            self.model.zero_grad(set_to_none=True)
            self.loss().backward()
            parts = tuple(p.grad for p in parameters)
        return _flat(parts, parameters)

    @contextlib.contextmanager
    def moved(self, change: Tensor) -> Any:
        """The network with its parameters moved by a vector."""
        try:
            self._set(change)
            yield
        finally:
            self._set(torch.zeros_like(change))

    def _set(self, change: Tensor) -> None:
        with torch.no_grad():
            for p, start, part in zip(
                self.parameters.values(), self.start, self.slices.values(), strict=True
            ):
                p.copy_(start + change[part].view_as(start))

    # -- matrices ----------------------------------------------------------------------------

    def hessian(self, *, blocks: bool = True) -> Tensor:
        """The Hessian in all trainable parameters; `source` then says how it was found.

        From differences of the loss it has only the blocks of single parameters, or without
        `blocks` only the diagonal.
        """
        with sdpa_kernel(SDPBackend.MATH):
            if not self._gradient_is_right():
                self.source = "differences of the loss"
                return self._from_losses(blocks=blocks)
            matrix = None
            for batched in (True, False):  # all rows at once is fast and not always right
                with contextlib.suppress(RuntimeError, NotImplementedError):
                    matrix = self.double_backward(batched=batched)
                    if self._agrees(matrix):
                        self.source = "double backward"
                        return matrix
            if matrix is not None and self._at_a_kink():
                self.source = "double backward at a kink"  # there is no Hessian: torch's convention
                return matrix
            self.source = "differences of gradients"
            return self._from_gradients()

    def double_backward(self, *, batched: bool = False) -> Tensor:
        """Torch's own second derivative, right or wrong."""
        parameters = list(self.parameters.values())
        gradient = self.gradient(create_graph=True)
        if not gradient.requires_grad:
            return torch.zeros(self.size, self.size, dtype=torch.float64)
        units = torch.eye(self.size, dtype=torch.float64)

        def rows(cotangent: Tensor) -> tuple[Tensor | None, ...]:
            return torch.autograd.grad(
                gradient,
                parameters,
                cotangent,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )

        if batched:
            parts = [
                torch.zeros(self.size, p.numel(), dtype=torch.float64)
                if part is None
                else part.reshape(self.size, -1)
                for part, p in zip(rows(units), parameters, strict=True)
            ]
            return torch.cat(parts, dim=1).detach()
        return torch.stack([_flat(rows(unit), parameters) for unit in units]).detach()

    def _directions(self, count: int = 2) -> Tensor:
        noise = torch.Generator().manual_seed(0)
        return torch.randn(count, self.size, generator=noise, dtype=torch.float64) * self.free

    def _agrees(self, matrix: Tensor) -> bool:
        """Whether differences of gradients confirm a matrix along random directions."""
        symmetric = (matrix - matrix.T).abs().max() <= 1e-6 * matrix.abs().max() + 1e-12
        confirmed = [
            any(self._close(matrix @ v, self._along(v, step)) for step in (1e-5, 1e-6, 1e-4))
            for v in self._directions()
        ]
        return bool(symmetric) and all(confirmed)

    def _close(self, product: Tensor, differences: Tensor) -> bool:
        # differences of gradients have an error of 1e-16/1e-5 of the gradient, and one of order h²
        size = product.abs().max() + differences.abs().max()
        floor = 1e-8 * (1 + self.gradient().abs().max())
        return bool((product - differences).abs().max() <= 1e-5 * size + floor)

    def _along(self, v: Tensor, step: float) -> Tensor:
        with self.moved(step * v):
            above = self.gradient()
        with self.moved(-step * v):
            below = self.gradient()
        return (above - below) / (2 * step)

    def _gradient_is_right(self) -> bool:
        """Whether the gradient agrees with differences of the loss."""
        gradient, level = self.gradient(), float(self.loss().detach())

        def at(change: Tensor) -> float:
            with torch.no_grad(), self.moved(change):
                return float(self.loss())

        for v in self._directions():
            expected = float(gradient @ v)
            gaps = []
            for step in (1e-4, 1e-5, 1e-6):
                above, below = (at(step * v) - level) / step, (level - at(-step * v)) / step
                slope = (above + below) / 2
                size = float(gradient.norm()) + abs(slope)
                # at a kink the two sides differ, and torch takes one of them or neither
                allowed = 1e-4 * size + 1e-9 * (1 + abs(level)) + abs(above - below)
                gaps.append(abs(slope - expected) - allowed)
            if min(gaps) > 0:
                return False
        return True

    def _at_a_kink(self) -> bool:
        """Whether differences of gradients depend on their step or on their side."""
        here, step = self.gradient(), 1e-5
        for v in self._directions():
            coarse, fine = self._along(v, 10 * step), self._along(v, step)
            with self.moved(step * v):
                above = (self.gradient() - here) / step
            size = 1e-3 * fine.abs().max()  # one side alone has an error of order h
            if (coarse - fine).abs().max() > size or (above - fine).abs().max() > size:
                return True
        return False

    def _from_gradients(self) -> Tensor:
        rows = [self._along(unit, 1e-5) for unit in torch.diag(self.free)]
        matrix = torch.stack(rows)
        return (matrix + matrix.T) / 2

    def _from_losses(self, *, blocks: bool, step: float = 2e-3) -> Tensor:
        """Second differences of the loss, of fourth order."""
        units = torch.diag(self.free)

        def at(change: Tensor) -> float:
            with torch.no_grad(), self.moved(change):
                return float(self.loss())

        centre = float(self.loss().detach())

        def second(v: Tensor) -> float:
            near = at(step * v) + at(-step * v)
            far = at(2 * step * v) + at(-2 * step * v)
            return (16 * near - far - 30 * centre) / (12 * step * step)

        diagonal = torch.tensor([second(unit) for unit in units], dtype=torch.float64)
        matrix = torch.diag(diagonal)
        for part in self.slices.values() if blocks else ():
            for i in range(part.start, part.stop):
                for j in range(part.start, i):
                    mixed = (second(units[i] + units[j]) - diagonal[i] - diagonal[j]) / 2
                    matrix[i, j] = matrix[j, i] = mixed
        return matrix

    def jacobian(self) -> Tensor:
        """Of all outputs in all parameters, by differences where the gradient cannot be trusted."""
        if self.source != "differences of the loss":
            parameters = list(self.parameters.values())
            with sdpa_kernel(SDPBackend.MATH):
                z = self.outputs_and_targets()[0].flatten()
                try:
                    return torch.stack(
                        [
                            _flat(
                                torch.autograd.grad(
                                    entry, parameters, retain_graph=True, allow_unused=True
                                ),
                                parameters,
                            )
                            for entry in z
                        ]
                    )
                except RuntimeError:
                    pass  # a checkpoint that refuses `grad`
        columns = []
        for unit in torch.diag(self.free):
            with torch.no_grad():
                with self.moved(1e-5 * unit):
                    above = self.outputs_and_targets()[0].flatten()
                with self.moved(-1e-5 * unit):
                    below = self.outputs_and_targets()[0].flatten()
            columns.append((above - below) / 2e-5)
        return torch.stack(columns, dim=1)

    def output_hessian(self) -> Tensor:
        """The Hessian of the mean loss in all outputs."""
        z, y = self.outputs_and_targets()
        shape, start = z.shape, z.detach().flatten()

        def of(flat: Tensor) -> Tensor:
            return self.mean_loss(flat.view(shape), y)

        try:
            return torch.autograd.functional.hessian(of, start)
        except RuntimeError:  # some losses of torch have no second derivative
            slope, step = torch.autograd.functional.jacobian, 1e-5
            rows = [
                (slope(of, start + step * unit) - slope(of, start - step * unit)) / (2 * step)
                for unit in torch.eye(len(start), dtype=torch.float64)
            ]
            return torch.stack(rows)

    # -- weights that act as matrices -----------------------------------------------------------

    def weights(self) -> list[Weight]:
        """All parameters that act as matrices, by layer, or by their own name."""
        modules = dict(self.model.named_modules())
        weights = []
        for name, parameter in self.parameters.items():
            owner, _, short = name.rpartition(".")
            is_layer = isinstance(modules[owner], nn.Linear | nn.Conv2d | nn.ConvTranspose2d)
            if sum(size > 1 for size in parameter.shape) < 2 and not (
                is_layer and short == "weight"
            ):
                continue  # a vector, whatever its number of dimensions
            positions = matrix_positions(modules, owner, short, parameter.shape)
            if positions is not None:
                row = (owner or ROOT) if short == "weight" else name
                weights.append(Weight(row, name, parameter.detach(), positions))
        return weights

    def layers(self) -> dict[str, list[str]]:
        """Parameter names by layer."""
        layers: dict[str, list[str]] = {}
        for name in self.parameters:
            layers.setdefault(name.rpartition(".")[0] or ROOT, []).append(name)
        return layers


# Parameters of the fuzzer's own parts that are kept as (in, out).
_TRANSPOSED = {("BareMatrix", "matrix"), ("Einsum", "matrix")}


def matrix_positions(
    modules: dict[str, nn.Module], owner: str, short: str, shape: torch.Size
) -> list[Tensor] | None:
    """Flat positions of a weight as (rows, input neurons, kernel), one tensor a group."""
    if "parametrizations" in owner:  # the layer keeps what its weight is made of further down
        owner = owner.partition("parametrizations")[0].rstrip(".")
    module, index = modules[owner], torch.arange(shape.numel()).view(shape)
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return [index.T[:, :, None]]
    if isinstance(module, nn.ConvTranspose2d):
        parts = index.flatten(2).unflatten(0, (module.groups, -1))
        return [part.transpose(0, 1) for part in parts]
    if len(shape) == 4:
        return list(index.flatten(2).unflatten(0, (getattr(module, "groups", 1), -1)))
    if len(shape) != 2 or "Norm" in type(module).__name__:
        return None
    return [(index.T if (type(module).__name__, short) in _TRANSPOSED else index)[:, :, None]]


def _flat(parts: Any, parameters: list[Tensor]) -> Tensor:
    return torch.cat(
        [
            (torch.zeros_like(p) if part is None else part.to_dense()).flatten()
            for part, p in zip(parts, parameters, strict=True)
        ]
    )


def _double(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _double(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_double(part) for part in value)
    return value.double() if value.is_floating_point() else value
