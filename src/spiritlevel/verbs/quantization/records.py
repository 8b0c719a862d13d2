"""What `quantization` returns: the loss increase by weight and width, and plans made from it."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor, nn

from ...ground.errors import SpiritlevelError
from ...ground.need import need_one_of
from ...records.content import ERROR, Cell, Column, Figure, Part, Table, Uncertain
from ...records.measurements import SAMPLING_ERROR, Cost
from ...records.reading import UNSAVED, Misread, Plain, read_as, read_settings
from ..changes import INCREASE, AbstractChanges, AbstractChoice, choice_text, increases
from .assignment import Assignment, size_budget
from .rounding import Rounding

Rule = Literal["joint", "curvature", "rise", "trace", "error"]


@dataclasses.dataclass(frozen=True)
class Width(Plain):
    """One weight rounded to one width; `rise` is gᵀδ + ½ δᵀHδ of the rounding error δ."""

    CALLED: ClassVar = "a width"

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
class Plan(AbstractChoice):
    """A width for every weight."""

    CALLED: ClassVar = "a plan"

    bits: dict[str, int]
    bytes: int  # of the rounded weights, with their scales
    mean_bits: float  # per weight, without the scales
    by: str  # what was minimized, or "uniform"
    rise: float  # the sum of the predicted rises, weight by weight
    data_stderr: float | None = None  # of `rise`
    joint_rise: float | None = None  # with the GGN's terms between weights
    measured_rise: float | None = None  # of the loss of the rounded network on the same data
    measured_error: float | None = None  # the share of wrong predictions of the rounded network

    def text(self) -> str:
        """The plan in one line: its size, and what is predicted and measured."""
        return choice_text(
            f"{self.mean_bits:.2f} bits per weight, {self.bytes:,} bytes",
            ("predicted loss increase", self.rise, self.data_stderr),
            ("with terms between weights", self.joint_rise, None),
            ("measured", self.measured_rise, None),
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Quantization(AbstractChanges[Plan]):
    """The predicted loss increase for every weight and width, and plans for given budgets."""

    CALLED: ClassVar = "the quantization"
    HEADING: ClassVar = "What rounding the weights does to the loss"
    FORMAT: ClassVar = "spiritlevel-quantization-1"
    STAYS: ClassVar = "not rounded"

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
    covariance: Tensor | None = dataclasses.field(default=None, repr=False, metadata=UNSAVED)
    gram: Tensor | None = dataclasses.field(default=None, repr=False, metadata=UNSAVED)

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
        self._check_rule(by)
        budget, least = size_budget(mean_bits, bytes), self.options[0]
        total = sum(self.sizes.values())
        budget.refuse_if_below(least, sum(self.of(name, least).bytes for name in self.sizes))
        values = [self._value(width, by) for width in self.widths]
        if not all(map(math.isfinite, values)):
            raise SpiritlevelError(
                f"A plan by {by!r} needs a finite number for each weight and width. Got "
                f"{next(v for v in values if not math.isfinite(v))}. Look at `widths`: the loss "
                "overflows, or the file was edited."
            )
        total = sum(self.sizes.values())
        task = Assignment(
            weights=[width.weight for width in self.widths],
            values=values,
            sizes=[
                self.sizes[width.weight] * width.bits / total if bytes is None else width.bytes
                for width in self.widths
            ],
            limit=budget.limit,
        )
        chosen = task.solve()
        if by == "joint":
            assert self.gram is not None
            chosen = task.improve(chosen, self.gram)
        return self.of_bits({self.widths[i].weight: self.widths[i].bits for i in chosen}, by=by)

    def _check_rule(self, by: str) -> None:
        """Refuse a rule that is not known or has no numbers."""
        need_one_of("by", by, get_args(Rule), of="plan")
        if by == "joint" and self.gram is None:
            raise SpiritlevelError(
                "The 'by' argument of plan can be 'joint' only where the terms between weights are "
                "known: not in a file, and not for networks with many outputs. Use by='curvature'."
            )
        if by == "trace" and not self.traces:
            raise SpiritlevelError(
                "The 'by' argument of plan can be 'trace' only if the traces are known. Call "
                "quantization with traces=True."
            )

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
        rise = sum(width.rise for width in widths)
        stderr = joint = None
        if self.covariance is not None:
            stderr = math.sqrt(max(float(self.covariance[rows][:, rows].sum()), 0.0))
        if self.gram is not None:
            block = self.gram[rows][:, rows]
            joint = rise + 0.5 * float(block.sum() - block.diagonal().sum())
        return Plan(
            bits={name: bits[name] for name in self.sizes},
            bytes=sum(width.bytes for width in widths),
            mean_bits=sum(self.sizes[w.weight] * w.bits for w in widths) / sum(self.sizes.values()),
            by=by,
            rise=rise,
            data_stderr=stderr,
            joint_rise=joint,
        )

    def _value(self, width: Width, by: Rule) -> float:
        """What a width adds to the sum that a rule makes small."""
        if by == "rise":
            return width.rise
        if by == "error":
            return width.error
        if by == "trace":
            return self.traces[width.weight] / self.sizes[width.weight] * width.error
        return 0.5 * width.second

    # -- using it ----------------------------------------------------------------------------

    def apply(self, model: nn.Module, plan: Plan) -> nn.Module:
        """A copy of the model whose weights are rounded; the model stays as it is."""
        sizes = {name: f"with {self.sizes.get(name)} entries" for name in plan.bits}
        return self.changed_copy(model, plan, sizes, lambda w: f"with {w.numel()} entries")

    def changed(self, name: str, weight: Tensor, choice: Plan) -> Tensor:
        """A weight at its width in a plan."""
        return self.round(name, weight, choice.bits[name])

    def round(self, name: str, weight: Tensor, bits: int) -> Tensor:
        """One weight at one width."""
        return self.rounding.round(weight, bits, transposed=name in self.transposed)

    def describe(self) -> list[Part]:
        """The best plan, the increase by weight and width, and that of one width everywhere."""
        columns = [Column("loss increase", kind="name"), Column("entries")]
        columns += [Column(f"{bits} bits", digits=ERROR) for bits in self.options]
        rows: list[list[Cell]] = [
            [name, size, *(self.of(name, bits).rise for bits in self.options)]
            for name, size in self.sizes.items()
        ]
        if self.chosen is not None:
            columns.append(Column("best"))
            for row, bits in zip(rows, self.chosen.bits.values(), strict=True):
                row.append(bits)
        everywhere = [
            Column("everywhere"),
            Column("bytes"),
            Column("predicted increase", digits=INCREASE),
            Column("±", SAMPLING_ERROR, digits=ERROR),
            Column("joint increase", "predicted with the terms between weights", digits=INCREASE),
            Column("measured increase", digits=INCREASE),
        ]
        uniforms: list[list[Cell]] = [
            [
                f"{plan.mean_bits:g} bits",
                plan.bytes,
                Uncertain(plan.rise, plan.data_stderr),
                plan.data_stderr,
                plan.joint_rise,
                plan.measured_rise,
            ]
            for plan in self.uniforms
        ]
        tables = [
            Table(columns, rows, title="Loss increase by weight"),
            Table(everywhere, uniforms, title="One width for all weights").filled(),
        ]
        outcomes = {f"at {plan.mean_bits:g} bits": plan for plan in self.uniforms}
        return self.told("Rounding all weights", outcomes, tables, self._curves())

    def _curves(self) -> Figure:
        """The increase of the loss over the size, of the best plans and of uniform widths."""
        lines: dict[str, list[tuple[float, float | None]]] = {
            "mixed widths, predicted": [(p.mean_bits, p.rise) for p in self.frontier],
            "mixed widths, predicted with terms between weights": [
                (p.mean_bits, p.joint_rise) for p in self.frontier
            ],
            "mixed widths, measured": [(p.mean_bits, p.measured_rise) for p in self.frontier],
            "uniform, measured": [(p.mean_bits, p.measured_rise) for p in self.uniforms],
        }
        return increases("bits per weight", "Loss increase by size", lines)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Quantization:
        """The inverse of `to_dict`."""
        for plans in ("frontier", "uniforms"):  # a record may be without them, no file is
            _ = read_as(Mapping[str, Any], data, cls.CALLED)[plans]
        return super().from_dict(data)

    def check_parts(self) -> None:
        """Refuse what plans cannot be made of: it was edited, or damaged."""
        read_settings(self.settings, "the quantization's settings")
        names = self.sizes.keys()
        if min(self.sizes.values(), default=0) < 1:
            raise Misread("the quantization's sizes must be positive, of at least one weight")
        pairs = [(width.weight, width.bits) for width in self.widths]
        if not pairs or sorted(pairs) != sorted(itertools.product(names, self.options)):
            raise Misread("the quantization's widths must be the same for each weight in its sizes")
        if self.traces and self.traces.keys() != names:
            raise Misread("the quantization's traces must be of the weights in its sizes, or none")
