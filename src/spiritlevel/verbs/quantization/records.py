"""What `quantization` returns: the rise of the loss by weight and width, and plans made from it."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError
from ...records.measurements import (
    Cost,
    aligned,
    read_json,
    to_json_float,
)
from ...records.reading import (
    Misread,
    read_as,
    read_fields,
    read_settings,
)
from . import assignment
from .assignment import Rule
from .rounding import Rounding

FORMAT = "spiritlevel-quantization-1"
_FLOATS = ("first", "second", "rise", "stderr", "data_stderr", "error")


@dataclasses.dataclass(frozen=True)
class Width:
    """One weight rounded to one width; `rise` is gᵀδ + ½ δᵀHδ of the rounding error δ."""

    weight: str
    bits: int
    bytes: int
    first: float  # gᵀδ
    second: float  # δᵀHδ
    rise: float
    stderr: float  # of the random probes; 0 where none were needed
    data_stderr: float  # how much other samples would change the rise; nan for a single sample
    error: float  # ‖δ‖²
    exact: bool  # whether `second` is the Hessian's own, up to round-off


@dataclasses.dataclass(frozen=True)
class Plan:
    """A width for every weight."""

    bits: dict[str, int]
    bytes: int  # of the rounded weights, with their scales
    mean_bits: float  # per weight, without the scales
    by: str  # what was minimized, or "uniform"
    rise: float  # the sum of the predicted rises, weight by weight
    data_stderr: float | None = None  # of `rise`
    joint_rise: float | None = None  # with the GGN's terms between weights
    measured_rise: float | None = None  # of the loss of the rounded network on the same data
    measured_error: float | None = None  # the share of wrong predictions of the rounded network

    def to_dict(self) -> dict[str, Any]:
        """In plain types."""
        given = dataclasses.asdict(self)
        return {k: to_json_float(v) if isinstance(v, float) else v for k, v in given.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Quantization:
    """The predicted rise of the loss for every weight and width, and plans for given budgets."""

    widths: list[Width]
    rounding: Rounding
    sizes: dict[str, int]  # entries of every weight
    transposed: list[str]  # weights whose output channels are in the last dimension
    left_out: dict[str, str]  # matrices that are not rounded, and why
    traces: dict[str, float]  # of the Hessian, by weight, if they were asked for
    loss: float  # of the network as it is
    error: float | None  # its share of wrong predictions, for cross-entropy
    cost: Cost
    settings: dict[str, Any]
    chosen: Plan | None = None  # for the budget that was asked for
    frontier: list[Plan] = dataclasses.field(default_factory=list)
    uniforms: list[Plan] = dataclasses.field(default_factory=list)
    # of every two widths, in the order of `widths`; not in files
    covariance: Tensor | None = dataclasses.field(default=None, repr=False)
    gram: Tensor | None = dataclasses.field(default=None, repr=False)

    @property
    def options(self) -> tuple[int, ...]:
        """The widths."""
        return tuple(sorted({width.bits for width in self.widths}))

    def of(self, weight: str, bits: int) -> Width:
        """One weight at one width."""
        return self.widths[self._index(weight, bits)]

    def _index(self, weight: str, bits: int) -> int:
        for i, width in enumerate(self.widths):
            if (width.weight, width.bits) == (weight, bits):
                return i
        raise SpiritlevelError(
            f"There is no weight {weight!r} at {bits!r} bits. Weights: {', '.join(self.sizes)}. "
            f"Widths: {', '.join(map(str, self.options))}."
        )

    # -- plans -------------------------------------------------------------------------------

    def plan(
        self, *, mean_bits: float | None = None, bytes: int | None = None, by: Rule = "curvature"
    ) -> Plan:
        """The best widths within a budget.

        Args:
            mean_bits: bits per weight on average, without the scales.
            bytes: of all rounded weights, with their scales.
            by: what is made small. "curvature": the sum of ½ δᵀHδ. "joint": the same with the GGN's
                terms between weights, by exchanging widths of that plan. "rise": with the slope
                gᵀδ, which at a minimum is mostly chance: see docs. Or what others minimize:
                "trace" (HAWQ-V2: mean trace × ‖δ‖²), "error" (‖δ‖² alone).
        """
        has_pairs = self.gram is not None
        assignment.check_rule(by, has_traces=bool(self.traces), has_pairs=has_pairs)
        smallest = [self.of(name, self.options[0]) for name in self.sizes]
        limit = assignment.check_budget(smallest, self.sizes, mean_bits, bytes)
        sizes = self._costs(by_bytes=bytes is not None)
        values = self._values(by)
        if not all(map(math.isfinite, values)):
            raise SpiritlevelError(
                f"A plan by {by!r} needs a finite number for each weight and width. Got "
                f"{next(v for v in values if not math.isfinite(v))}. Look at `widths`: the loss "
                "overflows, or the file was edited."
            )
        chosen = assignment.solve(self.widths, values, sizes, limit)
        if by == "joint":
            assert self.gram is not None
            chosen = assignment.improve(self.widths, chosen, values, self.gram, sizes, limit)
        return self.of_bits({width.weight: width.bits for width in chosen}, by=by)

    def uniform(self, bits: int) -> Plan:
        """The same width for all weights."""
        return self.of_bits(dict.fromkeys(self.sizes, bits), by="uniform")

    def pareto(self, *, points: int = 12, by: Rule = "curvature") -> list[Plan]:
        """The best plans from the smallest to the largest mean width."""
        low, high = self.options[0], self.options[-1]
        budgets = [low + (high - low) * i / max(points - 1, 1) for i in range(points)]
        plans = [self.plan(mean_bits=budget, by=by) for budget in budgets]
        return list({tuple(plan.bits.items()): plan for plan in plans}.values())

    def of_bits(self, bits: Mapping[str, int], *, by: str = "given") -> Plan:
        """The plan with these widths, and what is predicted for it."""
        if missing := [name for name in self.sizes if name not in bits]:
            raise SpiritlevelError(
                f"The 'bits' of a plan must name every weight. {missing[0]!r} is missing. "
                f"Weights: {', '.join(self.sizes)}."
            )
        rows = [self._index(name, bits[name]) for name in self.sizes]
        widths = [self.widths[i] for i in rows]
        total = sum(self.sizes.values())
        stderr = joint = None
        if self.covariance is not None:
            stderr = math.sqrt(max(float(self.covariance[rows][:, rows].sum()), 0.0))
        if self.gram is not None:
            block = self.gram[rows][:, rows]
            between = float(block.sum() - block.diagonal().sum())
            joint = sum(width.rise for width in widths) + 0.5 * between
        return Plan(
            bits={name: bits[name] for name in self.sizes},
            bytes=sum(width.bytes for width in widths),
            mean_bits=sum(self.sizes[w.weight] * w.bits for w in widths) / total,
            by=by,
            rise=sum(width.rise for width in widths),
            data_stderr=stderr,
            joint_rise=joint,
        )

    def _values(self, by: Rule) -> list[float]:
        if by in ("curvature", "joint"):
            return [0.5 * width.second for width in self.widths]
        if by == "rise":
            return [width.rise for width in self.widths]
        if by == "error":
            return [width.error for width in self.widths]
        return [self.traces[w.weight] / self.sizes[w.weight] * w.error for w in self.widths]

    def _costs(self, *, by_bytes: bool) -> list[float]:
        if by_bytes:
            return [float(width.bytes) for width in self.widths]
        total = sum(self.sizes.values())
        return [self.sizes[width.weight] * width.bits / total for width in self.widths]

    def apply(self, model: nn.Module, plan: Plan) -> nn.Module:
        """A copy of the model whose weights are rounded; the model stays as it is."""
        rounded = copy.deepcopy(model)
        parameters = dict(rounded.named_parameters())
        for name, bits in plan.bits.items():
            if name not in parameters or parameters[name].numel() != self.sizes.get(name):
                raise SpiritlevelError(
                    f"The 'model' argument of apply must be the network that was measured. It has "
                    f"no weight {name!r} with {self.sizes.get(name)} entries."
                )
            with torch.no_grad():
                parameters[name].copy_(self.round(name, parameters[name].detach(), bits))
        return rounded

    def round(self, name: str, weight: Tensor, bits: int) -> Tensor:
        """One weight at one width."""
        return self.rounding.round(weight, bits, transposed=name in self.transposed)

    # -- as text -----------------------------------------------------------------------------

    def __str__(self) -> str:
        rows = [("rise of the loss", "entries", *[f"{bits} bits" for bits in self.options])]
        for name, size in self.sizes.items():
            cells = [f"{self.of(name, bits).rise:.2g}" for bits in self.options]
            rows.append((name, f"{size:,}", *cells))
        lines = [aligned(rows)]
        if self.chosen is not None:
            lines.append(plan_text(self.chosen))
        count = int(self.settings["num_samples"])
        lines.append(f"{count} samples, {self.cost.passes(count)} over the data")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the matrices over pairs of widths, in plain types."""
        widths = [dataclasses.asdict(width) for width in self.widths]
        for width in widths:
            width.update({key: to_json_float(width[key]) for key in _FLOATS})
        return {
            "format": FORMAT,
            "widths": widths,
            "rounding": self.rounding.settings(),
            "sizes": self.sizes,
            "transposed": self.transposed,
            "left_out": self.left_out,
            "traces": {name: to_json_float(trace) for name, trace in self.traces.items()},
            "loss": to_json_float(self.loss),
            "error": to_json_float(self.error),
            "cost": dataclasses.asdict(self.cost),
            "settings": self.settings,
            "chosen": None if self.chosen is None else self.chosen.to_dict(),
            "frontier": [plan.to_dict() for plan in self.frontier],
            "uniforms": [plan.to_dict() for plan in self.uniforms],
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """As JSON text; `Quantization.from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Quantization:
        """Read what `to_json` wrote; plans made from it have no sampling error."""
        return read_json(text, "Quantization", FORMAT, cls.from_dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Quantization:
        """The inverse of `to_dict`."""
        given = dict(read_as(Mapping[str, Any], data, "the quantization"))
        given.pop("format", None)
        read_settings(given["settings"], "the quantization's settings")
        chosen = given.pop("chosen", None)
        ready = {
            "widths": _read_all(Width, given.pop("widths"), "a width"),
            "rounding": read_fields(Rounding, given.pop("rounding"), "the rounding"),
            "cost": read_fields(Cost, given.pop("cost"), "the cost"),
            "chosen": None if chosen is None else read_fields(Plan, chosen, "the plan"),
            "frontier": _read_all(Plan, given.pop("frontier"), "a plan"),
            "uniforms": _read_all(Plan, given.pop("uniforms"), "a plan"),
            "covariance": None,
            "gram": None,
        }
        return _consistent(read_fields(cls, given, "the quantization", **ready))


def _consistent(found: Quantization) -> Quantization:
    """Refuse what plans cannot be made of: it was edited, or damaged."""
    names = found.sizes.keys()
    if min(found.sizes.values(), default=0) < 1:
        raise Misread("the quantization's sizes must be positive, of at least one weight")
    pairs = [(width.weight, width.bits) for width in found.widths]
    if not pairs or sorted(pairs) != sorted(itertools.product(names, found.options)):
        raise Misread("the quantization's widths must be the same for each weight in its sizes")
    if found.traces and found.traces.keys() != names:
        raise Misread("the quantization's traces must be of the weights in its sizes, or none")
    return found


def _read_all(kind: type[Any], rows: Any, what: str) -> list[Any]:
    return [read_fields(kind, row, what) for row in read_as(Sequence[Any], rows, what)]


def plan_text(plan: Plan) -> str:
    """One line about a plan."""
    parts = [f"{plan.mean_bits:.2f} bits per weight, {plan.bytes:,} bytes"]
    error = "" if plan.data_stderr is None else f" ± {plan.data_stderr:.1g}"
    parts.append(f"predicted rise of the loss {plan.rise:.3g}{error}")
    if plan.joint_rise is not None:
        parts.append(f"with terms between weights {plan.joint_rise:.3g}")
    if plan.measured_rise is not None:
        parts.append(f"measured {plan.measured_rise:.3g}")
    return "; ".join(parts)
