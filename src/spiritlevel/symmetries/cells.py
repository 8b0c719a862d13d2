"""Cells: rows, columns and other slices of parameters, each of which can be multiplied by a factor.

The logarithms of the factors are unknowns of a linear system, whose solutions have as many zeros
and simple numbers as can be. A parameter of several dimensions can be multiplied as a whole by any
of them, so that the logarithms are known up to constants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class CutDimension:
    """A dimension of a parameter, cut into cells of equal length."""

    name: str
    dim: int
    size: int  # entries along the dimension
    start: int  # its first unknown
    count: int  # cells

    @property
    def place(self) -> slice:
        """Where its unknowns stand among all unknowns."""
        return slice(self.start, self.start + self.count)

    def sums(self, products: Tensor) -> Tensor:
        """Sums over each cell; the first dimension is carried along."""
        if products.dim() == 1:  # of a parameter without dimensions
            return products[:, None]
        rest = [d for d in range(1, products.dim()) if d != self.dim + 1]
        along = products.sum(dim=rest) if rest else products
        return along.unflatten(1, (self.count, -1)).sum(dim=-1)

    def entries(self, values: Tensor) -> Tensor:
        """The value of its cell for every entry along the dimension."""
        return values.repeat_interleave(self.size // self.count)


class Cells:
    """All axes of all parameters; the last unknown is the size of the outputs."""

    def __init__(self, parameters: Mapping[str, Tensor], most: int) -> None:
        """At most about `most` cells: longer cells where there are too many."""
        block, sizes = 1, [size for tensor in parameters.values() for size in tensor.shape]
        self.axes = _axes(parameters, block, most)
        while sum(axis.count for axis in self.axes) > most and block < max(sizes, default=1):
            block *= 2
            self.axes = _axes(parameters, block, most)
        self.coarse = block > 1
        self.outputs = sum(axis.count for axis in self.axes)

    @property
    def num_unknowns(self) -> int:
        """Cells, and the outputs."""
        return self.outputs + 1

    def rows(
        self, sums: Tensor, values: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Equations: how each factor changes sums of outputs, and how their own size does.

        Beside them the sums of absolute values, which tell a cell whose effects cancel from one
        that has none.
        """
        rows = sums.new_zeros(len(sums), self.num_unknowns)
        sizes = torch.zeros_like(rows)
        for axis in self.axes:
            if axis.name in gradients:
                products = gradients[axis.name] * values[axis.name]
                rows[:, axis.place] = axis.sums(products)
                sizes[:, axis.place] = axis.sums(products.abs())
        rows[:, self.outputs] = -sums
        sizes[:, self.outputs] = sums.abs()
        return rows, sizes

    def constants(self) -> Tensor:
        """Further equations: of a parameter's axes, all but the first have a sum of 0."""
        rows = []
        for axis in self._further():
            row = torch.zeros(self.num_unknowns, dtype=torch.float64)
            row[axis.place] = 1.0
            rows.append(row)
        return torch.stack(rows) if rows else torch.zeros(0, self.num_unknowns).double()

    def order(self) -> list[int]:
        """Unknowns from clear to unclear: outputs, biases and gains, rows, and all the rest."""
        further = {axis.start for axis in self._further()}
        single = {axis.name for axis in self.axes} - {axis.name for axis in self._further()}

        def rank(axis: CutDimension) -> int:
            return 0 if axis.name in single else 2 if axis.start in further else 1

        ranked = sorted(self.axes, key=rank)
        return [
            self.outputs,
            *(i for axis in ranked for i in range(axis.place.start, axis.place.stop)),
        ]

    def centred(self, vectors: Tensor) -> Tensor:
        """The same moves, written so that as few cells of a parameter as possible change."""
        vectors = vectors.clone()
        first = {axis.name: axis for axis in reversed(self.axes)}
        for axis in self._further():
            rows, columns = vectors[:, first[axis.name].place], vectors[:, axis.place]
            # either most columns stay, or most rows
            choices = [_usual(columns), -_usual(rows)]
            counts = torch.stack([filled(columns - each) + filled(rows + each) for each in choices])
            shift = torch.where((counts[0] <= counts[1])[:, None], choices[0], choices[1])
            vectors[:, axis.place] -= shift
            vectors[:, first[axis.name].place] += shift
        return vectors

    def _further(self) -> list[CutDimension]:
        seen: set[str] = set()
        further = []
        for axis in self.axes:
            if axis.name in seen:
                further.append(axis)
            seen.add(axis.name)
        return further


