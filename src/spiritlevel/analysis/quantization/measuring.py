"""`quantization`: the predicted rise of the loss for every weight and width, in one sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ... import measures as catalogue
from ...api import Loss
from ...engine.data_pass import Needs
from ...engine.directions.column_pass import run_column_pass
from ...engine.directions.families import GivenChanges
from ...engine.directions.product_pass import run_product_pass
from ...engine.directions.tally import Directional
from ...engine.directions.usable import reasons_against
from ...engine.workspace import Workspace
from ...errors import NotApplicable, SpiritlevelError, brief
from ...measures.opening import open_workspace
from ...model.arithmetic import Arithmetic
from ...model.batches import Forward
from ...model.calls import measuring
from ...model.layers.patches import TransposedLinearRule
from ...model.losses import CrossEntropy
from ...records import Progress
from . import assignment
from .records import Plan, Quantization, Width
from .rounding import Ranges, Rounding, Scheme, check_bits

MIN_PROBES = 2
MOST_COLUMNS = 128  # that are swept, each by a backward; more outputs take second backwards


@measuring
def quantization(
    model: nn.Module,
    data: Iterable[Any],
    *,
    bits: Sequence[int] = (2, 3, 4, 6, 8),
    scheme: Scheme = "per_channel",
    group_size: int = 128,
    ranges: Ranges = "mse",
    mean_bits: float | None = None,
    bytes: int | None = None,
    traces: bool = False,
    check: bool = True,
    num_probes: int = 4,
    loss: Loss = "cross_entropy",
    layers: str | Sequence[str] | None = None,
    head: str | None = None,
    forward: Forward | None = None,
    memory: int | None = None,
    arithmetic: Arithmetic = "full",
    seed: int = 0,
    distributed: bool = True,
    progress: Progress | None = None,
) -> Quantization:
    """What rounding each weight does to the loss. The model is left exactly as it was.

    For every weight matrix and width the rise is gᵀδ + ½ δᵀHδ of the actual rounding error δ, all
    in one pass over the data. Biases and gains are not rounded.

    Args:
        bits: the widths to try, from 2 to 16.
        scheme: "per_tensor", "per_channel" or "per_group": which weights share a scale.
        group_size: neighbours within a channel that share a scale, for "per_group".
        ranges: "mse" chooses scales by squared error, "max" by the largest weight.
        mean_bits: a budget, in bits per weight; `chosen` of the result is the best plan for it.
        bytes: the same, in bytes with the scales.
        traces: compute the Hessian's trace by weight too, for plans by HAWQ-V2.
        check: run the network with the chosen plan, the Pareto plans and uniform widths, and note
            the rise of its loss on the same data.
        num_probes: sets of random signs, where the outputs bend or are many; see docs.
        arithmetic: "tf32" and "bf16" are faster on a GPU; rises then have three and two digits.

    The other arguments are those of `measure`.
    """
    options, rounding = check_bits(bits), Rounding(scheme, group_size, ranges)
    if num_probes < MIN_PROBES:
        raise SpiritlevelError(
            "The 'num_probes' argument of quantization must be at least 2, or the error would be "
            f"unknown. Got {brief(num_probes)}. The default is 4."
        )
    budget = mean_bits is not None or bytes is not None
    if budget:
        assignment.check_limits(mean_bits, bytes)
    workspace = open_workspace(
        model,
        data,
        layers=layers,
        head=head,
        loss=loss,
        forward=forward,
        memory=memory,
        arithmetic=arithmetic,
        seed=seed,
        distributed=distributed,
        progress=progress,
    )
    workspace.want(Needs(sweep=True))
    with workspace.surface.preserved():
        subject = _Subject(workspace, rounding, options)
        if budget:
            subject.refuse_small(mean_bits, bytes)
        found = subject.measure(num_probes, traces=traces)
        if budget:
            chosen = found.plan(mean_bits=mean_bits, bytes=bytes)
            found = dataclasses.replace(found, chosen=chosen)
        frontier, uniforms = found.pareto(), [found.uniform(each) for each in options]
        found = dataclasses.replace(found, frontier=frontier, uniforms=uniforms)
        if check:
            found = subject.checked(found)
        return dataclasses.replace(found, cost=workspace.cost)


class _Subject:
    """The weights of a network that are rounded."""

    def __init__(self, workspace: Workspace, rounding: Rounding, options: tuple[int, ...]) -> None:
        self.workspace, self.rounding, self.options = workspace, rounding, options
        matrices = {matrix.name: matrix for matrix in workspace.surface.matrices.values()}
        self.left_out = reasons_against(workspace, matrices)
        self.weights = {
            name: matrix.parameter for name, matrix in matrices.items() if name not in self.left_out
        }
        if not self.weights:
            first = next(iter(self.left_out.items()), ("", "it has no weight matrix"))
            raise SpiritlevelError(
                "The model must have weight matrices whose rounding can be followed to the "
                f"outputs. Got none: {first[0]!r}: {first[1]}."
            )
        self.transposed = [
            name
            for name in self.weights
            if isinstance(matrices[name].rule, TransposedLinearRule)
            and not isinstance(matrices[name].module, nn.Embedding)
        ]

    def refuse_small(self, mean_bits: float | None, num_bytes: int | None) -> None:
        """Refuse a budget that the smallest widths exceed, before anything is measured."""
        least = self.options[0]
        if mean_bits is not None:
            assignment.refuse_below(least, mean_bits, assignment.MEAN_BITS)
        else:
            assert num_bytes is not None
            total = sum(self._bytes(name, least) for name in self.weights)
            assignment.refuse_below(total, num_bytes, "bytes")

    def change(self, name: str, number: int) -> Tensor:
        """The rounding error of a weight at one of the widths."""
        weight = self.weights[name].detach()
        return self._rounded(name, self.options[number]) - weight

    def _rounded(self, name: str, bits: int) -> Tensor:
        weight = self.weights[name].detach()
        return self.rounding.round(weight, bits, transposed=name in self.transposed)

    def _bytes(self, name: str, bits: int) -> int:
        shape = self.weights[name].shape
        return self.rounding.num_bytes(shape, bits, transposed=name in self.transposed)

    def measure(self, num_probes: int, *, traces: bool) -> Quantization:
        """All widths of all weights, without plans."""
        workspace = self.workspace
        family = self._family(list(self.weights))
        found, random = self._directional(family, num_probes)
        places, widths = family.spans, []
        is_full = workspace.surface.arithmetic == "full"
        for name in self.weights:
            for number, bits in enumerate(self.options):
                i = places[name].start + number
                widths.append(
                    Width(
                        weight=name,
                        bits=bits,
                        bytes=self._bytes(name, bits),
                        first=float(found.first[i]),
                        second=float(found.second[i]),
                        rise=float(found.rise[i]),
                        stderr=0.5 * float(found.probe_stderr[i]),
                        data_stderr=float(found.data_stderr[i]),
                        error=float(self.change(name, number).double().square().sum()),
                        exact=random.get(name) is None and is_full,
                    )
                )
        loss, error = self._losses([{}])
        return Quantization(
            widths=widths,
            rounding=self.rounding,
            sizes={name: weight.numel() for name, weight in self.weights.items()},
            transposed=self.transposed,
            left_out=self.left_out,
            traces=self._traces() if traces else {},
            loss=loss[0],
            error=None if error is None else error[0],
            cost=workspace.cost,
            settings=workspace.settings()
            | {
                "how": random,
                "num_probes": num_probes,
                "arithmetic": workspace.surface.arithmetic,
            },
            covariance=found.covariance,
            gram=found.gram,
        )

    def _family(self, names: list[str]) -> GivenChanges:
        return GivenChanges(dict.fromkeys(names, len(self.options)), self.change)

    def _directional(
        self, family: GivenChanges, num_probes: int
    ) -> tuple[Directional, dict[str, str]]:
        """Slopes and curvatures, and for weights whose curvature is not exact, what it is."""
        workspace = self.workspace
        names = list(family.names)
        if workspace.plan.num_columns > MOST_COLUMNS:
            text = f"{num_probes} random signs per sample and weight"
            found = run_product_pass(workspace, family, num_probes=num_probes)
            found = dataclasses.replace(found, gram=None)
            return found, {} if len(names) == 1 else dict.fromkeys(names, text)
        columns = run_column_pass(workspace, family, pairs=True)
        bent = [name for name in names if name in columns.bends]
        if not bent:
            return columns, {}
        try:
            products = run_product_pass(workspace, self._family(bent), num_probes=num_probes)
        except NotApplicable as error:
            text = f"of the GGN, not the Hessian: {error}"
            return columns, dict.fromkeys(bent, text)
        text = f"{num_probes} random signs per sample and weight"
        how = {} if len(bent) == 1 else dict.fromkeys(bent, text)
        rows = torch.cat([torch.arange(family.size)[family.spans[name]] for name in bent])
        return columns.with_rows(rows, products), how

    def _traces(self) -> dict[str, float]:
        """The trace of every weight's Hessian block."""
        names = {name: name for name in self.weights}
        rows = catalogue.estimate_rows(
            self.workspace, "trace", names, dict.fromkeys(self.weights, 1.0)
        )
        return {name: rows.result({name: 1.0}).estimate.value for name in self.weights}

    # -- what really happens -----------------------------------------------------------------

    def checked(self, found: Quantization) -> Quantization:
        """The same with the loss of the rounded network, for every plan."""
        chosen = [] if found.chosen is None else [found.chosen]
        plans = [*chosen, *found.frontier, *found.uniforms]
        unique = list({tuple(plan.bits.items()): plan for plan in plans}.values())
        losses: dict[Any, float] = {}
        errors: dict[Any, float | None] = {}
        for plan in unique:  # one at a time: each is a copy of all weights
            point = {name: self._rounded(name, bits) for name, bits in plan.bits.items()}
            loss, error = self._losses([point])
            key = tuple(plan.bits.items())
            losses[key], errors[key] = loss[0], None if error is None else error[0]

        def noted(plan: Plan) -> Plan:
            key = tuple(plan.bits.items())
            return dataclasses.replace(
                plan, measured_rise=losses[key] - found.loss, measured_error=errors[key]
            )

        return dataclasses.replace(
            found,
            chosen=noted(found.chosen) if found.chosen is not None else None,
            frontier=[noted(plan) for plan in found.frontier],
            uniforms=[noted(plan) for plan in found.uniforms],
        )

    def _losses(self, points: list[dict[str, Tensor]]) -> tuple[list[float], list[float] | None]:
        perturbed = self.workspace.perturbed
        losses = perturbed.losses(points)
        if not isinstance(self.workspace.surface.loss, CrossEntropy):
            return losses, None
        return losses, perturbed.errors(points)
