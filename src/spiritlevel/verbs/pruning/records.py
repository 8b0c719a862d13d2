"""What `pruning` returns: what each unit is worth, deletions chosen from that, and masks."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...engine.directions.tally import ProbeGroups
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
from . import selection
from .selection import Rule

FORMAT = "spiritlevel-pruning-1"
PROBED = (
    "± is one standard error, from {} random probes per sample; in the table, of the median unit"
)
_NUMBERS = ("first", "second", "stderr", "data_stderr", "magnitude", "fisher")  # one for each unit


@dataclasses.dataclass(frozen=True)
class Deletion:
    """Input units (channels) of each weight that are deleted together."""

    units: dict[str, list[int]]
    share: float  # of the entries of all weights
    by: str
    rise: float | None  # predicted, with the GGN's terms between units; None if these are unknown
    separate_rise: float  # the sum over units, as if each went alone
    stderr: float | None = None  # of `rise`, from the probes; None without probes, or unknown
    separate_stderr: float | None = None  # of `separate_rise`
    measured_rise: float | None = None  # of the loss, on the same data
    measured_error: float | None = None  # the share of wrong predictions

    def to_dict(self) -> dict[str, Any]:
        """In plain types."""
        given = dataclasses.asdict(self)
        return {k: to_json_float(v) if isinstance(v, float) else v for k, v in given.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class Pruning:
    """What deleting each input unit of each weight does to the loss.

    Tensors have one value for each unit of a weight, by the weight's name.
    """

    first: dict[str, Tensor]  # −gᵀw_j
    second: dict[str, Tensor]  # ρ(j) = w_jᵀHw_j
    stderr: dict[str, Tensor]  # of ρ(j), from the probes; zeros where none were needed
    # of the rise: how much other samples would change it, and other probes where these were needed
    data_stderr: dict[str, Tensor]
    magnitude: dict[str, Tensor]  # ‖w_j‖
    fisher: dict[str, Tensor]  # Σ F_ii w_i² over the unit, if it was asked for
    exact: dict[str, bool]  # whether `second` is the Hessian's own, else of the GGN
    text: dict[str, str]  # why it is not
    owner: dict[str, Tensor]  # which unit every entry of a weight belongs to, in its shape
    left_out: dict[str, str]
    loss: float
    error: float | None
    cost: Cost
    settings: dict[str, Any]
    chosen: Deletion | None = None
    curves: dict[str, list[Deletion]] = dataclasses.field(default_factory=dict)
    # of every two units, and what each group of probes gave; not in files
    gram: Tensor | None = dataclasses.field(default=None, repr=False)
    groups: ProbeGroups | None = dataclasses.field(default=None, repr=False)

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
        known = {"joint"} if self.gram is not None else set()
        selection.check_rule(by, known | ({"fisher"} if self.fisher else set()))
        selection.check_share(share)
        entries, owners = self._entries(), self._owners()
        limit = share * float(entries.sum())
        if by == "joint":
            assert self.gram is not None
            scores, pairs = 0.5 * _joined(self.second), self.gram
            if self.groups is not None and self.groups.grams is not None:
                scores, pairs = 0.5 * self.groups.second[0], self.groups.grams[0].double()
            taken = selection.take_one_by_one(scores, pairs, entries, owners, limit)
        else:
            taken = selection.take(self._scores(by, seed), entries, owners, limit)
        return self._deletion(taken, by)

    def ranking(self) -> list[tuple[str, int, float]]:
        """All units from the one that costs least on: weight, unit, ½ρ(j)."""
        values = 0.5 * _joined(self.second)
        names = [(name, j) for name, each in self.second.items() for j in range(len(each))]
        return [(*names[i], float(values[i])) for i in values.argsort(stable=True).tolist()]

    def _scores(self, by: Rule, seed: int) -> Tensor:
        if by == "curvature":
            return 0.5 * _joined(self.second)
        if by == "rise":
            return _joined(self.rise)
        if by == "fisher":
            return _joined(self.fisher)
        if by == "magnitude":
            return _joined(self.magnitude).square()
        size = sum(len(each) for each in self.second.values())
        generator = torch.Generator().manual_seed(seed)
        return torch.rand(size, generator=generator, dtype=torch.float64) * self._entries()

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
        units: dict[str, list[int]] = {}
        start = 0
        for name, values in self.second.items():
            stop = start + len(values)
            units[name] = sorted(i - start for i in taken if start <= i < stop)
            start = stop
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
        return {
            name: (~torch.isin(owner, torch.tensor(deletion.units[name], dtype=owner.dtype))).to(
                torch.float32
            )
            for name, owner in self.owner.items()
        }

    def apply(self, model: nn.Module, deletion: Deletion) -> nn.Module:
        """A copy of the model without these units: their entries are 0."""
        pruned = copy.deepcopy(model)
        parameters = dict(pruned.named_parameters())
        for name, mask in self.masks(deletion).items():
            if name not in parameters or parameters[name].shape != mask.shape:
                raise SpiritlevelError(
                    "The 'model' argument of apply must be the network that was measured. It has "
                    f"no weight {name!r} of shape {tuple(mask.shape)}."
                )
            with torch.no_grad():
                parameters[name].mul_(mask.to(parameters[name]))
        return pruned

    def cells(self, name: str) -> list[str]:
        """A weight in a table: the smallest, median and largest ½ρ(j), and what these are."""
        half = 0.5 * self.second[name]
        cells = [f"{float(v):.2g}" for v in (half.min(), half.median(), half.max())]
        if not self.settings.get("num_probes"):
            return [*cells, "exact" if self.exact[name] else "ggn"]
        error = (self.stderr[name] / self.second[name]).nanmedian()  # dead units have none
        return [*cells, "ggn" if error.isnan() else f"ggn ±{float(error):.0%}"]

    def __str__(self) -> str:
        heading = ("½ρ(j), the core of the rise", "units", "smallest", "median", "largest", "")
        rows: list[tuple[str, ...]] = [heading]
        for name in self.second:
            rows.append((name, str(len(self.second[name])), *self.cells(name)))
        lines = [aligned(rows)]
        if self.chosen is not None:
            lines.append(deletion_text(self.chosen))
        if probes := self.settings.get("num_probes"):
            lines.append(PROBED.format(probes))
        count = int(self.settings["num_samples"])
        lines.append(f"{count} samples, {self.cost.passes(count)} over the data")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the terms between units, in plain types."""
        numbers = {
            part: {
                name: [to_json_float(value) for value in values.tolist()]
                for name, values in getattr(self, part).items()
            }
            for part in _NUMBERS
        }
        return {
            "format": FORMAT,
            **numbers,
            "owner": {name: _plain_owner(owner) for name, owner in self.owner.items()},
            "exact": self.exact,
            "text": self.text,
            "left_out": self.left_out,
            "loss": to_json_float(self.loss),
            "error": to_json_float(self.error),
            "cost": dataclasses.asdict(self.cost),
            "settings": self.settings,
            "chosen": None if self.chosen is None else self.chosen.to_dict(),
            "curves": {k: [d.to_dict() for d in each] for k, each in self.curves.items()},
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """As JSON text; `Pruning.from_json` reads it back."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Pruning:
        """Read what `to_json` wrote; choices made from it know neither terms nor errors."""
        return read_json(text, "Pruning", FORMAT, cls.from_dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Pruning:
        """The inverse of `to_dict`."""
        given = dict(read_as(Mapping[str, Any], data, "the pruning"))
        given.pop("format", None)
        read_settings(given["settings"], "the pruning's settings")
        # earlier versions refused what needs probes
        given.setdefault("stderr", {k: [0.0] * len(v) for k, v in given["second"].items()})
        ready: dict[str, Any] = {part: _read_numbers(given.pop(part), part) for part in _NUMBERS}
        ready["owner"] = _read_owners(given.pop("owner"), ready["second"])
        ready |= {"gram": None, "groups": None}
        _check_units(
            ready, exact=read_as(Mapping[str, bool], given["exact"], "the pruning's exact")
        )
        return read_fields(cls, given, "the pruning", **ready)


def _check_units(parts: Mapping[str, Mapping[str, Tensor]], *, exact: Mapping[str, bool]) -> None:
    """Refuse parts that are not about the same units: they were edited, or damaged."""
    sizes = {name: len(values) for name, values in parts["second"].items()}
    if not sizes or not all(sizes.values()):
        raise Misread("the pruning's second must hold numbers, of at least one weight")
    for part in _NUMBERS:
        found = {name: len(values) for name, values in parts[part].items()}
        if found != sizes and not (part == "fisher" and not found):  # which not everyone asks for
            raise Misread(f"the pruning's {part} must have a number for each one in its second")
    if exact.keys() != sizes.keys():
        raise Misread("the pruning's exact must name the same weights as its second")
    if empty := [name for name, owner in parts["owner"].items() if not owner.numel()]:
        raise Misread(f"the pruning's shape of {empty[0]!r} has no entries")


def _plain_owner(owner: Tensor) -> dict[str, Any]:
    """The shape, and the owners along those dimensions only in which they change."""
    units = owner
    for dim in range(owner.dim()):
        first = units.narrow(dim, 0, 1)
        units = first if bool((units == first).all()) else units
    return {"shape": list(owner.shape), "units": units.tolist()}


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


def deletion_text(deletion: Deletion) -> str:
    """One line about a deletion."""
    count = sum(map(len, deletion.units.values()))
    parts = [f"{count} units, {deletion.share:.1%} of the weights, by {deletion.by}"]
    if deletion.rise is not None:
        error = _error_text(deletion.stderr)
        parts.append(f"predicted rise of the loss {deletion.rise:.3g}{error}")
    error = _error_text(deletion.separate_stderr)
    parts.append(f"as if each went alone {deletion.separate_rise:.3g}{error}")
    if deletion.measured_rise is not None:
        parts.append(f"measured {deletion.measured_rise:.3g}")
    return "; ".join(parts)


def _error_text(stderr: float | None) -> str:
    return "" if stderr is None else f" ± {stderr:.1g}"
