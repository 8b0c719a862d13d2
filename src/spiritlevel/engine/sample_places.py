"""Where sample probes add their noise: the uses of the parameters, and where their samples are."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..errors import NotApplicable
from ..model.batches import BatchLocation
from ..model.layer_hooks import LayerUse
from ..model.layers import AbstractMatrixRule, Layout
from ..model.layers.broadcast import BroadcastRule
from ..model.layers.embedding import BagRule
from ..model.layers.grouped import GroupedRule
from ..model.layers.patches import ConvTransposeRule
from .routes import Routing, find_routing, hidden_parameters
from .rule_check import check_rules
from .weight_space.trusted_derivatives import refuse_hidden_uses

if TYPE_CHECKING:
    from .workspace import Workspace

Piece = tuple[BatchLocation, tuple[int, ...] | None]  # a chunk, and which of its samples


class _Shown(NamedTuple):
    """What a run shows of a use."""

    layer: str
    shape: torch.Size


class SamplePlaces:
    """Finds the places of some parameters' noise, chunk by chunk."""

    def __init__(
        self, workspace: Workspace, names: Collection[str], *, together: bool = False
    ) -> None:
        """`names` are those of the parameters; `together` says that one change has all of them."""
        self.together = together
        self.workspace, self.surface, self.names = workspace, workspace.surface, names
        self._matrices = {matrix.name for matrix in self.surface.matrices.values()}
        # of each chunk, for all kinds: the same weights do the same to the same data again
        self._found: dict[Piece, tuple[list[_Shown], Routing]]
        self._found = workspace.cache.setdefault("routings of sample probes", {})

    def of(
        self, uses: list[LayerUse], outputs: Tensor, batch: Any, key: Piece
    ) -> list[tuple[LayerUse, Layout]]:
        """The uses at which noise is added, and where their samples are.

        Where a parameter is used several times, the input of a later use changes with the noise at
        an earlier one, and with it what the same noise does there: a second-order term ξ ȧ, once as
        it stands and once as its transpose, in the gradient that comes back to the earlier use. So
        these uses keep their inputs with a graph. So do all uses if their parameters change
        together.
        """
        shown = [_Shown(use.layer, use.output.shape) for use in uses]
        before = self._found.get(key)
        if before is None or before[0] != shown:
            self._found[key] = shown, self._routing(uses, outputs)
            hidden = hidden_parameters(uses, self._found[key][1])
            refuse_hidden_uses(self.surface, batch, key[0], outputs, hidden)
        routing = self._found[key][1]
        for name in self.names:
            if routing.routes[name] == "generic":
                raise NotApplicable(f"a use of {name!r} cannot be divided into samples")
        for use in uses:
            if (reason := self.reason_against(use)) is not None:
                raise NotApplicable(reason)
            several = any(routing.routes[name] == "sum" for name in use.names.values())
            if not several:
                if not self.together:
                    use.live_input = None
            elif use.is_operation and isinstance(use.rule, BroadcastRule) and "weight" in use.names:
                raise NotApplicable(f"the gain {use.names['weight']!r} is used several times")
        return [
            (use, layout)
            for use, layout in zip(uses, routing.layouts, strict=True)
            if use.edge is not None and layout is not None
        ]

    def _routing(self, uses: list[LayerUse], outputs: Tensor) -> Routing:
        routing = find_routing(
            self.surface,
            uses,
            outputs,
            expected=self.workspace.plan.layouts,
            trusted=self.workspace.plan.signature,
            seed=len(outputs),
        )
        rules = self.workspace.plan.rules
        later = check_rules(self.surface, uses, routing, outputs, rules.unseen)
        for name in rules.wrong | later.wrong:
            routing.routes[name] = "generic"
        return routing

    def reason_against(self, use: LayerUse) -> str | None:
        """Why a use does not allow for noise of its own for every sample; None if it does."""
        name = use.names.get("weight", "")
        if name not in self.names:
            return None
        if isinstance(use.rule, BroadcastRule) and name in self._matrices:
            return f"the matrix {name!r} is also multiplied entry by entry"
        if isinstance(use.rule, GroupedRule):
            return f"{name!r} is the left factor of a product, or one matrix for each group"
        if isinstance(use.rule, BagRule):
            return f"the rows of {name!r} are added up in bags"
        if isinstance(use.rule, ConvTransposeRule):
            return f"{name!r} is the weight of a transposed convolution"
        operand = use.operands.get("weight")
        if isinstance(use.rule, AbstractMatrixRule) and operand and not operand.is_whole:
            return f"a part of {name!r} is used as a matrix of its own"
        return None
