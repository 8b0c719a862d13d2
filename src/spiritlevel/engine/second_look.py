"""A second look at what is called exact, which shares next to nothing with the first.

Two samples of the data are kept with the values that the sweep gave them. Here each of them runs
alone, without hooks, rules or layouts: plain autograd gives its gradients, and from these follow
the same values. Then the loss itself is asked: along a random direction of a parameter, the
difference of its gradients must be what the Gauss–Newton matrix says. Where they disagree, the word
"exact" is taken back.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..math.curvature import scaled_to_one
from ..model.batches import BatchLocation
from ..model.elementwise import elementwise_bends
from ..model.losses.callable_loss import NO_SECOND_DERIVATIVE
from ..model.surface import Surface
from ..records.measurements import Cost
from .sweep.backward import Sweep
from .sweep.elements import SiteColumns, columns_of_sites
from .sweep.pulling import Root, Scaled
from .sweep.witnesses import Witness
from .weight_space import trusted_derivatives

DIRECTIONS = 1  # parameters of each along which differences are taken
AT_ONCE = 1024  # numbers of columns that are read together
# The same sums in another order, and a kink that rounding moves to the other side of 0. Rows of
# another sample, a missed use or a wrong mean are off by a factor.
SAME = {torch.float64: 1e-6, torch.float32: 2e-2}


def doubts_about(sweep: Sweep, seed: int, chunk: int) -> dict[str, str]:
    """Parameters whose exact values a second look does not confirm, each with what it says.

    What was confirmed in an earlier call is not looked at again, if the model did the same in it.
    No more samples run together than in the sweep, whose chunk is given.
    """
    surface = sweep.surface
    at_once = trusted_derivatives.samples_at_once(surface, chunk)
    how = sweep.exact, sweep.kinds, sweep.elements is not None
    key = ("confirmed", surface.dtype, *how, frozenset(sweep.seen))
    # a process without samples has nothing to confirm, and must not look where others do not
    if all(surface.processes.gather(key in surface.findings or not sweep.witnesses.kept)):
        return {}
    certified = [name for name in surface.parameters if name not in sweep.uncertified]
    doubts: dict[str, str] = {}

    def by_differences(witness: Witness, seed: int) -> dict[str, str]:
        trusted_derivatives.check_gradient(
            surface, witness.neighbours, witness.where, seed, at_once
        )
        if not sweep.exact or not certified or surface.dtype != torch.float64:
            return {}  # nothing is exact, or float32 is too coarse for differences of gradients
        held = [name for name in certified if name in surface.parameters]
        names = random.Random(seed).sample(held, min(DIRECTIONS, len(held)))
        # all that bends is behind the first of those that bend the outputs
        names += [name for name in held if name in sweep.bends and name not in names][:1]
        return _quadratic_forms(sweep, witness, names, seed)

    with surface.processes.together():
        for number, witness in enumerate(sweep.witnesses.kept):
            look = functools.partial(by_differences, witness, seed + number)
            doubts |= trusted_derivatives.beside_the_parameters(surface, seed + number, look)
            if sweep.exact:
                doubts |= _alone(sweep, witness)
    for others in surface.processes.gather(doubts):
        doubts = others | doubts
    if not doubts and sweep.witnesses.kept:
        surface.findings.put(key, True)
    return doubts


def _columns(sweep: Sweep, outputs: Tensor, targets: Tensor) -> Iterator[Scaled]:
    """The factor columns of one sample at its outputs."""
    curvature = sweep.surface.loss.curvature(outputs.detach().double(), targets)
    for column, sign in curvature.columns():
        unit, size = scaled_to_one(column)
        unit = unit.to(outputs.dtype).reshape(outputs.shape)
        yield unit, sign * size.squeeze(1).square()


def _sites(sweep: Sweep, outputs: Tensor, targets: Tensor) -> list[SiteColumns]:
    """The columns of elementwise functions in one sample."""
    if sweep.elements is None:
        return []
    sites = elementwise_bends(outputs, sweep.names).sites
    found = columns_of_sites(sweep.surface, outputs, targets, sites)
    return [columns for columns in found if columns is not None]


def _alone(sweep: Sweep, witness: Witness) -> dict[str, str]:
    """Trace, κ and ρ of the sample by themselves, against those from within its chunk."""
    surface = sweep.surface
    with torch.enable_grad():
        outputs, targets = surface.outputs(witness.sample, where=witness.where)
    sums: dict[tuple[str, str], float] = {}
    sizes: dict[tuple[str, str], float] = {}
    for terms in _terms(sweep, witness, outputs, targets):
        read = torch.stack([value for _, value in terms]).tolist() if terms else []
        for (key, _), value in zip(terms, read, strict=True):
            sums[key] = sums.get(key, 0.0) + value
            sizes[key] = sizes.get(key, 0.0) + abs(value)
    doubts = {}
    tolerance, rounding = SAME.get(surface.dtype, 0.1), 100 * torch.finfo(surface.dtype).eps
    for kind, rows in witness.rows.items():
        # gradients that cancel to 0 leave squares of round-off
        floor = rounding**2 * sum(map(abs, rows.values()))
        for row, value in rows.items():
            alone, size = sums.get((kind, row), 0.0), sizes.get((kind, row), 0.0)
            if abs(alone - value) > tolerance * max(size, abs(value)) + floor:
                doubts[row if kind == "trace" else surface.layers.weight_of(row)] = (
                    f"a sample of batch {witness.where.batch} has {value:.4g} within its batch and "
                    f"{alone:.4g} alone"
                )
    return doubts


_Term = tuple[tuple[str, str], Tensor]  # kind of row and row, and what a column adds to it


def _terms(
    sweep: Sweep, witness: Witness, outputs: Tensor, targets: Tensor
) -> Iterator[list[_Term]]:
    """What columns add, many at a time, so that a GPU need not wait for each.

    All of the outputs, and of the elements those that the sweep has for this purpose.
    """
    terms: list[_Term] = []
    roots: list[tuple[Root, Iterable[Scaled]]] = [(outputs, _columns(sweep, outputs, targets))]
    for site in _sites(sweep, outputs, targets):
        roots.append((site.site.edge, site.columns(checked=True)))
    for root, column in ((root, column) for root, columns in roots for column in columns):
        terms += _terms_of_column(sweep, witness, root, column)
        if len(terms) >= AT_ONCE:
            yield terms
            terms = []
    yield terms


def _terms_of_column(sweep: Sweep, witness: Witness, root: Root, column: Scaled) -> list[_Term]:
    """What one column adds; its gradients are gone before the next column's come."""
    surface, (unit, factor), terms = sweep.surface, column, []
    pulled = surface.pull(root, unit, list(surface.parameters.values()), num_samples=1)
    gradients = {n: g for n, g in zip(surface.parameters, pulled, strict=True) if g is not None}
    norms = torch._foreach_norm(list(gradients.values())) if gradients else ()
    for (name, gradient), norm in zip(gradients.items(), norms, strict=True):
        squares = {("trace", name): norm.double().square()}
        squares |= _of_weight(sweep, name, gradient, witness)
        terms += [(key, factor.squeeze() * square) for key, square in squares.items()]
    return terms


