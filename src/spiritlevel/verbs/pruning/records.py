"""What `pruning` returns: what each unit is worth, deletions chosen from that, and masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ...engine.directions.tally import ProbeGroups
from ...records.content import ERROR, Cell, Column, Figure, Part, Table
from ...records.measurements import Cost
from ...records.reading import UNSAVED, Misread, read_as, read_fields, read_settings, to_plain
from ..changes import AbstractChanges, AbstractChoice, choice_text, increases
from .selection import Rule, Units, check_rule, check_share

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)  # of the curves
_NUMBERS = ("first", "second", "stderr", "data_stderr", "magnitude", "fisher")  # one for each unit


@dataclasses.dataclass(frozen=True)
class Deletion(AbstractChoice):
    """Input units (channels) of each weight that are deleted together."""

    CALLED: ClassVar = "a deletion"

    units: dict[str, list[int]]
    share: float  # of the entries of all weights
    by: str
    rise: float | None  # predicted, with the GGN's terms between units; None if these are unknown
    separate_rise: float  # the sum over units, as if each went alone
    stderr: float | None = None  # of `rise`, from the probes; None without probes, or unknown
    separate_stderr: float | None = None  # of `separate_rise`
    measured_rise: float | None = None  # of the loss, on the same data
    measured_error: float | None = None  # the share of wrong predictions

    def text(self) -> str:
        """The deletion in one line: its size, and what is predicted and measured."""
        count = sum(map(len, self.units.values()))
        return choice_text(
            f"{count} units, {self.share:.1%} of the weights, by {self.by}",
            ("predicted loss increase", self.rise, self.stderr),
            ("sum of single-unit predictions", self.separate_rise, self.separate_stderr),
            ("measured", self.measured_rise, None),
        )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Pruning(AbstractChanges[Deletion]):
    """What deleting each input unit of each weight does to the loss.

    Tensors have one value for each unit of a weight, by the weight's name.
    """

    CALLED: ClassVar = "the pruning"
    HEADING: ClassVar = "What deleting neurons and channels does to the loss"
    FORMAT: ClassVar = "spiritlevel-pruning-1"
    STAYS: ClassVar = "left out"

    first: dict[str, Tensor]  # −gᵀw_j
    second: dict[str, Tensor]  # ρ(j) = w_jᵀHw_j
    stderr: dict[str, Tensor]  # of ρ(j), from the probes; zeros where none were needed
    # of the rise: how much other samples would change it, and other probes where these were needed
    data_stderr: dict[str, Tensor]
    magnitude: dict[str, Tensor]  # ‖w_j‖
    fisher: dict[str, Tensor]  # Σ F_ii w_i² over the unit, if it was asked for
    owner: dict[str, Tensor]  # which unit every entry of a weight belongs to, in its shape
    exact: dict[str, bool]  # whether `second` is the Hessian's own, else of the GGN
    text: dict[str, str]  # why it is not
    left_out: dict[str, str]
    loss: float
    error: float | None
    cost: Cost
    settings: dict[str, Any]
    chosen: Deletion | None = None
    curves: dict[str, list[Deletion]] = dataclasses.field(default_factory=dict)
    # of every two units, and what each group of probes gave; not in files
    gram: Tensor | None = dataclasses.field(default=None, repr=False, metadata=UNSAVED)
    groups: ProbeGroups | None = dataclasses.field(default=None, repr=False, metadata=UNSAVED)

    @property
    def rise(self) -> dict[str, Tensor]:
        """−gᵀw_j + ½ρ(j) of every unit, as if it went alone."""
        return {name: self.first[name] + 0.5 * self.second[name] for name in self.first}

    # -- choosing ----------------------------------------------------------------------------

    @property
    def default_rule(self) -> Rule:
        """With terms between units, but not where probes were needed: there they did harm."""
        return "curvature" if self.gram is None or self.groups is not None else "joint"

    def choose(self, share: float, *, by: Rule | None = None, seed: int = 0) -> Deletion:
        """The units to delete so that at most this share of the weights' entries is gone.

        Args:
            by: "joint": one unit after the other, with the terms between them (the default where
                they are known without probes); "curvature": ½ρ(j) alone; "rise": with the slope.
                Or what others use: "magnitude", "fisher", "random". All rank by what a unit costs
                per entry.
        """
        by = by or self.default_rule
        check_rule(by, has_fisher=bool(self.fisher), has_pairs=self.gram is not None)
        check_share(share)
        entries = self._entries()
        units = Units(entries, self._owners(), share * float(entries.sum()))
        if by != "joint":
            return self._deletion(units.take(self._scores(by, seed)), by)
        assert self.gram is not None
        scores, pairs = 0.5 * _joined(self.second), self.gram
        if self.groups is not None and self.groups.grams is not None:
            scores, pairs = 0.5 * self.groups.second[0], self.groups.grams[0].double()
        return self._deletion(units.take_one_by_one(scores, pairs), by)

    def ranking(self) -> list[tuple[str, int, float]]:
        """All units from the one that costs least on: weight, unit, ½ρ(j)."""
        values, units = 0.5 * _joined(self.second), self._units()
        return [(*units[i], float(values[i])) for i in values.argsort(stable=True).tolist()]

    def _units(self) -> list[tuple[str, int]]:
        """The weight of every unit, and its number there."""
        return [(name, j) for name, each in self.second.items() for j in range(len(each))]

    def _scores(self, by: Rule, seed: int) -> Tensor:
        if by == "curvature":
            return 0.5 * _joined(self.second)
        if by == "rise":
            return _joined(self.rise)
        if by == "fisher":
            return _joined(self.fisher)
        if by == "magnitude":
            return _joined(self.magnitude).square()
        entries, generator = self._entries(), torch.Generator().manual_seed(seed)
        return torch.rand(len(entries), generator=generator, dtype=torch.float64) * entries

    def _entries(self) -> Tensor:
        counts = [
            torch.bincount(owner.flatten().long(), minlength=len(self.second[name]))
            for name, owner in self.owner.items()
        ]
        return torch.cat(counts).double()

    def _owners(self) -> Tensor:
        sizes = [len(each) for each in self.second.values()]
        return torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))

    def _deletion(self, taken: list[int], by: str) -> Deletion:
        units: dict[str, list[int]] = {name: [] for name in self.second}
        for name, j in map(self._units().__getitem__, sorted(taken)):
            units[name].append(j)
        entries = self._entries()
        first, second = _joined(self.first)[taken].sum(), _joined(self.second)[taken].sum()
        joint = stderr = separate_stderr = None
        if self.gram is not None:
            gone = torch.zeros(len(self.gram), dtype=torch.float64)
            gone[taken] = 1.0
            between = gone @ (self.gram @ gone) - self.gram.diagonal() @ gone
            joint = float(first + 0.5 * second + 0.5 * between)
        if self.groups is not None:
            # What was chosen by its terms is too good to be true for the probes that chose it.
            fresh = by == "joint"
            alone, error = self.groups.along(taken, joint=False, fresh=fresh)
            second, separate_stderr = second.new_tensor(alone), 0.5 * error
            if joint is not None:
                together, error = self.groups.along(taken, joint=True, fresh=fresh)
                stderr = 0.5 * error
                joint = float(first) + 0.5 * together if fresh else joint
        return Deletion(
            units=units,
            share=float(entries[taken].sum() / entries.sum()),
            by=by,
            rise=joint,
            separate_rise=float(first + 0.5 * second),
            stderr=stderr,
            separate_stderr=separate_stderr,
        )

    # -- using it ----------------------------------------------------------------------------

    def masks(self, deletion: Deletion) -> dict[str, Tensor]:
        """By weight, 1 for entries that stay and 0 for others, in the shape of the weight.

        `torch.nn.utils.prune.custom_from_mask(module, "weight", mask)` takes them.
        """
        return {name: self._mask(name, deletion) for name in self.owner}

    def _mask(self, name: str, deletion: Deletion) -> Tensor:
        owner = self.owner[name]
        gone = torch.tensor(deletion.units[name], dtype=owner.dtype)
        return (~torch.isin(owner, gone)).to(torch.float32)

    def apply(self, model: nn.Module, deletion: Deletion) -> nn.Module:
        """A copy of the model without these units: their entries are 0."""
        expected = {name: f"of shape {tuple(owner.shape)}" for name, owner in self.owner.items()}
        return self.changed_copy(model, deletion, expected, lambda w: f"of shape {tuple(w.shape)}")

    def changed(self, name: str, weight: Tensor, choice: Deletion) -> Tensor:
        """A weight with zeros for the units that are deleted."""
        return weight * self._mask(name, choice).to(weight)

    def describe(self) -> list[Part]:
        """What the best deletions do, what the units of every weight are worth, and the curves."""
        core = [Column("predicted increase per unit, in", kind="name"), Column("units")]
        core += [Column(title, digits=ERROR) for title in ("smallest", "median", "largest")]
        core.append(Column(""))
        rows: list[list[Cell]] = []
        for name, second in self.second.items():
            half = 0.5 * second
            ends = map(float, (half.min(), half.median(), half.max()))
            rows.append([name, len(half), *ends, self._mark(name)])
        if self.chosen is not None:
            core.append(Column("deleted"))
            for row, gone in zip(rows, self.chosen.units.values(), strict=True):
                row.append(len(gone))
        whole = {rule: curve for rule, curve in self.curves.items() if len(curve) == len(SHARES)}
        curves = Table(
            [
                Column("measured loss increase, deleted", kind="name"),
                *(Column(f"{share:.0%}", digits=ERROR) for share in SHARES),
            ],
            [[f"by {rule}", *(d.measured_rise for d in curve)] for rule, curve in whole.items()],
            title="Measured loss increase by share",
        )
        probes = self.settings.get("num_probes")
        note = (
            f"± is one standard error, from {probes} random probes per sample; in the table, of "
            "the median unit"
        )
        rule, best = next(iter(self.curves.items()), ("", []))
        outcomes = {f"at {share:.0%}": deletion for share, deletion in zip(SHARES, best)}  # noqa: B905
        doing, lines = f"Deleting a share of the weights by {rule}", [note] if probes else []
        worth = Table(core, rows, title="Predicted increase per unit")
        return self.told(doing, outcomes, [worth, curves], self._curves(), *lines)

    def _curves(self) -> Figure:
        """The loss increase by the share that is deleted, measured and predicted."""
        lines: dict[str, list[tuple[float, float | None]]] = {
            f"by {r}, measured": [(d.share, d.measured_rise) for d in c]
            for r, c in self.curves.items()
        }
        for rule, curve in list(self.curves.items())[:1]:
            lines[f"by {rule}, predicted"] = [(d.share, d.rise) for d in curve]
        return increases("share of the weights deleted", "Loss increase by share", lines)

    def _mark(self, name: str) -> str:
        """Whether the values of a weight are exact, and otherwise what they are."""
        if not self.settings.get("num_probes"):
            return "exact" if self.exact[name] else self.settings.get("arithmetic", "ggn")
        error = (self.stderr[name] / self.second[name]).nanmedian()  # dead units have none
        return "ggn" if error.isnan() else f"ggn ±{float(error):.0%}"

    def to_dict(self) -> dict[str, Any]:
        """Everything but the terms between units, in plain types."""
        tensors = {part: getattr(self, part).items() for part in _NUMBERS}
        numbers = {
            part: to_plain({name: values.tolist() for name, values in parts})
            for part, parts in tensors.items()
        }
        return super().to_dict() | numbers | {"owner": _plain_owners(self.owner)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Pruning:
        """The inverse of `to_dict`."""
        given = dict(read_as(Mapping[str, Any], data, cls.CALLED))
        given.pop("format", None)
        # earlier versions refused what needs probes
        given.setdefault("stderr", {k: [0.0] * len(v) for k, v in given["second"].items()})
        ready: dict[str, Any] = {part: _read_numbers(given[part], part) for part in _NUMBERS}
        ready["owner"] = _read_owners(given["owner"], ready["second"])
        found = read_fields(cls, given, cls.CALLED, **ready)
        found.check_parts()
        return found

    def check_parts(self) -> None:
        """Refuse parts that are not about the same units: they were edited, or damaged."""
        read_settings(self.settings, "the pruning's settings")
        sizes = {name: len(values) for name, values in self.second.items()}
        if not sizes or not all(sizes.values()):
            raise Misread("the pruning's second must hold numbers, of at least one weight")
        for part in _NUMBERS:
            found = {name: len(values) for name, values in getattr(self, part).items()}
            if found != sizes and not (part == "fisher" and not found):  # which few ask for
                raise Misread(f"the pruning's {part} must have a number for each one in its second")
        if self.exact.keys() != sizes.keys():
            raise Misread("the pruning's exact must name the same weights as its second")
        if empty := [name for name, owner in self.owner.items() if not owner.numel()]:
            raise Misread(f"the pruning's shape of {empty[0]!r} has no entries")


def _plain_owners(owners: Mapping[str, Tensor]) -> dict[str, Any]:
    """The shape, and the owners along those dimensions only in which they change."""
    found = {}
    for name, owner in owners.items():
        units = owner
        for dim in range(owner.dim()):
            first = units.narrow(dim, 0, 1)
            units = first if bool((units == first).all()) else units
        found[name] = {"shape": list(owner.shape), "units": units.tolist()}
    return found


def _read_owners(data: Any, second: dict[str, Tensor]) -> dict[str, Tensor]:
    owners = read_as(Mapping[str, Mapping[str, Any]], data, "the pruning's owner")
    if owners.keys() != second.keys():
        raise Misread(f"the pruning's owner names {sorted(owners)} and not {sorted(second)}")
    found = {}
    for name, owner in owners.items():
        shape = read_as(list[int], owner["shape"], f"the pruning's shape of {name!r}")
        try:
            units = torch.tensor(owner["units"], dtype=torch.int32)
        except (RuntimeError, TypeError, ValueError, OverflowError):
            raise Misread(f"the pruning's owner of {name!r} must be numbers of units") from None
        if units.numel() and not 0 <= int(units.min()) <= int(units.max()) < len(second[name]):
            raise Misread(f"the pruning's owner names units that {name!r} does not have")
        try:
            found[name] = units.expand(*shape).clone()
        except RuntimeError:
            raise Misread(f"the owners of {name!r} do not fit into its shape") from None
    return found


def _read_numbers(data: Any, part: str) -> dict[str, Tensor]:
    rows = read_as(Mapping[str, list[float]], data, f"the pruning's {part}")
    return {name: torch.tensor(row, dtype=torch.float64) for name, row in rows.items()}


def _joined(parts: dict[str, Tensor]) -> Tensor:
    return torch.cat(list(parts.values()))
