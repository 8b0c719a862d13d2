"""The Hessian of a loss in the network's outputs, kept in the form that loses no digits.

Each class holds A_n = ∇²_z ℓ(z_n, y_n) for n = 1…N and offers what the measures need of it:

    trace()        Tr A_n                                   shape (N,)
    quadratic(W)   Tr(Wᵀ A_n W)                             shape (N,)
    apply(v)       A_n v_n                                  shape (N, C)
    pairs(other)   Tr(A_n A'_m)                             shape (N, M)
    columns()      s_k with A_n = Σ_k σ_k s_k s_kᵀ          yields ((N, C), (N,) of ±1)
    probe(r)       Σ_k r_k s_k for random signs r, whose outer product is A_n on average: one
                   such column, or two where A_n has negative eigenvalues (they keep their sign)
    arguments()    the constructor's arguments, one row per sample: to store, slice and rebuild it

1 − Σp² and every product that contains it are exactly 0 in floating point once a network is
confident, while the true value is not. So nothing here is subtracted from 1: the probability mass
outside the most likely class is summed directly, and everything is expressed through it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

# A column s_k of every sample, shape (N, C), and its σ_k, shape (N,).
SignedColumn = tuple[Tensor, Tensor]


def scaled_to_one(column: Tensor) -> tuple[Tensor, Tensor]:
    """A factor column of shape (N, C) scaled to size 1 in every sample, and the sizes, (N, 1).

    A confident network has columns of 1e-13 and less, which would lose their digits on the way.
    """
    size = column.abs().amax(dim=1, keepdim=True)
    return column / torch.where(size > 0, size, torch.ones_like(size)), size


class SoftmaxCurvature:
    """mass_n · (diag p_n − p_n p_nᵀ): cross-entropy with any targets; `mass` is Σ_c target_c."""

    def __init__(self, logits: Tensor, mass: Tensor | None = None) -> None:
        """`logits` has shape (N, C); `mass` has shape (N,) and is 1 for plain cross-entropy."""
        self.logits = logits
        self.p = logits.softmax(dim=1)
        self.mass = torch.ones_like(self.p[:, 0]) if mass is None else mass
        self.top = logits.argmax(dim=1, keepdim=True)  # shape: (N, 1)
        self.tail = self.p.scatter(1, self.top, 0.0)  # p without its largest entry
        self.rest = self.tail.sum(dim=1)  # 1 − p_top, without the cancellation
        self.p_top = self.p.gather(1, self.top).squeeze(1)

    @property
    def num_columns(self) -> int:
        """The rank: C − 1, since A·1 = 0."""
        return self.p.shape[1] - 1

    @property
    def num_signs(self) -> int:
        """Random signs that `probe` takes per sample."""
        return self.p.shape[1]

    def arguments(self) -> tuple[Tensor, ...]:
        """The logits and the masses."""
        return self.logits, self.mass

    def gini(self) -> Tensor:
        """1 − Σ p², shape (N,)."""
        return self.rest * (2.0 - self.rest) - self.tail.square().sum(dim=1)

    def entropy(self) -> Tensor:
        """−Σ p log p, shape (N,): −log p_i = −log p_top + (z_top − z_i), and no term cancels."""
        below = self.logits.gather(1, self.top) - self.logits
        tail = torch.where(self.tail > 0, self.tail * below, torch.zeros_like(below))
        return torch.log1p(self.rest / self.p_top) + tail.sum(dim=1)

    def trace(self) -> Tensor:
        """Tr A_n."""
        return self.mass * self.gini()

    def quadratic(self, weight: Tensor) -> Tensor:
        """Tr(Wᵀ A_n W) for W of shape (C, d): the p-variance of the rows of W.

        A variance does not change when w_top is subtracted from every row, and then its largest
        term is 0 instead of cancelling: Σ_tail p_i ‖w_i − w_top‖² − ‖Σ_tail p_i (w_i − w_top)‖².
        """
        top = self.top.squeeze(1)
        weight = weight - weight.mean(dim=0)  # rows that are nearly equal would cancel in `mean`
        if len(top) < len(weight):  # fewer samples than classes: compute only the pairs that occur
            distances = squared_distances(weight[top], weight)
        else:
            distances = squared_distances(weight, weight)[top]
        spread = (self.tail * distances).sum(dim=1)
        mean = self.tail @ weight - self.rest[:, None] * weight[top]
        return self.mass * (spread - mean.square().sum(dim=1))

    def apply(self, v: Tensor) -> Tensor:
        """A_n v_n for v of shape (N, C)."""
        centred = v - v.gather(1, self.top)  # A·1 = 0, so a shift of v changes nothing
        mean = (self.tail * centred).sum(dim=1, keepdim=True)
        return self.mass[:, None] * (self.tail * centred - self.p * mean)

    def pairs(self, other: SoftmaxCurvature) -> Tensor:
        """Tr(A_n A'_m) = Σ_i d_i d'_i + Σ_{i≠j} x_i x_j with d = p(1−p), x = p p'.

        Where both samples share their largest class, x_top ≈ 1 is split off before squaring.
        """
        diagonal = self._diagonal() @ other._diagonal().T
        apart = (self.p @ other.p.T).square() - self.p.square() @ other.p.square().T
        tails = self.tail @ other.tail.T
        shared = 2.0 * torch.outer(self.p_top, other.p_top) * tails + tails.square()
        shared = shared - self.tail.square() @ other.tail.square().T
        cross = torch.where(self.top == other.top.T, shared, apart)
        return torch.outer(self.mass, other.mass) * (diagonal + cross)

    def _diagonal(self) -> Tensor:
        inner = self.tail * (1.0 - self.tail)
        return inner.scatter(1, self.top, (self.p_top * self.rest)[:, None])

    def columns(self) -> Iterator[SignedColumn]:
        """diag(√p) times the Householder reflection that maps √p to e_top, without column top."""
        root = self.p.sqrt()
        root_top = self.p_top.sqrt()[:, None]
        # 1 − √p_top = (1 − p_top)/(1 + √p_top); 0 only where the tail underflowed to 0 as well.
        gap = self.rest[:, None] / (1.0 + root_top)
        gap = torch.where(gap > 0, gap, torch.ones_like(gap))
        root_tail = self.tail.sqrt()
        sign = torch.ones_like(self.mass)
        for k in range(self.num_columns):
            index = k + (self.top <= k).long()  # the k-th class that is not the largest
            root_k = root.gather(1, index)
            column = -root_tail * (root_tail * (root_k / gap))
            column = column.scatter_add(1, index, root_k)
            column = column.scatter(1, self.top, root_top * root_k)
            yield self.mass.sqrt()[:, None] * column, sign

    def probe(self, signs: Tensor) -> list[SignedColumn]:
        """√p∘r − p (√p·r); at the most likely class 1 − p_top is factored out: nothing cancels."""
        x = self.p.sqrt() * signs
        x_top = x.gather(1, self.top)
        others = x.scatter(1, self.top, 0.0).sum(dim=1, keepdim=True)
        column = x - self.p * (x_top + others)
        at_top = x_top * self.rest[:, None] - self.p_top[:, None] * others
        column = column.scatter(1, self.top, at_top)
        return [(self.mass.sqrt()[:, None] * column, torch.ones_like(self.mass))]


def squared_distances(left: Tensor, right: Tensor) -> Tensor:
    """‖l_i − r_j‖² of all pairs of rows, from differences and not from products."""
    return torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist").square()


class DiagonalCurvature:
    """diag(a_n): squared error (a constant) and sigmoid cross-entropy."""

    def __init__(self, diagonal: Tensor) -> None:
        """`diagonal` holds a_n in its rows, shape (N, C)."""
        self.diagonal = diagonal

    @property
    def num_columns(self) -> int:
        """One factor column per output."""
        return self.diagonal.shape[1]

    @property
    def num_signs(self) -> int:
        """Random signs that `probe` takes per sample."""
        return self.diagonal.shape[1]

    def arguments(self) -> tuple[Tensor, ...]:
        """The diagonals."""
        return (self.diagonal,)

    def trace(self) -> Tensor:
        """Tr A_n."""
        return self.diagonal.sum(dim=1)

    def quadratic(self, weight: Tensor) -> Tensor:
        """Tr(Wᵀ A_n W) = Σ_i a_i ‖w_i‖²."""
        return self.diagonal @ weight.square().sum(dim=1)

    def apply(self, v: Tensor) -> Tensor:
        """A_n v_n for v of shape (N, C)."""
        return self.diagonal * v

    def pairs(self, other: DiagonalCurvature) -> Tensor:
        """Tr(A_n A'_m) = a_n · a'_m."""
        return self.diagonal @ other.diagonal.T

    def columns(self) -> Iterator[SignedColumn]:
        """√|a_k| e_k."""
        for k in range(self.num_columns):
            column = torch.zeros_like(self.diagonal)
            column[:, k] = self.diagonal[:, k].abs().sqrt()
            yield column, self.diagonal[:, k].sign()

    def probe(self, signs: Tensor) -> list[SignedColumn]:
        """√|a_k| r_k, with positive and negative entries in separate columns."""
        return _by_sign(self.diagonal, lambda part: part.sqrt() * signs)


class DenseCurvature:
    """Any symmetric A_n, shape (N, C, C); negative eigenvalues keep their sign."""

    def __init__(self, matrices: Tensor) -> None:
        """`matrices` has shape (N, C, C) and is symmetrized."""
        self.matrices = (matrices + matrices.mT) / 2
        self._eigen: tuple[Tensor, Tensor] | None = None

    @property
    def num_columns(self) -> int:
        """One factor column per output."""
        return self.matrices.shape[1]

    @property
    def num_signs(self) -> int:
        """Random signs that `probe` takes per sample."""
        return self.matrices.shape[1]

    def arguments(self) -> tuple[Tensor, ...]:
        """The matrices."""
        return (self.matrices,)

    def trace(self) -> Tensor:
        """Tr A_n."""
        return self.matrices.diagonal(dim1=1, dim2=2).sum(dim=1)

    def quadratic(self, weight: Tensor) -> Tensor:
        """Tr(Wᵀ A_n W) = ⟨A_n, W Wᵀ⟩."""
        return (self.matrices * (weight @ weight.T)).sum(dim=(1, 2))

    def apply(self, v: Tensor) -> Tensor:
        """A_n v_n for v of shape (N, C)."""
        return (self.matrices @ v[:, :, None]).squeeze(2)

    def pairs(self, other: DenseCurvature) -> Tensor:
        """Tr(A_n A'_m)."""
        return self.matrices.flatten(1) @ other.matrices.flatten(1).T

    def columns(self) -> Iterator[SignedColumn]:
        """√|λ_k| v_k of each sample's eigendecomposition."""
        values, vectors = self._decomposed()
        for k in range(self.num_columns):
            yield vectors[:, :, k] * values[:, k, None].abs().sqrt(), values[:, k].sign()

    def probe(self, signs: Tensor) -> list[SignedColumn]:
        """Σ_k r_k √|λ_k| v_k, with positive and negative eigenvalues in separate columns."""
        values, vectors = self._decomposed()
        return _by_sign(
            values, lambda part: (vectors @ (part.sqrt() * signs)[:, :, None]).squeeze(2)
        )

    def _decomposed(self) -> tuple[Tensor, Tensor]:
        if self._eigen is None:
            self._eigen = torch.linalg.eigh(self.matrices)
        return self._eigen


def _by_sign(values: Tensor, column: Callable[[Tensor], Tensor]) -> list[SignedColumn]:
    """One column for the positive values, and one for the negative values if there are any."""
    ones = torch.ones_like(values[:, 0])
    columns = [(column(values.clamp(min=0)), ones)]
    if bool((values < 0).any()):
        columns.append((column((-values).clamp(min=0)), -ones))
    return columns


RowCurvature = SoftmaxCurvature | DiagonalCurvature | DenseCurvature


class OrderedColumns:
    """s_1 … s_{C−1} of every sample in the order of the probabilities: the largest part first.

    With the classes of a sample sorted by p, let Q_j be the mass of all less likely than j:

        s_j = √(p_j Q_j / (p_j + Q_j)) · (e_j − Σ_{i>j} (p_i / Q_j) e_i)

    The first m columns leave (diag π − ππᵀ) · Q, the Hessian of the other classes among themselves,
    with their distribution π. Columns that make the same m classes exact cannot leave less, since
    this is the Schur complement. Every entry is a product, so nothing cancels.
    """

    def __init__(self, curvature: SoftmaxCurvature) -> None:
        """Sort the classes; of equal ones the first comes first."""
        self.order = curvature.logits.argsort(dim=1, descending=True, stable=True)
        self._p = curvature.p.gather(1, self.order)
        below = _sums_behind(self._p)
        self._below = torch.where(below == 0, torch.ones_like(below), below)  # then p behind is 0
        both = torch.where(below == 0, torch.ones_like(below), self._p + below)
        self._sizes = (curvature.mass[:, None] * (self._p / both) * below).sqrt()
        self._plus = torch.ones_like(curvature.mass)

    def column(self, rank: int) -> SignedColumn:
        """s_j of the class with this rank, from 0."""
        ranked = torch.zeros_like(self._p)
        size, below = self._sizes[:, rank, None], self._below[:, rank, None]
        ranked[:, rank + 1 :] = -size * (self._p[:, rank + 1 :] / below)
        ranked[:, rank] = size[:, 0]
        return self._by_class(ranked), self._plus

    def probe(self, signs: Tensor, first: int) -> SignedColumn:
        """Σ r_j s_j over the columns from rank `first` on; `signs` are by class, shape (N, C)."""
        drawn = self._sizes * signs.gather(1, self.order)
        drawn[:, :first] = 0.0
        steps = drawn / self._below
        before = torch.cat([torch.zeros_like(steps[:, :1]), steps[:, :-1].cumsum(dim=1)], dim=1)
        return self._by_class(drawn - self._p * before), self._plus

    def left(self, ranks: list[int]) -> Tensor:
        """The trace that the columns before each of these ranks leave, shape (N, ranks)."""
        behind = _sums_behind(self._p.square())
        norms = self._sizes.square() * (1.0 + behind / self._below / self._below)
        return norms.flip(1).cumsum(dim=1).flip(1)[:, ranks]

    def _by_class(self, ranked: Tensor) -> Tensor:
        return torch.zeros_like(ranked).scatter(1, self.order, ranked)


def _sums_behind(values: Tensor) -> Tensor:
    """Σ_{i>j} of each row, summed from the end."""
    sums = values.flip(1).cumsum(dim=1).flip(1)
    return torch.cat([sums[:, 1:], torch.zeros_like(sums[:, :1])], dim=1)
