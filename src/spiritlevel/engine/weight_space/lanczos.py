"""Extreme eigenvalues of a symmetric operator by block Lanczos."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from ...ground.errors import SpiritlevelError
from ...ground.need import need, one_of, or_none, whole
from .lockstep import solve
from .long_rows import combine, norm, project_out
from .ritz_errors import CONFIDENCE, ExtremeBound, gaps

Which = Literal["largest", "smallest", "both"]

# In units of eps·‖H‖: a smaller part of a product counts as round-off.
ROUNDOFF = 10
# Blocks of products before a small residual counts. A start vector may have so little of the wanted
# eigenvector that the residual of another one is small at first.
LEAST_BLOCKS = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Subspace:
    """Orthonormal rows Q with HQᵀ = QᵀT + Rᵀ C: everything the products have shown of H."""

    basis: Tensor  # Q, shape: (m, size)
    T: Tensor  # shape: (m, m), float64
    beyond: Tensor  # R, shape: (b, size): orthonormal rows, orthogonal to Q
    coupling: Tensor  # C, shape: (b, m), float64


@dataclasses.dataclass(frozen=True, eq=False)
class Eigenpairs:
    """Ritz values and vectors; some eigenvalue lies within `residuals` of each value.

    The largest come in descending order, the smallest in ascending order, and for both ends the
    largest come first. A residual below the round-off of the products is reported as round-off.

    `errors` is how far each value may be off: the residual r, or r²/gap where that is less, with
    the gap to the next Ritz value. A small residual shows that there is an eigenvalue, not that it
    is the extreme one. That follows from the start: normal vectors have a part of every
    eigenvector. So the error of the extreme value is at least the distance within which, by such a
    start, all eigenvalues lie with the confidence that was asked for (`ExtremeBound`). `converged`
    asks besides for a few blocks of products since the last random rows, or an invariant subspace
    of random rows, or the whole space.
    """

    values: Tensor  # shape: (num,), float64
    vectors: Tensor  # shape: (num, size), orthonormal rows, dtype and device of the start
    residuals: Tensor  # shape: (num,), float64, ‖Hv − λv‖
    errors: Tensor  # shape: (num,), float64
    converged: Tensor  # shape: (num,), bool
    products: int
    subspace: Subspace | None = None  # if it was to be kept


def eigenpairs(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    num: int = 1,
    which: Which = "largest",
    residual_rtol: float = 1e-10,
    rtol: float | None = None,
    max_products: int = 300,
    max_basis: int = 40,
) -> Eigenpairs:
    """Run Lanczos for one operator that multiplies one vector at a time.

    >>> diagonal = torch.tensor([5.0, 5.0, -7.0]).double()
    >>> start = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).double()
    >>> pairs = eigenpairs(lambda v: diagonal * v, start, num=2)
    >>> [round(value, 12) for value in pairs.values.tolist()]
    [5.0, 5.0]
    """
    run = Lanczos(
        start,
        num=num,
        which=which,
        residual_rtol=residual_rtol,
        rtol=rtol,
        max_products=max_products,
        max_basis=max_basis,
    )
    del start  # vectors may be large: keep no more of them than needed

    def multiply(directions: dict[int, Tensor]) -> dict[int, Tensor]:
        rows = [product(v) for v in directions[0]]
        return {0: rows[0][None] if len(rows) == 1 else torch.stack(rows)}

    return solve([run], multiply)[0]


class Lanczos:
    """Block Lanczos with full reorthogonalization and thick restart.

    With as many start vectors as wanted eigenvalues, equal eigenvalues are found as often as they
    occur. All inner products are summed in float64, whatever the dtype of the vectors, so that
    neither float32 sums over many millions of entries nor a TF32 setting disturbs the basis.
    Besides the products, which belong to the caller, max_basis + block vectors are in memory.

    Normal start vectors are best. Eigenvectors of a nearby operator save products; add a small
    random part, so that an eigenvector orthogonal to all of them is found too. Random signs will
    not do: in a small matrix they may be an eigenvector themselves. When the products stay in the
    space built so far, random rows continue outside of it.

    Args:
        start: Shape (block, size), block >= num. Rows that are zero or depend on the rows before
            them are replaced by random ones.
        num: Wanted eigenvalues at each end; all of them if the matrix is smaller.
        which: "largest" and "smallest" refer to signed values.
        residual_rtol: A value has converged if its residual is below this times the value. Values
            below √eps times the largest are treated as that large, and a residual of round-off
            always suffices, so that 0 can be found too. None asks nothing of the residual.
        rtol: The same, of the error of the value. With both, both must be met.
        max_products: Finishes when the next block would exceed it.
        max_basis: Basis vectors at which a restart compresses the basis.
        generator: Source of random directions; by default one seeded with 0.
        confidence: Of the errors of the extreme values, over normal starts; None for another
            start, of which nothing is known.
        size: Of the whole vectors, where this process has a part of each.
    """

    def __init__(
        self,
        start: Tensor,
        *,
        num: int = 1,
        which: Which = "largest",
        residual_rtol: float | None = None,
        rtol: float | None = None,
        max_products: int,
        max_basis: int,
        generator: torch.Generator | None = None,
        confidence: float | None = CONFIDENCE,
        size: int | None = None,
    ) -> None:
        _check_start(start)
        self._size = start.shape[1] if size is None else size
        block = min(len(start), self._size)
        ends = 2 if which == "both" else 1
        _check_settings(start, num, which, (residual_rtol, rtol), max_products)
        least = ends * num + 2 * block
        enough = f"at least {least} here: the {ends * num} wanted vectors and two blocks of {block}"
        fits, then = whole(least=min(self._size, least)), "Raise it, or ask for fewer eigenvalues."
        need("max_basis", max_basis, fits, enough, then, of="Lanczos")
        self.done = False
        self.products = 0
        self._block = block
        self._num = min(num, self._size)
        self._wanted = min(ends * num, self._size)
        self._which = which
        self._residual_rtol, self._rtol = residual_rtol, rtol
        self._bound = None if confidence is None else ExtremeBound(block, self._size, confidence)
        self._max_products = max_products
        self._generator = generator or torch.Generator().manual_seed(0)
        self._eps = torch.finfo(start.dtype).eps
        self._scale = 0.0  # the largest |Ritz value| so far, which estimates ‖H‖

        # H Q = Q T + (pending rows)ᵀ coupling, where Q are the first `absorbed` rows of the basis.
        # T holds all coefficients of the orthogonalization, not only those of neighbours: after a
        # restart the kept vectors and the new ones are coupled, and T is no longer banded.
        self._limit = min(max_basis, self._size)
        rows = self._limit + block
        self._basis = start.new_empty(rows, start.shape[1])
        self._T = torch.zeros(rows, rows, dtype=torch.float64)
        self._coupling = torch.zeros(0, 0, dtype=torch.float64)
        self._absorbed = 0
        self._pending = block
        self._blocks = 0  # since the start, or since random rows were added first
        self._exhausted = 0  # how often the products stayed in the space built so far
        with torch.no_grad():
            self._basis[:block] = start[:block]
            for row in self._basis[:block].split(1):
                row /= norm(row) or 1.0
            rank = len(self._orthonormalize(0, block, self._eps * ROUNDOFF))
            self._fill(rank, block)

    def directions(self) -> Tensor:
        """The orthonormal rows to multiply next: a read-only view of the basis."""
        return self._basis[self._absorbed : self._absorbed + self._pending]

    @torch.no_grad()
    def update(self, products: Tensor) -> None:
        """Receive H times each of `directions`."""
        b, m = self._pending, self._absorbed + self._pending
        if self.done or products.shape != (b, self._basis.shape[1]):
            expected = (b, self._basis.shape[1])
            raise SpiritlevelError(
                f"The 'products' argument of Lanczos.update must have shape {expected}, one "
                f"row for each of directions(). Got {tuple(products.shape)}"
                f"{' although the iteration is done' * self.done}. Call directions() again."
            )
        rest = self._basis[m : m + b].copy_(products)
        # what a product has along the rows before comes of round-off, except after a restart
        coefficients = project_out(rest, self._basis[:m], near=2 * self._block)
        if not coefficients.isfinite().all():
            raise SpiritlevelError(
                f"The 'products' argument of Lanczos.update must be finite. Got NaN or infinity "
                f"after {self.products} finite products. Check that loss and gradient are finite "
                f"at these parameters, or compute the products in float64."
            )
        T = self._T[:m, :m]
        T[m - b :] = coefficients  # eigh reads the lower triangle only
        self.products += b
        self._absorbed = m
        values, S = torch.linalg.eigh(T)
        self._scale = max(self._scale, float(values.abs().max()))

        inside = self._orthonormalize(m, b, self._roundoff)
        self._coupling = torch.zeros(len(inside), m, dtype=torch.float64)
        self._coupling[:, m - b :] = inside
        self._pending = min(self._block, self._size - m)
        self._blocks += 1
        if len(inside) < self._pending:  # random rows will take the place of what is missing
            self._exhausted += 1
            self._blocks = 0
        _, _, _, converged = self._assess(values, S)
        self.done = (
            (bool(converged.all()) and m >= self._wanted)
            or self._pending == 0
            or self.products + self._pending > self._max_products
        )
        if self.done:
            self._pending = 0
            return
        if m + self._pending > self._limit:
            self._restart(values, S)
        first = self._absorbed + len(inside)
        self._fill(first, self._absorbed + self._pending)

    @torch.no_grad()
    def result(self) -> Eigenpairs:
        """The pairs found so far; needs at least one `update`."""
        if not self.products:
            raise SpiritlevelError(
                "Lanczos.result must come after the first update. Got 0 products. Call solve."
            )
        m = self._absorbed
        values, S = torch.linalg.eigh(self._T[:m, :m])
        picked, residuals, errors, converged = self._assess(values, S, bounded=True)
        vectors = self._basis.new_empty(len(picked), self._basis.shape[1])
        combine(S[:, picked], self._basis[:m], vectors)
        return Eigenpairs(values[picked], vectors, residuals, errors, converged, self.products)

    def subspace(self) -> Subspace:
        """The basis and H on it, without a copy; needs at least one `update`."""
        m, lower = self._absorbed, self._T[: self._absorbed, : self._absorbed].tril()
        return Subspace(
            self._basis[:m],
            lower + lower.tril(-1).T,
            self._basis[m : m + len(self._coupling)],
            self._coupling,
        )

    @property
    def _certain(self) -> bool:
        """Whether no part of the space can still hold an eigenvalue beyond those found."""
        whole = self._absorbed == self._size
        return whole or self._exhausted >= 2 or self._blocks >= LEAST_BLOCKS

    @property
    def _roundoff(self) -> float:
        return ROUNDOFF * self._eps * self._scale

    def _pick(self, count: int, num: int) -> Tensor:
        """Indices of the `num` wanted ones at each end among `count` ascending values."""
        bottom = torch.arange(count)[:num]
        top = torch.arange(count).flip(0)[:num]
        return {"largest": top, "smallest": bottom, "both": torch.cat([top, bottom])}[self._which]

    def _assess(
        self, values: Tensor, S: Tensor, *, bounded: bool = False
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Indices of the wanted Ritz values, residuals, errors, and which of them have converged.

        The errors of extreme values are complete if `bounded`, or if all else has converged.
        """
        picked = self._pick(len(values), self._num)
        residuals = (self._coupling @ S[:, picked]).norm(dim=0).clamp(min=self._roundoff)
        apart = torch.maximum(gaps(values)[picked], residuals)
        errors = (residuals * (residuals / apart).nan_to_num()).clamp(min=self._roundoff)
        sizes = values[picked].abs().clamp(min=math.sqrt(self._eps) * self._scale)

        def small(amounts: Tensor, rtol: float | None) -> Tensor:
            least = math.inf if rtol is None else self._roundoff
            return amounts <= ((rtol or 0.0) * sizes).clamp(min=least)

        converged = small(residuals, self._residual_rtol) & small(errors, self._rtol)
        converged &= torch.tensor(self._certain)
        if self._bound and (bounded or (self._rtol is not None and bool(converged.all()))):
            top, bottom = (0, 1), (len(picked) // 2 if self._which == "both" else 0, -1)
            extreme = {"largest": [top], "smallest": [bottom], "both": [top, bottom]}[self._which]
            for i, sign in extreme:
                beyond = self._bound.beyond(values, S, self._coupling, sign, self._roundoff)
                errors[i] = errors[i].clamp(min=beyond)
            converged &= small(errors, self._rtol)
        return picked, residuals, errors, converged

    def _restart(self, values: Tensor, S: Tensor) -> None:
        """Replace the basis by its best Ritz vectors; the pending rows move up behind them."""
        m, pending = self._absorbed, len(self._coupling)
        # Also keep some beyond the wanted ones: what is dropped must be found again.
        keep = self._wanted + (self._limit - self._block - self._wanted) // 2
        picked = self._pick(m, keep // 2 if self._which == "both" else keep)
        keep = len(picked)
        if self._bound:
            self._bound.restarted(values, S, picked, self._coupling)
        combine(S[:, picked], self._basis[:m], self._basis[:keep])
        for i in range(pending):  # one at a time: source and target may overlap
            self._basis[keep + i] = self._basis[m + i]
        self._T[:keep, :keep] = torch.diag(values[picked])
        self._coupling = self._coupling @ S[:, picked]
        self._absorbed = keep

    def _orthonormalize(self, first: int, count: int, floor: float) -> Tensor:
        """Gram-Schmidt among the rows from `first` on; remainders of at most `floor` are dropped.

        Returns their coefficients, shape (rank, count); the rows that remain move to the front.
        """
        rank, limit = 0, self._size - first
        R = torch.zeros(count, count, dtype=torch.float64)
        for i in range(count):
            row = self._basis[first + i : first + i + 1]
            before = after = norm(row)
            if rank:
                R[:rank, i] = project_out(row, self._basis[first : first + rank])[0]
                after = norm(row)
            if after <= floor or rank == limit:
                continue
            row /= after
            if after < 0.1 * before:  # cancellation has enlarged the error along the whole basis
                project_out(row, self._basis[: first + rank])
                row /= norm(row)
            self._basis[first + rank] = row[0]
            R[rank, i] = after
            rank += 1
        return R[:rank]

    def _fill(self, first: int, last: int) -> None:
        """Fill in random orthonormal rows, to leave an invariant subspace."""
        for i in range(first, last):
            row = self._basis[i : i + 1]
            row.copy_(
                torch.randn(
                    row.shape,
                    generator=self._generator,
                    dtype=row.dtype,
                    device=self._generator.device,
                )
            )
            for _ in range(2):  # if little of the space is left, the first time cancels a lot
                project_out(row, self._basis[:i])
                row /= norm(row)


def _check_start(start: Tensor) -> None:
    if start.dim() != 2 or not start.numel() or start.dtype not in (torch.float32, torch.float64):
        raise SpiritlevelError(
            f"The 'start' argument of Lanczos must be a float32 or float64 tensor of shape "
            f"(block, size). Got {start.dtype} of shape {tuple(start.shape)}. "
            f"Typical: torch.randn(num, size, generator=generator)."
        )
    if not start.isfinite().all():
        raise SpiritlevelError(
            "The 'start' argument of Lanczos must be finite. Got NaN or infinity. "
            "Start from torch.randn(num, size, generator=generator)."
        )


def _check_settings(
    start: Tensor, num: int, which: str, rtols: tuple[float | None, float | None], max_products: int
) -> None:
    block, of = min(start.shape), "Lanczos"
    need("num", num, lambda n: n >= 1, "at least 1", "Typical: 1 to 10.", of=of)
    need("which", which, one_of(get_args(Which)), f"one of {get_args(Which)}", "Choose one.", of=of)
    for name, rtol, typical in zip(("residual_rtol", "rtol"), rtols, ("1e-3", "0.01"), strict=True):
        need(name, rtol, or_none(_in_range), "in [0, 1)", f"Typical: {typical}.", of=of)
    enough, then = f"at least {block}, the block", "Raise it, or start from fewer vectors."
    need("max_products", max_products, lambda n: n >= block, enough, then, of=of)
    if len(start) < num:
        raise SpiritlevelError(
            f"The 'start' argument of Lanczos must have at least num={num} rows, or equal "
            f"eigenvalues could be missed. Got {len(start)}. Add random rows."
        )


def _in_range(rtol: float) -> bool:
    return 0 <= rtol < 1
