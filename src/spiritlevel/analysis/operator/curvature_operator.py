"""The Hessian, GGN or Fisher matrix of a network as an operator that other tools can use."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...engine.weight_space.parameter_space import ParameterSpace
from ...engine.weight_space.products import Request
from ...engine.workspace import Workspace
from ...errors import SpiritlevelError, require
from ...measures.setup import OnLayers, Setup
from ...measures.verb import measuring, verb
from ...records import Cost
from .kinds import KIND, Kind, check_kind, matrix_of
from .solving import Multiply, Solution, check_solve, conjugate_gradients

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclasses.dataclass(eq=False)
class CurvatureOperator:
    """A symmetric matrix over the chosen parameters that is never formed.

    `operator @ v` multiplies a vector of shape (n,) or the columns of a block of shape (n, k); all
    columns share one pass over the data. The matrix is that of the model as it is at the time of
    the product. `cost` counts the work so far.
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

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns: one for each entry of the parameters."""
        size = sum(shape.numel() for shape in self.shapes.values())
        return size, size

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
        linalg = require("scipy.sparse.linalg", what="CurvatureOperator.to_scipy", extra="study")

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


@verb(kind=KIND)
def operator(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    kind: Kind = "hessian",
    **shared: Unpack[OnLayers],
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


@measuring("owner")
def _multiply(
    setup: Setup, model: nn.Module, data: Iterable[Any], owner: CurvatureOperator, block: Tensor
) -> Tensor:
    return _with_products(setup, model, data, owner, lambda multiply: multiply(block))


@measuring("owner")
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
            (product,) = products.multiply([Request(matrix, space, rows)])
            return product.T.to(block.dtype)

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
