"""The Hessian, GGN or Fisher matrix of a network as an operator that other tools can use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from ...engine.weight_space.chunk_products import Operator
from ...engine.weight_space.long_rows import over_all_columns
from ...engine.weight_space.parameter_space import ParameterSpace
from ...engine.weight_space.products import Request, errors_of
from ...engine.workspace import Workspace
from ...ground.errors import SpiritlevelError, brief, require
from ...ground.need import is_number, need, need_one_of, number, whole
from ...measures.setup import OfProducts, Setup
from ...measures.verb import measuring, verb
from ...model.arguments import ArgumentCheck, is_text
from ...model.losses import CrossEntropy
from ...model.surface import Surface
from ...records.content import ERROR, Column, Part, Table, Text
from ...records.measurements import Cost
from ...records.notebooks import Shown

if TYPE_CHECKING:
    from typing_extensions import Unpack

Kind = Literal["hessian", "ggn", "fisher"]
MATRICES = {"hessian": "Hessian", "ggn": "Gauss–Newton matrix", "fisher": "Fisher matrix"}
KIND = ArgumentCheck(is_text, "'hessian', 'ggn' or 'fisher'")
# Negative log-likelihoods of a distribution in its natural parameters, up to a factor: for these
# the Fisher information of the model's own predictions is the Gauss–Newton matrix.
LIKELIHOODS = ("mse", "bce")
Multiply = Callable[[Tensor], Tensor]  # a block of columns by the matrix


def check_kind(kind: str) -> None:
    """Refuse a matrix that is not known."""
    need_one_of("kind", kind, get_args(Kind))


def matrix_of(kind: Kind, surface: Surface) -> Operator:
    """The matrix that products are taken with; a Fisher matrix must be defined for the loss."""
    if kind != "fisher":
        return kind
    loss = surface.loss
    if not isinstance(loss, CrossEntropy) and loss.name not in LIKELIHOODS:
        raise SpiritlevelError(
            "The 'kind' argument 'fisher' needs a loss that is a log-likelihood: cross-entropy, "
            f"mse or bce. Got the loss {loss.name!r}, for which the model predicts no "
            "distribution. Use kind='ggn'."
        )
    return "ggn"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Solution(Shown):
    """What `CurvatureOperator.solve` found; `residuals` are ‖(A + λ1)x − v‖ / ‖v‖, by column."""

    HEADING: ClassVar = "Solution of a linear system"

    vectors: Tensor
    residuals: list[float]
    converged: list[bool]
    passes: int  # products of the whole block, each one pass over the data
    text: str  # what to do where it did not converge
    kind: str = ""

    def describe(self) -> list[Part]:
        """How far every column was solved, and what that took."""
        places = map(str, range(len(self.residuals)))
        rows = list(zip(places, self.residuals, self.converged, strict=True))
        residual, converged = Column("residual", digits=ERROR), Column("converged", kind="mark")
        passes = "1 product" if self.passes == 1 else f"{self.passes} products"
        answer = (
            f"{sum(self.converged)} of {len(rows)} columns converged, after {passes} of the whole "
            "block, each a pass over the data"
        )
        table = Table(["column", residual, converged], rows)
        return [Text([answer]), table, *([Text([self.text])] if self.text else [])]


def check_solve(damping: Any, rtol: Any, max_passes: Any) -> None:
    """Refuse what cannot be solved for."""
    for name, value in {"damping": damping, "rtol": rtol}.items():
        typical = "Typical: damping=1e-3, rtol=1e-5."
        need(name, value, is_number, "a number", typical, of="solve")
    finite = "at least 0 and finite, since it is added to the diagonal"
    typical = "Typical: 1e-3 of the largest eigenvalue."
    need("damping", damping, number(least=0), finite, typical, of="solve")
    if not 0.0 < rtol < 1.0:
        raise SpiritlevelError(
            f"The 'rtol' argument of solve must lie between 0 and 1. Got {brief(rtol)}. Typical: "
            "1e-5."
        )
    count = "a whole number of at least 1"
    need("max_passes", max_passes, whole(least=1), count, "Typical: 200.", of="solve")


def conjugate_gradients(
    multiply: Multiply, block: Tensor, damping: float, *, rtol: float, max_products: int
) -> Solution:
    """(A + damping · 1)⁻¹ of every column, with sums in float64.

    >>> diagonal = torch.tensor([1.0, 2.0, 3.0]).double()[:, None]
    >>> found = conjugate_gradients(
    ...     lambda v: diagonal * v, torch.ones(3, 1).double(), 1.0, rtol=1e-12, max_products=9
    ... )
    >>> [round(value, 9) for value in found.vectors[:, 0].tolist()], found.passes
    ([0.5, 0.333333333, 0.25], 4)
    """
    v = block.double()
    sizes = _dots(v, v).sqrt()
    x, residual = torch.zeros_like(v), v.clone()
    direction, squares = residual.clone(), _dots(residual, residual)
    open_, negative, passes = sizes > 0, torch.zeros_like(sizes, dtype=torch.bool), 0
    while bool(open_.any()) and passes < max_products:
        image = multiply(direction.to(block.dtype)).double() + damping * direction
        passes += 1
        bend = _dots(direction, image)
        negative |= open_ & (bend <= 0.0)
        open_ = open_ & ~negative
        step = torch.where(open_, squares / bend, 0.0)
        x += step * direction
        residual -= step * image
        before, squares = squares, _dots(residual, residual)
        open_ = open_ & (squares.sqrt() > rtol * sizes)
        direction = residual + torch.where(before > 0, squares / before, 0.0) * direction
    true = v - multiply(x.to(block.dtype)).double() - damping * x
    relative = torch.where(sizes > 0, _dots(true, true).sqrt() / sizes, 0.0)
    # what the recursion says and what a product says part where rounding takes over
    converged = (relative <= 2 * rtol) & ~negative
    return Solution(
        vectors=x.to(block.dtype),
        residuals=relative.tolist(),
        converged=converged.tolist(),
        passes=passes + 1,
        text=_text(converged, negative, damping, rtol),
    )


def _dots(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each column with its column, of which a process may have a part."""
    return over_all_columns((a * b).sum(dim=0))


