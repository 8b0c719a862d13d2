"""A few very long rows, each with one entry per weight: sums over them are taken in float64.

Neither float32 sums over many millions of entries nor a TF32 setting may disturb a basis. Rows are
converted part by part, so that there is never a second copy of them.

Where weights are divided among processes, so are the rows: each process has some of the columns of
all of them, and sums over entries go on over the processes.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from ...model.distributed import Processes

CHUNK = 1 << 20  # entries converted to float64 at a time: 8 MiB, which a cache can hold
CHUNK_ON_GPU = 1 << 24  # 128 MiB: there a small part is over before the next one is started
LITTLE = 0.1  # of a row: round-off in the basis then adds up no more
DEPENDENT = 1e-10  # of the largest squared length: a smaller remainder of a row is round-off


class _Divided(threading.local):
    """Who has the other columns of the rows, in this thread."""

    among: Processes | None = None


_divided = _Divided()


@contextlib.contextmanager
def divided_among(processes: Processes) -> Iterator[None]:
    """In the block every process has some columns of each row, and others than the others."""
    before, _divided.among = _divided.among, processes
    try:
        yield
    finally:
        _divided.among = before


def over_all_columns(total: Tensor) -> Tensor:
    """A sum over the columns here, and over those of the other processes."""
    if _divided.among is not None:
        _divided.among.sum_(total)
    return total


def columns(num_rows: int, like: Tensor) -> Iterator[slice]:
    """Column ranges in which `num_rows` rows such as those of `like` fit a bounded float64 copy."""
    chunk = CHUNK_ON_GPU if like.device.type == "cuda" else CHUNK
    step = max(1, chunk // max(1, num_rows))
    for first in range(0, like.shape[1], step):
        yield slice(first, first + step)


def inner(A: Tensor, B: Tensor) -> Tensor:
    """A Bᵀ, summed in float64."""
    num_rows = A.shape[0] + B.shape[0]
    total = torch.zeros(A.shape[0], B.shape[0], dtype=torch.float64, device=A.device)
    for part in columns(num_rows, A):
        total += A[:, part].double() @ B[:, part].double().T
    return over_all_columns(total)


def norm(row: Tensor) -> float:
    """The length of a single row, of shape (1, size)."""
    return math.sqrt(float(inner(row, row)))


def squared_norms(rows: Tensor) -> Tensor:
    """‖row‖² of each row."""
    total = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for part in columns(2 * len(rows), rows):
        total += rows[:, part].double().square().sum(dim=1)
    return over_all_columns(total)


def dots(A: Tensor, B: Tensor) -> Tensor:
    """Inner product of each row of A with its row of B, summed in float64."""
    total = torch.zeros(len(A), dtype=torch.float64, device=A.device)
    for part in columns(2 * len(A), A):
        total += (A[:, part].double() * B[:, part].double()).sum(dim=1)
    return over_all_columns(total)


def combine(S: Tensor, rows: Tensor, out: Tensor) -> None:
    """Write Sᵀ rows into `out`, which may be the first of the rows."""
    S = S.to(rows.device)
    for part in columns(len(rows) + len(out), rows):
        out[:, part] = S.T @ rows[:, part].double()


def project_out(rows: Tensor, onto: Tensor, *, near: int = 0) -> Tensor:
    """Make `rows` orthogonal to orthonormal rows in place; returns the coefficients removed.

    Rounds follow each other until one removes little: so much is left of the rows then that they
    are as orthogonal as their precision allows. `near` says that nearly all is along the last rows
    of `onto`; these go first, in a round that costs next to nothing.
    """
    total = torch.zeros(len(rows), len(onto), dtype=torch.float64)
    firsts = [len(onto) - near] * (0 < near < len(onto)) + [0, 0]
    for first in firsts:
        coefficients = inner(rows, onto[first:])
        for part in columns(len(rows) + len(onto) - first, rows):
            rows[:, part] = rows[:, part].double() - coefficients @ onto[first:, part].double()
        total[:, first:] += coefficients.cpu()
        removed = coefficients.square().sum(dim=1)
        if first == 0 and bool((removed <= LITTLE**2 * squared_norms(rows)).all()):
            break
    return total


def orthonormal(rows: Tensor) -> Tensor:
    """An orthonormal basis of the space of the rows, written in their place.

    >>> basis = orthonormal(torch.tensor([[3.0, 4.0], [6.0, 8.0]]))
    >>> basis.abs()
    tensor([[0.6000, 0.8000]])
    """
    for _ in range(2):  # the second time removes what round-off left the first time
        values, S = torch.linalg.eigh(inner(rows, rows))
        independent = values > DEPENDENT * values[-1]
        basis = rows[: int(independent.sum())]
        combine(S[:, independent] / values[independent].sqrt(), rows, basis)
        rows = basis
    return rows


def outside(rows: Tensor, basis: Tensor) -> Tensor:
    """The part of the rows that is orthogonal to an orthonormal basis."""
    remainder, along = torch.empty_like(rows), inner(rows, basis)
    for part in columns(len(rows) + len(basis), rows):
        remainder[:, part] = rows[:, part].double() - along @ basis[:, part].double()
    return remainder