def _of_weight(
    sweep: Sweep, name: str, gradient: Tensor, witness: Witness
) -> dict[tuple[str, str], Tensor]:
    """‖WᵀG‖² and Σ_j (w_j·G_j)² for the weight of a layer, where they were measured."""
    row = sweep.surface.layers.row_of(name)
    squares: dict[tuple[str, str], Tensor] = {}
    measured = {"kappa", "rho"} & witness.rows.keys()
    if measured and row in sweep.measured:
        matrix = sweep.surface.matrices[row]
        W = matrix.of(matrix.parameter.detach()).double()
        G = matrix.of(gradient).double()
        if "kappa" in witness.rows:
            squares["kappa", row] = (W.mT @ G).square().sum()
        if "rho" in witness.rows:
            along = (W * G).sum(dim=1)  # (groups, columns)
            by_neuron = along.reshape(len(along), -1, matrix.neurons).sum(dim=1)
            squares["rho", row] = by_neuron.square().sum()
    return squares


def _quadratic_forms(sweep: Sweep, witness: Witness, names: list[str], seed: int) -> dict[str, str]:
    """vᵀHv of single parameters from differences of the loss's gradient, against the columns'."""
    surface = sweep.surface
    generator = torch.Generator(surface.device).manual_seed(seed)
    sample = surface.received(witness.sample)
    with torch.enable_grad():
        outputs, targets = surface.outputs(sample, where=witness.where)
    parameters = [surface.parameters[name] for name in names]
    fixed = trusted_derivatives.padding_rows(surface)
    along = [
        trusted_derivatives.direction(surface.parameters[name].detach(), generator, fixed.get(name))
        for name in names
    ]
    forms = [0.0] * len(names)
    for unit, factor in _columns(sweep, outputs, targets):
        for i, gradient in enumerate(surface.pull(outputs, unit, parameters)):
            if gradient is not None:
                forms[i] += float(factor) * float((gradient * along[i]).sum()) ** 2
    for columns in _sites(sweep, outputs, targets):
        for i, (parameter, v) in enumerate(zip(parameters, along, strict=True)):
            forms[i] += _form_of_site(surface, columns, parameter, v)
    doubts = {}
    added = " and the bends of elementwise functions say" if sweep.elements else " says"
    says = f"the Gauss–Newton matrix{added}"
    # what rounding alone can make of a form: below it outputs that do not move at all say 0
    size = sum(map(abs, witness.rows.get("trace", {}).values()))
    least = (100 * torch.finfo(outputs.dtype).eps) ** 2 * size
    for name, v, form in zip(names, along, forms, strict=True):
        slopes = _slopes(surface, sample, witness.where, name, v)
        if (truth := trusted_derivatives.stable_difference(slopes)) is None:
            continue  # a kink is too close, or the differences drown in rounding
        floor = least * float(v.double().square().sum())
        if abs(truth - form) > 1e-2 * max(abs(truth), abs(form)) + floor:
            doubts[name] = (
                f"along a random direction the gradient changes by {truth:.4g}, and {says} "
                f"{form:.4g}"
            )
    return doubts