def _usual(values: Tensor) -> Tensor:
    """The most common value of each row; what is equal up to rounding counts as equal."""
    return values.round(decimals=6).mode(dim=1, keepdim=True).values


def filled(values: Tensor) -> Tensor:
    """How many numbers of each row are not 0."""
    return (values.abs() > ZERO).sum(dim=1)


def completed(vectors: Tensor, cuts: Iterable[CutDimension], idle: Tensor) -> Tensor:
    """Give unknowns that no sample uses the value of their dimension's others, if these agree."""
    vectors = vectors.clone()
    for cut in cuts:
        unused = idle[cut.place]
        if bool(unused.any()) and not bool(unused.all()):
            values = vectors[:, cut.place]
            used = values[:, ~unused]
            alike = (used - used[:, :1]).abs().amax(dim=1) < ZERO
            full = torch.where(unused, used[:, :1], values)
            vectors[:, cut.place] = torch.where(alike[:, None], full, values)
    return vectors


def _axes(parameters: Mapping[str, Tensor], block: int, most: int) -> list[CutDimension]:
    axes: list[CutDimension] = []
    start = 0
    for name, tensor in parameters.items():
        shape = tuple(tensor.shape) or (1,)
        for dim in [dim for dim, size in enumerate(shape) if size > 1] or [0]:
            size = shape[dim]
            count = size // block if size % block == 0 else 1
            count = 1 if count > most // 2 else count  # the rows of a large table
            if count > 1 or not axes or axes[-1].name != name:  # one cell more would be the whole
                axes.append(CutDimension(name, dim, size, start, count))
                start += count
    return axes


ZERO = 1e-6  # entries of a basis are whole numbers or simple fractions: smaller ones are rounding
_NO_EFFECT = 1e-13  # of the largest effect
_TWELFTHS = 12.0  # halves, thirds and quarters are whole in these


def null_space(rows: Tensor, sizes: Tensor, further: Tensor, tolerance: float) -> Tensor:
    """All x with rows·x = 0 and further·x = 0, as rows of an orthonormal basis.

    `sizes` says how large the parts of each entry of the rows are: if they cancel, the entry is 0
    up to rounding of its parts. Unknowns of no size stay 0. Solutions are exact up to the
    tolerance, relative to the size of each equation and each unknown.
    """
    whole = sizes.norm(dim=1, keepdim=True)
    used = whole.flatten() > 0
    rows, sizes = rows[used] / whole[used], sizes[used] / whole[used]
    scale = sizes.norm(dim=0)
    idle = is_idle(sizes)
    scale = torch.where(idle, 1.0, scale)
    fixed = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)[idle]
    further = further.to(rows) / scale
    further = further / further.norm(dim=1, keepdim=True)
    system = torch.cat([torch.where(idle, 0.0, rows / scale), further, fixed])
    _, singular, right = torch.linalg.svd(system, full_matrices=False)
    # where everything cancels, even the largest singular value is rounding of parts of size 1
    solutions = right[singular <= tolerance * max(float(singular[0]), 1.0)] / scale
    return torch.linalg.qr(solutions.T).Q.T.contiguous() if len(solutions) else solutions


def is_idle(sizes: Tensor) -> Tensor:
    """Which unknowns have no effect on anything, up to rounding."""
    largest = sizes.amax(dim=0)
    return largest <= _NO_EFFECT * largest.max()


def echelon(basis: Tensor, order: list[int]) -> Tensor:
    """Another basis: each vector has a 1 where all others have a 0, if possible early in order."""
    basis, done = basis.clone(), 0
    for column in order:
        if done == len(basis):
            break
        best = done + int(basis[done:, column].abs().argmax())
        if float(basis[best, column].abs()) < ZERO:
            continue
        basis[[done, best]] = basis[[best, done]]
        basis[done] /= basis[done, column].clone()
        others = torch.arange(len(basis), device=basis.device) != done
        basis[others] -= basis[others, column, None] * basis[done]
        done += 1
    return basis[:done]


def rounded(vectors: Tensor) -> Tensor:
    """Twelfths where they are as near as rounding explains; other numbers stay."""
    simple = (vectors * _TWELFTHS).round() / _TWELFTHS
    return torch.where((vectors - simple).abs() <= ZERO, simple, vectors)
