"""`pruning`: what deleting each input neuron or channel of each weight does to the loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...api import Loss
from ...engine.data_pass import Needs
from ...engine.diagonal import ggn_diagonal
from ...engine.directions.column_pass import run_column_pass
from ...engine.directions.families import NeuronDeletions
from ...engine.directions.usable import reasons_against
from ...engine.workspace import Workspace
from ...errors import SpiritlevelError, brief
from ...measures.opening import open_workspace
from ...model.batches import Forward
from ...model.calls import measuring
from ...model.layers.embedding import EmbeddingRule
from ...model.losses import CrossEntropy
from ...model.weight_matrices import WeightMatrix
from ...records import Progress
from .records import Deletion, Pruning
from .selection import Rule, check_rule, check_share

MOST_COLUMNS = 1024  # that are swept, each by a backward; more outputs are probed
# Units up to which the terms of every two are kept. They are a product of matrices for each column,
# 128 MiB; probes are few, so there may be more: 512 MiB for each of four groups of probes.
MOST_PAIRS, MOST_PROBED_PAIRS = 4096, 8192
MIN_PROBES = 4  # half of them choose, and the spread of the others is the error
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)  # of the curves


@measuring
def pruning(
    model: nn.Module,
    data: Iterable[Any],
    *,
    share: float | None = None,
    by: Rule | None = None,
    fisher: bool = False,
    check: bool = True,
    num_probes: int = 8,
    layers: str | Sequence[str] | None = None,
    head: str | None = None,
    loss: Loss = "cross_entropy",
    forward: Forward | None = None,
    memory: int | None = None,
    seed: int = 0,
    distributed: bool = True,
    progress: Progress | None = None,
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
        layers: module paths or patterns. Leave out the first layer to keep all input pixels.

    The other arguments are those of `measure`.
    """
    if share is not None:
        check_share(share)
    if by is not None:
        check_rule(by, {"joint", *(["fisher"] if fisher else [])})
    if num_probes < MIN_PROBES:
        raise SpiritlevelError(
            "The 'num_probes' argument of pruning must be at least 4, or errors would be "
            f"unknown. Got {brief(num_probes)}. The default is 8."
        )
    workspace = open_workspace(
        model,
        data,
        layers=layers,
        head=head,
        loss=loss,
        forward=forward,
        memory=memory,
        seed=seed,
        distributed=distributed,
        progress=progress,
    )
    workspace.want(Needs(sweep=True))
    with workspace.surface.preserved():
        subject = _Subject(workspace)
        found = subject.measure(num_probes, fisher=fisher)
        if share is not None:
            found = dataclasses.replace(found, chosen=found.choose(share, by=by, seed=seed))
        rules: list[Rule] = [found.default_rule, "magnitude", "random"]
        curves: dict[str, list[Deletion]] = {
            rule: [found.choose(each, by=rule, seed=seed) for each in SHARES] for rule in rules
        }
        found = dataclasses.replace(found, curves=curves)
        if check:
            found = subject.checked(found)
        return dataclasses.replace(found, cost=workspace.cost)


class _Subject:
    """The weights of a network whose inputs may be deleted."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        matrices = {matrix.name: matrix for matrix in workspace.surface.matrices.values()}
        self.left_out = reasons_against(workspace, matrices)
        for name, matrix in matrices.items():
            if isinstance(matrix.rule, EmbeddingRule):
                self.left_out.setdefault(name, "its inputs are tokens, not neurons")
        self.matrices = {n: m for n, m in matrices.items() if n not in self.left_out}
        if not self.matrices:
            first = next(iter(self.left_out.items()), ("", "it has no weight matrix"))
            raise SpiritlevelError(
                "The model must have weight matrices whose inputs can be deleted. Got none: "
                f"{first[0]!r}: {first[1]}."
            )

    def measure(self, num_probes: int, *, fisher: bool) -> Pruning:
        """All units of all weights, without choices."""
        workspace = self.workspace
        family = NeuronDeletions(self.matrices)
        size = sum(family.count(name) for name in family.names)
        num_columns = workspace.plan.num_columns
        probes = num_probes if num_columns > MOST_COLUMNS else 0
        most = MOST_PROBED_PAIRS if probes else MOST_PAIRS
        swept = run_column_pass(
            workspace, family, pairs=size <= most, covariance=False, num_probes=probes
        )
        found, places = swept, family.spans
        owner = {name: _owners(matrix) for name, matrix in self.matrices.items()}
        weights = {name: m.parameter.detach().double().cpu() for name, m in self.matrices.items()}
        squares = {
            name: _by_unit(weights[name].square(), owner[name], family.count(name))
            for name in self.matrices
        }
        of_fisher: dict[str, Tensor] = {}
        if fisher:
            entries = ggn_diagonal(workspace, 8).entries
            of_fisher = {
                name: _by_unit(
                    entries[name].values.cpu() * weights[name].square(),
                    owner[name],
                    family.count(name),
                )
                for name in self.matrices
            }
        loss, error = self._losses({})
        data_stderr = found.data_stderr
        drawn = f"{probes} output probes for {num_columns} columns" if probes else ""
        return Pruning(
            first={name: found.first[part] for name, part in places.items()},
            second={name: found.second[part] for name, part in places.items()},
            stderr={name: found.probe_stderr[part] for name, part in places.items()},
            data_stderr={name: data_stderr[part] for name, part in places.items()},
            magnitude={name: each.sqrt() for name, each in squares.items()},
            fisher=of_fisher,
            exact={name: not drawn and name not in swept.bends for name in self.matrices},
            text={
                name: "; ".join(filter(None, [drawn, _bend_text(swept.bends.get(name))]))
                for name in self.matrices
                if drawn or name in swept.bends
            },
            owner=owner,
            left_out=self.left_out,
            loss=loss,
            error=error,
            cost=workspace.cost,
            settings=workspace.settings() | {"num_probes": probes},
            gram=found.gram,
            groups=found.groups,
        )

    def checked(self, found: Pruning) -> Pruning:
        """The same with the loss of the network without the chosen units."""

        def noted(deletion: Deletion) -> Deletion:
            masks = found.masks(deletion)
            point = {
                name: matrix.parameter.detach() * masks[name].to(matrix.parameter)
                for name, matrix in self.matrices.items()
            }
            loss, error = self._losses(point)
            return dataclasses.replace(
                deletion, measured_rise=loss - found.loss, measured_error=error
            )

        return dataclasses.replace(
            found,
            chosen=None if found.chosen is None else noted(found.chosen),
            curves={rule: [noted(each) for each in curve] for rule, curve in found.curves.items()},
        )

    def _losses(self, point: dict[str, Tensor]) -> tuple[float, float | None]:
        perturbed = self.workspace.perturbed
        (loss,) = perturbed.losses([point])
        if not isinstance(self.workspace.surface.loss, CrossEntropy):
            return loss, None
        return loss, perturbed.errors([point])[0]


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
