"""Find factors on cells of parameters that together keep the outputs, by linear algebra.

No layer has to be recognized: whatever the code does with a parameter, its rows, columns and the
whole of it can be multiplied. Which factors cancel follows from gradients: the logarithms of the
factors are a solution if the outputs do not change to first order, for every choice of the weights.
Factors multiply, so that what holds to first order everywhere also holds for large factors.
"""

from __future__ import annotations

import copy
import dataclasses

import torch
from torch import Tensor, nn

from .cells import ZERO, Cells, completed, echelon, filled, is_idle, null_space, rounded
from .jiggling import Jiggler
from .moves import NOBODY, Group, Role, Site
from .shifting import ShiftEquations, Shifts, in_blocks
from .tracing import Diverged, Run

MOST_CELLS = 800  # unknowns; the time grows with their cube
_FEWER_CELLS = 150  # of a large network, where each of them also takes a backward pass of a second
_LARGE = 100_000  # parameters
_SPARE = 24  # equations more than unknowns
_CHECKS = 24  # fresh equations that a solution must fulfil
_ROUNDS = 4  # of further equations until all solutions pass
_ROUND_OFF = 1e-9  # relative, of equations in float64
_AT_ONCE = 64  # equations for each choice of the weights


@dataclasses.dataclass(frozen=True)
class Families:
    """What linear algebra found: units that can be multiplied, and the outputs' own size."""

    cells: Cells
    vectors: Tensor  # logarithms of factors; outputs stay as they are
    growing: Group | None  # what multiplies the outputs by the factor
    shifts: Shifts  # what can be added to parameters


def find_families(model: nn.Module, run: Run, generator: torch.Generator) -> Families:
    """Look for all of them. Raises Diverged where the network has no gradients in float64."""
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if not types:
        raise Diverged("there are no parameters")
    if types != {torch.float64}:
        raise Diverged("it does not run in float64")
    jiggler = Jiggler(copy.deepcopy(model), run, generator)
    size = sum(parameter.numel() for parameter in jiggler.parameters.values())
    cells = Cells(jiggler.parameters, MOST_CELLS if size < _LARGE else _FEWER_CELLS)
    slices = in_blocks(jiggler.parameters, cells.num_unknowns)
    shifting = ShiftEquations(slices, generator)

    def equations(count: int) -> tuple[Tensor, Tensor]:
        at_once = max(1, min(_AT_ONCE, count // 6))
        parts = []
        for each in jiggler.draws(count, at_once):
            shifting.take(each)
            parts.append(cells.rows(each.sums, each.values, each.gradients))
        rows, sizes = (torch.cat(each).cpu() for each in zip(*parts, strict=True))
        return rows, sizes

    rows, sizes = equations(cells.num_unknowns + _SPARE)
    for _ in range(_ROUNDS):
        basis = null_space(rows, sizes, cells.constants(), _ROUND_OFF)
        fresh, fresh_sizes = equations(_CHECKS)
        left = (fresh @ basis.T).abs().amax() if len(basis) else torch.zeros(())
        if float(left) <= _ROUND_OFF * float(fresh_sizes.norm(dim=1).max()):
            break
        more, more_sizes = equations(len(rows) // 2)
        rows = torch.cat([rows, fresh, more])
        sizes = torch.cat([sizes, fresh_sizes, more_sizes])
    vectors = rounded(cells.centred(echelon(basis, cells.order())))
    grows = vectors[:, cells.outputs].abs() > ZERO  # at most one: it comes first
    alone = sparser(vectors[~grows], cells)
    growing = sparser(torch.cat([vectors[grows], alone]), cells)[: int(grows.sum())]
    idle = is_idle(sizes)
    alone, growing = (completed(whole(each), cells.axes, idle) for each in (alone, growing))
    grown = _group(growing[:1], cells) if len(growing) else None
    return Families(cells, alone, grown, shifting.solved().in_simple_numbers())


def sparser(vectors: Tensor, cells: Cells) -> Tensor:
    """The same solutions with fewer numbers other than 0: others are added, or sums of others."""
    vectors, improved = vectors.clone(), True
    while improved:
        improved = False
        for chosen in (*_alike(vectors, cells), *([index] for index in range(len(vectors)))):
            total = vectors[chosen].sum(dim=0)
            others = torch.ones(len(vectors), dtype=torch.bool)
            others[chosen] = False
            shares = vectors[others] / torch.where(total.abs() > ZERO, total, torch.nan)
            changed = rounded(cells.centred(vectors[others] - _usual(shares)[:, None] * total))
            fewer = filled(changed) < filled(vectors[others])
            if bool(fewer.any()):
                vectors[others.nonzero().flatten()[fewer]] = changed[fewer]
                improved = True
    return vectors


def whole(vectors: Tensor) -> Tensor:
    """The same vectors, each with a power of 1 where its most common power was."""
    vectors = vectors.clone()
    for index, vector in enumerate(vectors):
        powers = vector[vector.abs() > ZERO].round(decimals=6)
        vectors[index] /= powers.abs().mode().values * powers[0].sign()
    return rounded(vectors)


def _usual(rows: Tensor) -> Tensor:
    """The median of each row's numbers other than 0 and nan; 0 where there is none."""
    counts = rows.isfinite() & (rows.abs() > ZERO)
    usual = torch.where(counts, rows.round(decimals=6), torch.nan).nanmedian(dim=1).values
    return usual.nan_to_num(0.0)


def _alike(vectors: Tensor, cells: Cells) -> list[list[int]]:
    """Vectors that multiply cells of the same axes by the same powers."""
    by_kind: dict[tuple[object, ...], list[int]] = {}
    for index, vector in enumerate(vectors):
        by_kind.setdefault(_kind(vector, cells), []).append(index)
    return list(by_kind.values())


def _kind(vector: Tensor, cells: Cells) -> tuple[object, ...]:
    return tuple(
        (axis.name, axis.dim, tuple(_powers(vector[axis.place])))
        for axis in cells.axes
        if bool((vector[axis.place].abs() > ZERO).any())
    )


def _powers(values: Tensor) -> list[float]:
    return sorted({round(value, 6) for value in values.tolist() if abs(value) > ZERO})


def groups_of(families: Families) -> list[Group]:
    """One group for all alike units."""
    groups = []
    for alike in _alike(families.vectors, families.cells):
        chosen = families.vectors[alike]
        if bool(((chosen.abs() > ZERO).sum(dim=0) > 1).any()):  # they share cells
            groups += [_group(vector[None], families.cells) for vector in chosen]
        else:
            groups.append(_group(chosen, families.cells))
    return groups


def _group(vectors: Tensor, cells: Cells) -> Group:
    """The units whose cells do not overlap, each a row of powers."""
    sites = []
    for axis in cells.axes:
        powers = vectors[:, axis.place]
        for power in _powers(powers.flatten()):
            plays = (powers - power).abs() <= ZERO
            unit = torch.where(plays.any(dim=0), plays.long().argmax(dim=0), NOBODY)
            owner, _, tensor = axis.name.rpartition(".")
            units = tuple(axis.entries(unit).tolist())
            role = Role.TIMES if power > 0 else Role.OVER
            sites.append(Site(owner, tensor, axis.dim, units, role, power=abs(power)))
    return Group(len(vectors), tuple(sorted(sites, key=lambda site: list(Role).index(site.role))))
