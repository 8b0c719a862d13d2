"""Verify a move: apply it to a copy, run the copy and compare the outputs."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from ..ground.errors import SpiritlevelError
from .logit_size import power_of
from .moves import UP, Group, Move
from .precision import deviation, multiple
from .tracing import Run, View

NUM_FACTORS = (
    3  # at which a growth of the outputs is verified: both ends of the range and its middle
)


@dataclasses.dataclass
class Reference:
    """The unchanged network, with the outputs that every moved copy must give."""

    model: nn.Module
    outputs: Tensor
    tolerance: float
    run: Run  # gives what the loss sees of the outputs
    generator: torch.Generator
    whole: Run  # gives the outputs themselves
    seen: View | None = None  # what the loss sees of outputs, if that is less than all

    def holding(
        self, name: str, groups: list[Group], *, shared: bool = False, towards: int = UP
    ) -> tuple[list[Group], list[str]]:
        """The groups that keep the outputs, and why the others do not.

        Unless tensors may be `shared`, groups with tensors of several layers are left out: they
        were found for one of these layers alone.
        """
        owners = _owners(self.model)
        dropped, passing = [], []
        for group in groups:
            sharing = "" if shared else _shared(self.model, group, owners)
            dropped += [sharing] if sharing else []
            passing += [] if sharing else [group]
        if passing and not self.holds(name, passing, towards):
            # one bad group spoils the others, so each is tried for itself
            single = {group: self.holds(name, [group], towards) for group in passing}
            passing = [group for group in passing if single[group]]
            dropped += [
                f"moving {Move(name, (group,)).describe()!r} changes the outputs"
                for group, holds in single.items()
                if not holds
            ]
            if passing and not self.holds(name, passing, towards):
                return [], [*dropped, "the moves hold one by one but not together"]
        return passing, dropped

    def grown(self, move: Move, *, shared: bool = False) -> Move | str:
        """The move with the power by which outputs grow; or why it does more than scale them."""
        if move.name == "logit_temperature" and not shared:
            sharing = _shared(self.model, move.groups[0], _owners(self.model))
            if sharing:
                return sharing
        low, high = move.factors
        power: float | None = None
        for factor in torch.linspace(low, high, NUM_FACTORS).tolist():
            try:
                with torch.no_grad():
                    outputs = self.run(move.at(self.model, factor))
            except SpiritlevelError as error:
                return f"with a factor of {factor:g} the network does not run: {error}"
            if not bool(outputs.isfinite().all()):
                return f"with a factor of {factor:g} the outputs overflow"
            if power is None:
                ratio = multiple(outputs, self.outputs)
                power = power_of(ratio, factor, self.tolerance) if ratio > 0 else 0.0
            apart = deviation(outputs, factor**power * self.outputs)
            if apart > self.tolerance:
                return (
                    f"a factor of {factor:g} changes more than the size of the outputs: they are "
                    f"up to {apart:.2g} of the largest away from the multiple they should be"
                )
        return dataclasses.replace(move, power=power or 0.0)

    def holds(self, name: str, groups: list[Group], towards: int = UP) -> bool:
        """Whether a copy with all groups moved gives the outputs of the network."""
        moved = Move(name, tuple(groups)).apply(self.model, self.generator, towards)
        with torch.no_grad():
            return deviation(self.run(moved), self.outputs) <= self.tolerance


def _owners(model: nn.Module) -> dict[int, list[str]]:
    """The modules that hold a tensor, by where its memory begins."""
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and tensor.numel():
                owners.setdefault(tensor.untyped_storage().data_ptr(), []).append(path)
    return owners


def _shared(model: nn.Module, group: Group, owners: dict[int, list[str]]) -> str:
    for site in group.sites:
        paths = owners[site.of(model).untyped_storage().data_ptr()]
        if len(paths) > 1:
            return f"{site.name!r} is shared by {' and '.join(map(repr, paths))}"
    return ""