def _text(converged: Tensor, negative: Tensor, damping: float, rtol: float) -> str:
    if bool(converged.all()):
        return ""
    if bool(negative.any()):
        return (
            f"The matrix plus {damping:g} on its diagonal is not positive definite, so conjugate "
            "gradients stop. Raise 'damping' above minus the smallest eigenvalue (see "
            "spiritlevel.eigenvalues with which='smallest'), or use kind='ggn'."
        )
    return (
        f"The residual is above {rtol:g}. Raise 'max_passes' or 'damping'; in float32 a residual "
        "below about 1e-5 may be out of reach: use model.double()."
    )


@dataclasses.dataclass(eq=False, repr=False)
class CurvatureOperator:
    """A symmetric matrix over the chosen parameters that is never formed.

    `operator @ v` multiplies a vector of shape (n,) or the columns of a block of shape (n, k); all
    columns share one pass over the data. The matrix is that of the model as it is at the time of
    the product. `cost` counts the work so far. `errors` has how far each column of the last product
    may be off, as the length of a vector; None where it is exact up to rounding. Of a model that
    `fully_shard` divides, vectors and shapes are those of the parts that this process holds.
    """

    model: nn.Module
    data: Iterable[Any]
    kind: Kind
    names: tuple[str, ...]  # of the parameters, in the order of the vectors
    shapes: dict[str, torch.Size]
    dtype: torch.dtype
    device: torch.device
    cost: Cost
    _setup: Setup = dataclasses.field(repr=False)
    errors: list[float] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns: one for each entry of the parameters."""
        size = sum(shape.numel() for shape in self.shapes.values())
        return size, size

    def __repr__(self) -> str:
        names = f"{len(self.names)} parameters, {self.shape[0]:,} entries"
        return f"CurvatureOperator({self.kind}: {names}, {self.dtype} on {self.device})"

    def __matmul__(self, vectors: Tensor) -> Tensor:
        vectors = self._checked(vectors, "right side of @")
        block = vectors if vectors.dim() == 2 else vectors[:, None]
        product = _multiply(self._setup, self.model, self.data, self, block)
        return product if vectors.dim() == 2 else product[:, 0]

    def solve(
        self, vectors: Tensor, damping: float, *, rtol: float = 1e-5, max_passes: int = 200
    ) -> Solution:
        """(matrix + damping · 1)⁻¹ times a vector or the columns of a block.

        By conjugate gradients, which need a positive definite matrix: any damping > 0 will do for
        the GGN and the Fisher matrix; for the Hessian it must exceed minus the smallest eigenvalue.
        The residual that is reported is computed from the result, with a product of its own.

        Args:
            damping: is added to the diagonal.
            rtol: the size of the residual, relative to `vectors`, at which to stop.
            max_passes: products to spend at most, each one pass over the data.
        """
        check_solve(damping, rtol, max_passes)
        vectors = self._checked(vectors, "'vectors' argument")
        block = vectors if vectors.dim() == 2 else vectors[:, None]
        solution = _solve(
            self._setup, self.model, self.data, self, block, damping, rtol, max_passes
        )
        if vectors.dim() == 2:
            return solution
        return dataclasses.replace(solution, vectors=solution.vectors[:, 0])

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """A vector of shape (n,) by parameter name, in the parameters' shapes."""
        parts = vector.split([shape.numel() for shape in self.shapes.values()])
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """The inverse of `split`."""
        for name in self.names:
            if name not in parts or parts[name].shape != self.shapes[name]:
                came = f"shape {tuple(parts[name].shape)}" if name in parts else "nothing"
                raise SpiritlevelError(
                    f"The 'parts' argument must hold {name!r} in shape "
                    f"{tuple(self.shapes[name])}. Got {came}. It needs all of operator.names."
                )
        return torch.cat([parts[name].reshape(-1) for name in self.names])

    def to_scipy(self) -> Any:
        """As a `scipy.sparse.linalg.LinearOperator`, for its eigenvalue and system solvers."""
        linalg = require("scipy.sparse.linalg", what="CurvatureOperator.to_scipy", extra="scipy")

        def times(array: Any) -> Any:
            vectors = torch.as_tensor(array).to(self.device, self.dtype)
            return (self @ vectors).cpu().numpy()

        empty = torch.empty(0, dtype=self.dtype).numpy()
        return linalg.LinearOperator(
            self.shape,
            matvec=lambda v: times(v.reshape(-1)),
            rmatvec=lambda v: times(v.reshape(-1)),
            matmat=times,
            rmatmat=times,
            dtype=empty.dtype,
        )

    def _checked(self, vectors: Any, what: str) -> Tensor:
        need = f"a tensor of shape ({self.shape[0]},) or ({self.shape[0]}, columns)"
        if not isinstance(vectors, Tensor):
            raise SpiritlevelError(
                f"The {what} must be {need}. Got {type(vectors).__name__}. For numpy arrays there "
                "is operator.to_scipy(), for parts by name operator.join(parts)."
            )
        if vectors.dim() not in (1, 2) or len(vectors) != self.shape[0] or vectors.is_complex():
            raise SpiritlevelError(
                f"The {what} must be {need}. Got {vectors.dtype} of shape {tuple(vectors.shape)}. "
                "The order of the entries is that of operator.names."
            )
        if not bool(torch.isfinite(vectors).all()):
            raise SpiritlevelError(
                f"The {what} must hold finite numbers. Got infinity or nan. Check how it was made."
            )
        return vectors.detach().to(self.device, self.dtype)


