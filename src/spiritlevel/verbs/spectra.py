"""Eigenvalues and spectral density of the Hessian or the GGN, whole or of chosen layers.

Also the largest eigenvalue of the Hessian seen through a preconditioner, as an optimizer sees it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from ..engine.weight_space.density import SpectralDensity, picture
from ..engine.weight_space.eigenvalues import (
    VALUE_RTOL,
    Scaling,
    check_room,
    density_of,
    eigenpairs_of,
)
from ..engine.weight_space.lanczos import Eigenpairs, Which
from ..engine.weight_space.parameter_space import ParameterSpace
from ..engine.weight_space.ritz_errors import CONFIDENCE
from ..engine.workspace import Workspace
from ..ground.errors import SpiritlevelError
from ..ground.need import is_number, is_whole, need, need_one_of, or_none, whole
from ..measures.setup import OfProducts, Setup
from ..measures.verb import measuring, verb
from ..model.arguments import CHECKED_LATER, ArgumentCheck, is_text
from ..model.running_statistics import batch_statistics
from ..model.surroundings import call_settings
from ..records.content import (
    ERROR,
    VALUE,
    Cards,
    Column,
    Notes,
    Part,
    Table,
    Text,
    Uncertain,
    number,
)
from ..records.measurements import Cost
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
BY_RESIDUAL = "the residual r, or r²/gap where that is less, with the gap to the next value found"
BY_START = (
    "± of the outermost value: with {:.3g} % confidence over random starts of the iteration, the "
    "spectrum ends within it. ± of the others:"
)
LOST = "lost_digits"  # a setting: why no eigenvalue counts as found
BY = "products_by"  # a setting: on how products were formed, where that is not exact
WHOLE = ArgumentCheck(is_whole, "a whole number below 2**63")
MATRIX = ArgumentCheck(is_text, "'hessian' or 'ggn'")
MATRICES = {"hessian": "Hessian", "ggn": "Gauss–Newton matrix"}
CARDS = ("curvature.lambda_max", "curvature.lambda_min", "curvature.trace")
MOST_VECTORS = 1 << 20  # of a density: more would never end


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Eigenvalues(Shown, Plain):
    """Some eigenvalues with their vectors; an eigenvalue lies within `residuals` of each value.

    `errors` says how far each value may be off: the residual r, or r²/gap with the gap to the next
    value found. For the largest (or smallest) of all it is no less than how far an eigenvalue may
    lie beyond it, at the confidence in `settings` over random starts of the iteration. After a
    `start` from an earlier result no such confidence is known, and residuals alone count.
    """

    CALLED: ClassVar = "the eigenvalues"
    HEADING: ClassVar = "Extreme eigenvalues"

    values: list[float]
    residuals: list[float]
    converged: list[bool]
    # shape: (values, parameters), orthonormal rows
    vectors: Tensor = dataclasses.field(metadata=UNSAVED)
    # of the parameters, in the order of the vectors
    names: tuple[str, ...] = dataclasses.field(metadata=UNSAVED)
    cost: Cost
    settings: dict[str, Any]
    errors: list[float] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.errors:  # earlier versions wrote none
            object.__setattr__(self, "errors", list(self.residuals))

    def __repr__(self) -> str:
        values = ", ".join(f"{number(value)}" for value in self.with_errors)
        return f"Eigenvalues({values}; {self.settings['num_samples']} samples)"

    def describe(self) -> list[Part]:
        """The eigenvalues, the largest first, and what was counted."""
        columns = [
            Column("eigenvalue", digits=VALUE),
            Column("±", "how far the value may be off", digits=ERROR),
            Column("residual", digits=ERROR),
            Column("converged", kind="mark"),
        ]
        lists = (self.with_errors, self.errors, self.residuals, self.converged)
        pairs = sorted(zip(*lists, strict=True), reverse=True)
        count = int(self.settings["num_samples"])
        table = Table(columns, pairs, id="eigenvalue-table", title="Largest first")
        lost = [str(self.settings[name]) for name in (BY, LOST) if name in self.settings]
        first = self.settings.get("confidence")
        start = "±:" if first is None else BY_START.format(100 * float(first))
        rests = f"{start} {BY_RESIDUAL}."
        said = [rests] if all(self.converged) else [rests, UNCONVERGED]
        notes = Notes(self.cost.passes(count), count, lost)
        return [Text([self._answer()]), table, notes, Text(said)]

    @property
    def with_errors(self) -> list[Uncertain]:
        """The values, for showing them with the digits that their errors allow."""
        return [*map(Uncertain, self.values, self.errors)]

    def _answer(self) -> str:
        named, which = (self.settings.get(key) for key in ("matrix", "which"))
        ends = {"largest": max(self.with_errors), "smallest": min(self.with_errors)}
        said = " and ".join(
            f"the {end} eigenvalue is {number(value, VALUE)}"
            for end, value in ends.items()
            if which in (None, end, "both")
        )
        sure = "" if all(self.converged) else ", not all of them converged"
        return f"Of the {MATRICES.get(str(named), 'Hessian')}, {said}{sure}."

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Eigenvalues:
        """Read what `to_dict` gave; the vectors are not in it."""
        unsaved = {"vectors": torch.empty(0, 0), "names": ()}
        pairs = read_fields(cls, data, cls.CALLED, **unsaved)
        read_settings(pairs.settings, "the eigenvalues' settings")
        lists = (pairs.values, pairs.residuals, pairs.converged, pairs.errors)
        if len({len(each) for each in lists}) > 1:
            raise Misread("the eigenvalues' lists differ in length")
        return pairs

    def vector(self, index: int = 0) -> dict[str, Tensor]:
        """One eigenvector by parameter name, each part flattened."""
        sizes = [self.settings["sizes"][name] for name in self.names]
        return dict(zip(self.names, self.vectors[index].split(sizes), strict=True))


@dataclasses.dataclass(frozen=True, repr=False)
class Spectrum(Shown, Saved):
    """What `spiritlevel spectrum` found: eigenvalues, a density, or both."""

    CALLED: ClassVar = "the spectrum"
    HEADING: ClassVar = "Spectrum of a network"
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
        """The eigenvalues, then the means over all of them, in one picture."""
        found = [each.describe() for each in (self.eigenvalues, self.density) if each is not None]
        answers = [
            said for (first, *_) in found if isinstance(first, Text) for said in first.paragraphs
        ]
        below = [part for (_, *parts) in found for part in parts]
        pairs = self.eigenvalues
        marks, converged = ([], []) if pairs is None else (pairs.with_errors, pairs.converged)
        return [
            Text([" ".join(answers)]),
            picture(self.density, marks, converged),
            *below,
            Cards(CARDS),
        ]

    @property
    def settings(self) -> dict[str, Any]:
        """Those of the eigenvalues; a density has none."""
        return {} if self.eigenvalues is None else self.eigenvalues.settings


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
    rtol: float = VALUE_RTOL,
    residual_rtol: float | None = None,
    max_passes: int = 200,
    **shared: Unpack[OfProducts],
) -> Eigenvalues:
    """Extreme eigenvalues to a tolerance, by Lanczos with full reorthogonalization.

    Args:
        num: how many, at each end that `which` names.
        which: "largest", "smallest" (both with their sign) or "both".
        matrix: "hessian", or "ggn" for its positive semidefinite part.
        layers: module paths or patterns: the eigenvalues of that block; "head" for the head.
        start: an earlier result on the same parameters, to save products as training goes on.
        rtol: the error at which an eigenvalue counts as found, relative to it: 1 %. What the error
            of a value is, see `Eigenvalues`. In float32 no less than about 1e-4 can be met.
        residual_rtol: a residual that is to be met besides, relative to the eigenvalue: for
            vectors, whose error is about as large as the residual.
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
        (pairs,) = eigenpairs_of(
            workspace.products,
            [space],
            operator=matrix,
            num=num,
            which=which,
            seed=setup.seed,
            max_products=max_passes,
            rtol=rtol,
            residual_rtol=residual_rtol,
            starts=[_warm(start, space)],
        )
    settings = {key: workspace.settings()[key] for key in KEPT} | call_settings()
    settings |= {"matrix": matrix, "sizes": _sizes(space), "which": which, "max_passes": max_passes}
    settings |= {"rtol": rtol} | ({"confidence": CONFIDENCE} if start is None else {})
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
        errors=pairs.errors.tolist(),
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
    rtol: float = VALUE_RTOL,
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
                rtol=rtol,
                starts=[start.vectors if same and start is not None else None],
                scalings=[Scaling(torch.cat(parts), torch.cat(shifts))],
            )
    settings = workspace.settings() | {"sizes": _sizes(space)}
    return _recorded(pairs, space, workspace, settings)
