"""`quantization`: the predicted rise of the loss for every weight and width, in one sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ... import measures as catalogue
from ...engine.directions.column_pass import run_column_pass
from ...engine.directions.families import GivenChanges
from ...engine.directions.product_pass import run_product_pass
from ...engine.directions.tally import Directional
from ...errors import NotApplicable
from ...measures.setup import OnLayersFast, Setup
from ...measures.verb import verb
from ...model.arguments import CHECKED_LATER, ArgumentCheck, is_flag, is_text
from ...model.layers.patches import TransposedLinearRule
from ...model.weight_matrices import WeightMatrix
from ...need import is_number, is_whole, need, or_none, whole
from ..changes.weight_changes import WeightChanges
from .assignment import size_budget
from .records import Quantization, Width
from .rounding import Ranges, Rounding, Scheme, check_bits

if TYPE_CHECKING:
    from typing_extensions import Unpack

MIN_PROBES = 2
MOST_COLUMNS = 128  # that are swept, each by a backward; more outputs take second backwards


@verb(
    bits=CHECKED_LATER,
    scheme=ArgumentCheck(is_text, "'per_tensor', 'per_channel' or 'per_group'"),
    group_size=CHECKED_LATER,
    ranges=ArgumentCheck(is_text, "'mse' or 'max'"),
    mean_bits=ArgumentCheck(or_none(is_number), "a number of bits per weight, or None"),
    bytes=ArgumentCheck(or_none(is_number), "a number of bytes, or None"),
    traces=ArgumentCheck(is_flag, "True or False"),
    check=ArgumentCheck(is_flag, "True or False"),
    num_probes=ArgumentCheck(is_whole, "a whole number below 2**63, such as 32"),
)
def quantization(
    setup: Setup,
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
    **shared: Unpack[OnLayersFast],
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
    wanted = "at least 2, or the error would be unknown"
    enough = whole(least=MIN_PROBES)
    need("num_probes", num_probes, enough, wanted, "The default is 4.", of="quantization")
    budget = None if mean_bits is None and bytes is None else size_budget(mean_bits, bytes)
    with setup.opened(model, data) as workspace:
        changes = WeightChanges(workspace, "rounding can be followed to the outputs")
        roundings = _Roundings(changes, rounding, options)
        if budget is not None:
            budget.refuse_if_below(options[0], roundings.least_bytes)
        found = roundings.measure(num_probes, traces=traces)
        found = dataclasses.replace(
            found,
            chosen=None if budget is None else found.plan(mean_bits=mean_bits, bytes=bytes),
            frontier=found.pareto(),
            uniforms=[found.uniform(each) for each in options],
        )
        return changes.finished(found, check=check, same=lambda plan: tuple(plan.bits.items()))


class _Roundings:
    """Every weight rounded to every width."""

    def __init__(
        self, changes: WeightChanges, rounding: Rounding, options: tuple[int, ...]
    ) -> None:
        self.workspace, self.changes = changes.workspace, changes
        self.rounding, self.options = rounding, options
        self.transposed = [name for name, m in changes.matrices.items() if _is_transposed(m)]
        counts = dict.fromkeys(changes.weights, len(options))
        self.family = GivenChanges(counts, self.change)

    def change(self, name: str, number: int) -> Tensor:
        """The rounding error of a weight at one of the widths."""
        weight, bits = self.changes.weights[name], self.options[number]
        transposed = name in self.transposed
        return self.rounding.round(weight, bits, transposed=transposed) - weight

    def num_bytes(self, name: str, bits: int) -> int:
        """What a weight takes at a width, with its scales."""
        shape = self.changes.weights[name].shape
        return self.rounding.num_bytes(shape, bits, transposed=name in self.transposed)

    @property
    def least_bytes(self) -> int:
        """What all weights take at the smallest width."""
        return sum(self.num_bytes(name, self.options[0]) for name in self.family.names)

    def measure(self, num_probes: int, *, traces: bool) -> Quantization:
        """All widths of all weights, without plans."""
        found, how = self._directional(num_probes)
        arithmetic, data_stderr = self.workspace.surface.numbers.arithmetic, found.data_stderr
        return Quantization(
            widths=[
                Width(
                    weight=name,
                    bits=bits,
                    bytes=self.num_bytes(name, bits),
                    first=float(found.first[i]),
                    second=float(found.second[i]),
                    rise=float(found.rise[i]),
                    stderr=0.5 * float(found.probe_stderr[i]),
                    data_stderr=float(data_stderr[i]),
                    error=float(self.change(name, i - span.start).double().square().sum()),
                    exact=name not in how and arithmetic == "full",
                )
                for name, span in self.family.spans.items()
                for i, bits in enumerate(self.options, start=span.start)
            ],
            rounding=self.rounding,
            sizes={name: weight.numel() for name, weight in self.changes.weights.items()},
            transposed=self.transposed,
            traces=self._traces() if traces else {},
            covariance=found.covariance,
            gram=found.gram,
            **self.changes.facts(how=how, num_probes=num_probes, arithmetic=arithmetic),
        )

    def _directional(self, num_probes: int) -> tuple[Directional, dict[str, str]]:
        """Slopes and curvatures, and for weights whose curvature is not exact, what it is."""
        workspace, family = self.workspace, self.family
        text = f"{num_probes} random signs per sample and weight"
        if workspace.plan.num_columns > MOST_COLUMNS:
            found = run_product_pass(workspace, family, num_probes=num_probes)
            how = dict.fromkeys(family.names, text) if len(family.names) > 1 else {}
            return dataclasses.replace(found, gram=None), how
        found = run_column_pass(workspace, family, pairs=True)
        bent = [name for name in family.names if name in found.bends]
        if not bent:
            return found, {}
        try:
            products = run_product_pass(workspace, family.only(bent), num_probes=num_probes)
        except NotApplicable as error:
            return found, dict.fromkeys(bent, f"of the GGN, not the Hessian: {error}")
        rows = torch.cat([torch.arange(family.size)[family.spans[name]] for name in bent])
        how = dict.fromkeys(bent, text) if len(bent) > 1 else {}
        return found.with_rows(rows, products), how

    def _traces(self) -> dict[str, float]:
        """The trace of every weight's Hessian block."""
        names = {name: name for name in self.family.names}
        rows = catalogue.estimate_rows(self.workspace, "trace", names, dict.fromkeys(names, 1.0))
        return {name: rows.result({name: 1.0}).estimate.value for name in names}


def _is_transposed(matrix: WeightMatrix) -> bool:
    """Whether its output channels are in the last dimension; those of a table are none."""
    is_table = isinstance(matrix.module, nn.Embedding)
    return isinstance(matrix.rule, TransposedLinearRule) and not is_table