def _form_of_site(surface: Surface, columns: SiteColumns, parameter: Tensor, v: Tensor) -> float:
    """Σ over the elements of c × (how fast each moves along v)².

    The gradient is linear in what is pulled, so its derivative tells how fast all of them move.
    """
    site = columns.site
    u = torch.zeros(site.shape, dtype=site.dtype, device=v.device, requires_grad=True)
    surface.cost += Cost(products=1)
    try:
        with torch.enable_grad():
            edges: list[Any] = [site.edge]
            (pulled,) = torch.autograd.grad(
                edges, [parameter], [u], create_graph=True, allow_unused=True
            )
            if pulled is None:
                return 0.0
            (moves,) = torch.autograd.grad((pulled * v).sum(), u)
        return float((columns.weights * moves.double().take(columns.places).square()).sum())
    except RuntimeError as error:  # an embedding bag has no such derivative
        if not any(text in str(error) for text in NO_SECOND_DERIVATIVE):
            raise
    total = 0.0
    for unit, factor in (each for part in (True, False) for each in columns.columns(checked=part)):
        (gradient,) = surface.pull(site.edge, unit, [parameter], num_samples=1)
        total += 0.0 if gradient is None else float(factor) * float((gradient * v).sum()) ** 2
    return total


def _slopes(
    surface: Surface, sample: Any, where: BatchLocation, name: str, along: Tensor
) -> Iterator[trusted_derivatives.Slopes]:
    """The slope of the loss along v a step ahead and a step behind, for several steps."""
    start = surface.parameters[name].detach()

    def slope(step: float) -> tuple[float, Tensor]:
        moved = (start + step * along).requires_grad_()
        with surface.substituting({name: moved}):
            with torch.enable_grad():
                outputs, targets = surface.outputs(sample, where=where)
                loss = surface.loss.values(outputs.double(), targets).sum()
            (gradient,) = torch.autograd.grad(loss, moved, allow_unused=True)
        surface.cost += Cost(backwards=1)
        value = 0.0 if gradient is None else float((gradient * along).sum())
        return value, outputs.detach()

    eps = trusted_derivatives.precision(surface)
    for step in trusted_derivatives.STEPS:
        (ahead, further), (behind, back) = slope(step), slope(-step)
        moved_by = float((further - back).abs().sum()) / (2 * step)
        unit = 100 * eps * (1.0 + float(back.abs().max()))
        yield trusted_derivatives.Slopes(step, ahead, behind, rounding=unit * moved_by)
