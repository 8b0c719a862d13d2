"""The largest eigenvalue of a Hessian seen through a preconditioner, as an optimizer sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.weight_space.eigenvalues import Scaling, eigenpairs_of
from ..engine.weight_space.lanczos_room import check_room
from ..engine.weight_space.parameter_space import ParameterSpace
from ..measures.setup import Setup
from ..measures.verb import measuring
from .spectra import Eigenvalues


@measuring("start")
def preconditioned_eigenvalue(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    scale: Mapping[str, Tensor],
    shift: Mapping[str, float],
    *,
    start: Eigenvalues | None = None,
    residual_rtol: float | None = None,
    max_passes: int = 200,
) -> Eigenvalues:
    """The largest eigenvalue of S(H + D)S, H being the Hessian of the mean loss.

    Args:
        scale: the diagonal of S by parameter, in the parameters' shapes. Parameters that are not
            in it are left out of the matrix.
        shift: the diagonal of D, one number per parameter.
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
        (pairs,) = eigenpairs_of(
            workspace.products,
            [space],
            operator="hessian",
            seed=setup.seed,
            max_products=max_passes,
            residual_rtol=residual_rtol,
            starts=[start.vectors if same and start is not None else None],
            scalings=[Scaling(torch.cat(parts), torch.cat(shifts))],
        )
    sizes = {name: part.stop - part.start for name, part in space.slices.items()}
    return Eigenvalues(
        values=pairs.values.tolist(),
        residuals=pairs.residuals.tolist(),
        converged=pairs.converged.tolist(),
        vectors=pairs.vectors,
        names=space.names,
        cost=workspace.cost,
        settings=workspace.settings() | {"sizes": sizes},
    )