@verb(by_products=True, kind=KIND)
def operator(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    kind: Kind = "hessian",
    **shared: Unpack[OfProducts],
) -> CurvatureOperator:
    """A curvature matrix of `model` on `data`, to multiply and to solve with.

    Args:
        kind: "hessian", "ggn" (generalized Gauss–Newton), or "fisher": the Fisher information of
            the model's own predictions, which is the GGN for cross-entropy, mse and bce.
        layers: module paths or patterns: the block of these layers; "head" for the head.

    The other arguments are those of `measure`. Every product leaves the model as it was.

    >>> import spiritlevel as sl
    >>> net = nn.Linear(3, 1, bias=False).double()
    >>> x, y = torch.diag(torch.tensor([1.0, 2.0, 3.0])).double(), torch.zeros(3, 1).double()
    >>> H = sl.operator(net, (x, y), loss="mse")            # 2·mean x xᵀ
    >>> (H @ torch.ones(3).double()).tolist()
    [0.6666666666666666, 2.6666666666666665, 6.0]
    """
    check_kind(kind)
    with setup.opened(model, data) as workspace:
        matrix_of(kind, workspace.surface)
        space = ParameterSpace(workspace.surface)
    return CurvatureOperator(
        model=model,
        data=data,
        kind=kind,
        names=space.names,
        shapes=dict(zip(space.names, space.shapes, strict=True)),
        dtype=space.dtype,
        device=space.device,
        cost=Cost(),
        _setup=setup,
    )


@measuring("owner", by_products=True)
def _multiply(
    setup: Setup, model: nn.Module, data: Iterable[Any], owner: CurvatureOperator, block: Tensor
) -> Tensor:
    return _with_products(setup, model, data, owner, lambda multiply: multiply(block))


@measuring("owner", by_products=True)
def _solve(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    owner: CurvatureOperator,
    block: Tensor,
    damping: float,
    rtol: float,
    max_passes: int,
) -> Solution:
    def solved(multiply: Multiply) -> Solution:
        return conjugate_gradients(multiply, block, damping, rtol=rtol, max_products=max_passes)

    solution = _with_products(setup, model, data, owner, solved)
    return dataclasses.replace(solution, kind=owner.kind)


def _with_products(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    owner: CurvatureOperator,
    use: Callable[[Multiply], Any],
) -> Any:
    """What `use` makes of products with the matrix, all in one call on the model."""
    with setup.opened(model, data) as workspace:
        space = _same_space(workspace, owner)
        products, matrix = workspace.products, matrix_of(owner.kind, workspace.surface)

        def multiply(block: Tensor) -> Tensor:
            rows = block.T.to(space.dtype).contiguous()
            (product,) = products.images([Request(matrix, space, rows)])
            owner.errors = None if product.gaps is None else errors_of(product).tolist()
            return product.rows.T.to(block.dtype)

        with products.keeping_graph():
            result = use(multiply)
    owner.cost += workspace.cost
    return result


def _same_space(workspace: Workspace, owner: CurvatureOperator) -> ParameterSpace:
    space = ParameterSpace(workspace.surface)
    if dict(zip(space.names, space.shapes, strict=True)) != owner.shapes:
        raise SpiritlevelError(
            "The model must have the trainable parameters that it had when the operator was made: "
            f"{len(owner.names)} from {owner.names[0]!r} on. Got {len(space.names)} from "
            f"{space.names[0]!r} on. Make a new one with spiritlevel.operator(...)."
        )
    return space
