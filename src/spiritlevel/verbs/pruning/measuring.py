"""`pruning`: what deleting each input neuron or channel of each weight does to the loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...engine.diagonal import ggn_diagonal
from ...engine.directions.column_pass import run_column_pass
from ...engine.directions.families import NeuronDeletions
from ...ground.need import is_number, is_whole, need, or_none, whole
from ...measures.setup import OnLayersFast, Setup
from ...measures.verb import verb
from ...model.arguments import ArgumentCheck, is_flag, is_text
from ...model.layers.embedding import EmbeddingRule
from ...model.weight_matrices import WeightMatrix
from ..changes import WeightChanges
from .records import SHARES, Pruning
from .selection import Rule, check_rule, check_share

if TYPE_CHECKING:
    from typing_extensions import Unpack

MOST_COLUMNS = 1024  # that are swept, each by a backward; more outputs are probed
# Units up to which the terms of every two are kept. They are a product of matrices for each column,
# 128 MiB; probes are few, so there may be more: 512 MiB for each of four groups of probes.
MOST_PAIRS, MOST_PROBED_PAIRS = 4096, 8192
MIN_PROBES = 4  # half of them choose, and the spread of the others is the error


@verb(
    share=ArgumentCheck(or_none(is_number), "a number between 0 and 1, or None"),
    by=ArgumentCheck(or_none(is_text), "the name of a rule, or None"),
    fisher=ArgumentCheck(is_flag, "True or False"),
    check=ArgumentCheck(is_flag, "True or False"),
    num_probes=ArgumentCheck(is_whole, "a whole number below 2**63, such as 32"),
)
def pruning(
    setup: Setup,
    model: nn.Module,
    data: Iterable[Any],
    *,
    share: float | None = None,
    by: Rule | None = None,
    fisher: bool = False,
    check: bool = True,
    num_probes: int = 8,
    **shared: Unpack[OnLayersFast],
) -> Pruning:
    """What deleting a neuron or a channel does to the loss. The model is left exactly as it was.

    A unit is an input of a weight matrix: a column of a linear layer, an input channel of a
    convolution. Deleting it takes away −gᵀw_j + ½ρ(j), and units that go together also their terms
    w_iᵀHw_j. All of that comes from one sweep. The curvature is that of the GGN, which is the
    Hessian's own within a layer where the outputs are piecewise linear in it. With more than 1,024
    outputs, as in a language model, it is estimated with random probes, and has an error.

    Args:
        share: how much of the weights to delete; `chosen` of the result says which units.
        by: how they are chosen; see `Pruning.choose`.
        fisher: compute the diagonal of the Fisher matrix too, to compare with.
        check: run the network without the chosen units, and along curves of shares.
        num_probes: random signs on the outputs of every sample, where these are many; see docs.
        arithmetic: "tf32" and "bf16" are faster on a GPU, for three and two digits.
        layers: module paths or patterns. Leave out the first layer to keep all input pixels.

    The other arguments are those of `measure`.
    """
    if share is not None:
        check_share(share)
    if by is not None:
        check_rule(by, has_fisher=fisher, has_pairs=True)
    wanted, enough = "at least 4, or errors would be unknown", whole(least=MIN_PROBES)
    need("num_probes", num_probes, enough, wanted, "The default is 8.", of="pruning")
    with setup.opened(model, data) as workspace:
        changes = WeightChanges(workspace, "inputs can be deleted", _reason_against)
        found = _measured(changes, num_probes, fisher=fisher)
        rules: list[Rule] = [found.default_rule, "magnitude", "random"]
        found = dataclasses.replace(
            found,
            chosen=None if share is None else found.choose(share, by=by, seed=setup.seed),
            curves={
                rule: [found.choose(each, by=rule, seed=setup.seed) for each in SHARES]
                for rule in rules
            },
        )
        return changes.finished(found, check=check)


def _reason_against(matrix: WeightMatrix) -> str | None:
    """Why a matrix has no neurons to delete: it is the table of an embedding."""
    is_table = isinstance(matrix.rule, EmbeddingRule)
    return "its inputs are tokens, not neurons" if is_table else None


def _measured(changes: WeightChanges, num_probes: int, *, fisher: bool) -> Pruning:
    """All units of all weights, without choices."""
    workspace, matrices = changes.workspace, changes.matrices
    family, num_columns = NeuronDeletions(matrices), workspace.plan.num_columns
    probes = num_probes if num_columns > MOST_COLUMNS else 0
    most = MOST_PROBED_PAIRS if probes else MOST_PAIRS
    found = run_column_pass(
        workspace, family, pairs=family.size <= most, covariance=False, num_probes=probes
    )
    drawn = f"{probes} output probes for {num_columns} columns" if probes else ""
    arithmetic = workspace.surface.numbers.arithmetic
    settings = {"num_probes": probes} | ({} if arithmetic == "full" else {"arithmetic": arithmetic})
    rounded = "" if arithmetic == "full" else f"computed in {arithmetic}"
    text = {
        name: "; ".join(filter(None, [drawn, _bend_text(found.bends.get(name)), rounded]))
        for name in matrices
    }
    owner = {name: _owners(matrix) for name, matrix in matrices.items()}
    squares = {n: weight.double().cpu().square() for n, weight in changes.weights.items()}
    diagonal = ggn_diagonal(workspace, 8).entries if fisher else {}
    return Pruning(
        first=family.by_name(found.first),
        second=family.by_name(found.second),
        stderr=family.by_name(found.probe_stderr),
        data_stderr=family.by_name(found.data_stderr),
        magnitude={
            name: _by_unit(squares[name], owner[name], family.count(name)).sqrt()
            for name in matrices
        },
        fisher={
            name: _by_unit(
                diagonal[name].values.cpu() * squares[name], owner[name], family.count(name)
            )
            for name in (matrices if fisher else ())
        },
        owner=owner,
        exact={name: not why for name, why in text.items()},
        text={name: why for name, why in text.items() if why},
        gram=found.gram,
        groups=found.groups,
        **changes.facts(**settings),
    )


def _bend_text(through: str | None) -> str:
    """Why the curvature is not the Hessian's; empty if it is."""
    if through is None:
        return ""
    return f"of the GGN, not the Hessian: the outputs bend along it (through {through})"


def _owners(matrix: WeightMatrix) -> Tensor:
    """The unit of every entry, in the shape of the parameter."""
    shape = matrix.parameter.shape
    numbers = matrix.of(torch.arange(shape.numel()).reshape(shape))  # (groups, rows, columns)
    groups, rows, columns = numbers.shape
    units = torch.arange(columns) % matrix.neurons
    units = units + matrix.neurons * torch.arange(groups)[:, None]
    owner = torch.empty(shape.numel(), dtype=torch.int32)
    owner[numbers.flatten()] = units[:, None].expand(groups, rows, columns).flatten().int()
    return owner.reshape(shape)


def _by_unit(values: Tensor, owner: Tensor, count: int) -> Tensor:
    """Sums over the entries of every unit."""
    sums = torch.zeros(count, dtype=torch.float64)
    return sums.index_add_(0, owner.flatten().long(), values.double().flatten())
