"""Eigenvalues and spectral density of the Hessian or the GGN, whole or of chosen layers.

Also the largest eigenvalue of the Hessian seen through a preconditioner, as an optimizer sees it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from ..engine.weight_space.density import SpectralDensity
from ..engine.weight_space.eigenvalues import Scaling, check_room, density_of, eigenpairs_of
from ..engine.weight_space.lanczos import Eigenpairs, Which
from ..engine.weight_space.parameter_space import ParameterSpace
from ..engine.workspace import Workspace
from ..ground.errors import SpiritlevelError
from ..ground.need import is_number, is_whole, need, need_one_of, or_none, whole
from ..measures.setup import OfProducts, Setup
from ..measures.verb import measuring, verb
from ..model.arguments import CHECKED_LATER, ArgumentCheck, is_text
from ..model.running_statistics import batch_statistics
from ..model.surroundings import call_settings
from ..records.content import Column, Notes, Part, Table, Text
from ..records.measurements import RESIDUAL, VALUE, Cost
from ..records.notebooks import Shown
from ..records.reading import IF_ANY, UNSAVED, Misread, Plain, Saved, read_fields, read_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

Matrix = Literal["hessian", "ggn"]
KEPT = ("loss", "reduction", "layers", "num_samples", "seed", "dtype", "device", "torch")
UNCONVERGED = (
    "Of a value that has not converged it is known that an eigenvalue lies within the residual. "
    "Raise max_passes to lower it."
)
LOST = "lost_digits"  # a setting: why no eigenvalue counts as found
BY = "products_by"  # a setting: on how products were formed, where that is not exact
WHOLE = ArgumentCheck(is_whole, "a whole number below 2**63")
MATRIX = ArgumentCheck(is_text, "'hessian' or 'ggn'")
MOST_VECTORS = 1 << 20  # of a density: more would never end


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Eigenvalues(Shown, Plain):
    """Some eigenvalues with their vectors; an eigenvalue lies within `residuals` of each value."""

    CALLED: ClassVar = "the eigenvalues"

    values: list[float]
    residuals: list[float]
    converged: list[bool]
    # shape: (values, parameters), orthonormal rows
    vectors: Tensor = dataclasses.field(metadata=UNSAVED)
    # of the parameters, in the order of the vectors
    names: tuple[str, ...] = dataclasses.field(metadata=UNSAVED)
    cost: Cost
    settings: dict[str, Any]

    def __repr__(self) -> str:
        values = ", ".join(f"{value:.4g}" for value in self.values)
        return f"Eigenvalues({values}; {self.settings['num_samples']} samples)"

    def describe(self) -> list[Part]:
        """The eigenvalues, the largest first, and what was counted."""
        columns = [
            Column("eigenvalue", form=VALUE),
            Column("residual", form=RESIDUAL),
            Column("converged", kind="mark"),
        ]
        pairs = sorted(zip(self.values, self.residuals, self.converged, strict=True), reverse=True)
        count = int(self.settings["num_samples"])
        table = Table(columns, pairs, id="eigenvalue-table", title="Largest first")
        lost = [str(self.settings[name]) for name in (BY, LOST) if name in self.settings]
        parts: list[Part] = [table, Notes(self.cost.passes(count), count, lost)]
        return parts if all(self.converged) else [*parts, Text([UNCONVERGED])]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Eigenvalues:
        """Read what `to_dict` gave; the vectors are not in it."""
        unsaved = {"vectors": torch.empty(0, 0), "names": ()}
        pairs = read_fields(cls, data, cls.CALLED, **unsaved)
        read_settings(pairs.settings, "the eigenvalues' settings")
        if not len(pairs.values) == len(pairs.residuals) == len(pairs.converged):
            raise Misread("the eigenvalues' lists differ in length")
        return pairs

    def vector(self, index: int = 0) -> dict[str, Tensor]:
        """One eigenvector by parameter name, each part flattened."""
        sizes = [self.settings["sizes"][name] for name in self.names]
        return dict(zip(self.names, self.vectors[index].split(sizes), strict=True))


@dataclasses.dataclass(frozen=True)
class Spectrum(Shown, Saved):
    """What `spiritlevel spectrum` found: eigenvalues, a density, or both."""

    CALLED: ClassVar = "the spectrum"
    EXTENDED: ClassVar = True
    FORMAT: ClassVar = "spiritlevel-spectrum-1"
    UNNAMED: ClassVar = True

    eigenvalues: Eigenvalues | None = dataclasses.field(default=None, metadata=IF_ANY)
    density: SpectralDensity | None = dataclasses.field(default=None, metadata=IF_ANY)

    def __post_init__(self) -> None:
        if self.eigenvalues is None and self.density is None:
            raise SpiritlevelError(
                "A Spectrum must have eigenvalues, a density or both. Got neither. Pass what "
                "spiritlevel.eigenvalues or spiritlevel.density returned."
            )

    def describe(self) -> list[Part]:
        """The eigenvalues, then the means over all of them."""
        found = (self.eigenvalues, self.density)
        return [part for record in found if record is not None for part in record.describe()]


@verb(
    by_products=True,
    num=WHOLE,
    which=ArgumentCheck(is_text, "'largest', 'smallest' or 'both'"),
    matrix=MATRIX,
    start=CHECKED_LATER._replace(alike=False),
    residual_rtol=ArgumentCheck(or_none(is_number), "a number, or None"),
)
def eigenvalues(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    num: int = 1,
    which: Which = "largest",
    matrix: Matrix = "hessian",
    start: Eigenvalues | None = None,
    residual_rtol: float | None = None,
    max_passes: int = 200,
    **shared: Unpack[OfProducts],
) -> Eigenvalues:
    """Extreme eigenvalues by Lanczos with full reorthogonalization.

    Args:
        num: how many, at each end that `which` names.
        which: "largest", "smallest" (both with their sign) or "both".
        matrix: "hessian", or "ggn" for its positive semidefinite part.
        layers: module paths or patterns: the eigenvalues of that block; "head" for the head.
        start: an earlier result on the same parameters, to save products as training goes on.
        residual_rtol: the residual at which an eigenvalue counts as found, relative to it; None
            takes 1e-6 in float64 and 1e-4 in float32. The value itself is more precise than that.
        max_passes: products to spend at most, each one pass over the data.

    The other arguments are those of `measure`.

    >>> import torch, spiritlevel as sl
    >>> net = nn.Linear(3, 1, bias=False).double()
    >>> x, y = torch.diag(torch.tensor([1.0, 2.0, 3.0])).double(), torch.zeros(3, 1).double()
    >>> found = sl.eigenvalues(net, (x, y), loss="mse", num=2)     # H = 2·mean x xᵀ
    >>> [round(value, 6) for value in found.values]
    [6.0, 2.666667]
    """
    if not 1 <= num <= max_passes:
        raise SpiritlevelError(
            "The 'num' argument must be at least 1 and at most 'max_passes', since every "
            f"eigenvalue takes products. Got num={num!r} and max_passes={max_passes!r}. "
            "Ask for fewer eigenvalues or more passes."
        )
    need_one_of("matrix", matrix, get_args(Matrix))
    with setup.opened(model, data) as workspace:
        space = ParameterSpace(workspace.surface)
        check_room(space, num, workspace.vector_memory)
        workspace.start()
        (pairs,) = eigenpairs_of(
            workspace.products,
            [space],
            operator=matrix,
            num=num,
            which=which,
            seed=setup.seed,
            max_products=max_passes,
            residual_rtol=residual_rtol,
            starts=[_warm(start, space)],
        )
    settings = {key: workspace.settings()[key] for key in KEPT} | call_settings()
    settings |= {"matrix": matrix, "sizes": _sizes(space), "which": which, "max_passes": max_passes}
    return _recorded(pairs, space, workspace, settings)


@verb(by_products=True, num_vectors=WHOLE, steps=WHOLE, matrix=MATRIX)
def density(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    num_vectors: int = 8,
    steps: int = 40,
    matrix: Matrix = "hessian",
    **shared: Unpack[OfProducts],
) -> SpectralDensity:
    """The distribution of all eigenvalues, by stochastic Lanczos quadrature.

    Takes num_vectors × steps products. `SpectralDensity.curve()` gives the smoothed density,
    `SpectralDensity.moment(1)` an estimate of Tr H / n with its error. To draw it, use
    `spiritlevel.pages.figures.density`.
    """
    fits, wanted = whole(least=1, most=MOST_VECTORS), f"from 1 to {MOST_VECTORS:,}"
    need("num_vectors", num_vectors, fits, wanted, "The default is 8.", of="density")
    need_one_of("matrix", matrix, get_args(Matrix))
    with setup.opened(model, data) as workspace:
        return density_of(
            workspace.products,
            ParameterSpace(workspace.surface),
            operator=matrix,
            num_vectors=num_vectors,
            steps=steps,
            seed=setup.seed,
        )


def _warm(start: Eigenvalues | None, space: ParameterSpace) -> Tensor | None:
    if start is None:
        return None
    if not isinstance(start, Eigenvalues):
        raise SpiritlevelError(
            "The 'start' argument must be an earlier result of eigenvalues, or None. Got "
            f"{type(start).__name__}."
        )
    if start.names != space.names or start.vectors.shape[1] != space.size:
        raise SpiritlevelError(
            "The 'start' argument must be a result for the same parameters. It has "
            f"{start.vectors.shape[1]} entries from {start.names[0]!r} on, needed are "
            f"{space.size} from {space.names[0]!r} on. Leave it out, or choose the same 'layers'."
        )
    return start.vectors


def _sizes(space: ParameterSpace) -> dict[str, int]:
    return {name: part.stop - part.start for name, part in space.slices.items()}


def _recorded(
    pairs: Eigenpairs, space: ParameterSpace, workspace: Workspace, settings: dict[str, Any]
) -> Eigenvalues:
    lost, remark = workspace.surface.lost.text(), workspace.product_remark
    return Eigenvalues(
        values=pairs.values.tolist(),
        residuals=pairs.residuals.tolist(),
        converged=[found and not lost for found in pairs.converged.tolist()],
        vectors=pairs.vectors,
        names=space.names,
        cost=workspace.cost,
        settings=settings | ({LOST: lost} if lost else {}) | ({BY: remark} if remark else {}),
    )


@measuring("start")
def preconditioned_eigenvalue(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    scale: Mapping[str, Tensor],
    shift: Mapping[str, float],
    *,
    by_batch: Collection[nn.Module] = (),
    start: Eigenvalues | None = None,
    residual_rtol: float | None = None,
    max_passes: int = 200,
) -> Eigenvalues:
    """The largest eigenvalue of S(H + D)S, H being the Hessian of the mean loss.

    Args:
        scale: the diagonal of S by parameter, in the parameters' shapes. Parameters that are not
            in it are left out of the matrix.
        shift: the diagonal of D, one number per parameter.
        by_batch: layers that normalize by the statistics of each batch of the data, not by the
            running ones; H is then of the mean loss of these batches, and none of them is divided.
        start: an earlier result; it is ignored if it is about other parameters.

    Of all parameters, whatever the setup's layers. The vectors are those of S(H + D)S.

    >>> net = nn.Linear(2, 1, bias=False).double()
    >>> x, y = torch.diag(torch.tensor([1.0, 2.0])).double(), torch.zeros(2, 1).double()
    >>> half = {"weight": torch.tensor([[1.0, 0.5]]).double()}   # H = diag(1, 4)
    >>> found = preconditioned_eigenvalue(Setup("mse"), net, (x, y), half, {"weight": 1.0})
    >>> round(found.values[0], 12)                               # of diag(1 + 1, (4 + 1)/4)
    2.0
    """
    with setup.whole().opened(model, data) as workspace:
        surface = workspace.surface
        space = ParameterSpace(surface, [name for name in surface.parameters if name in scale])
        check_room(space, 1, workspace.vector_memory)
        workspace.start()
        wide = torch.promote_types(space.dtype, torch.float32)
        parts = [scale[name].detach().reshape(-1).to(space.device, wide) for name in space.names]
        shifts = [torch.full_like(p, shift[n]) for n, p in zip(space.names, parts, strict=True)]
        same = start is not None and start.names == space.names
        products = workspace.products  # samples are looked at one by one, by running statistics
        if by_batch:
            products.chunk = workspace.num_samples
        with batch_statistics(by_batch):
            (pairs,) = eigenpairs_of(
                products,
                [space],
                operator="hessian",
                seed=setup.seed,
                max_products=max_passes,
                residual_rtol=residual_rtol,
                starts=[start.vectors if same and start is not None else None],
                scalings=[Scaling(torch.cat(parts), torch.cat(shifts))],
            )
    settings = workspace.settings() | {"sizes": _sizes(space)}
    return _recorded(pairs, space, workspace, settings)
