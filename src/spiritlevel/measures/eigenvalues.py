"""The eigenvalues that the measures of one call need, of the network and of its layers, together.

A pass over the data takes a forward and the graph of the gradient whatever is multiplied then. So
the Lanczos runs of the whole network and of every layer go side by side and share their passes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from ..engine.purse import PASS, PRODUCT
from ..engine.weight_space.eigenvalues import VALUE_RTOL, check_room, eigenpairs_of
from ..engine.weight_space.lanczos import Eigenpairs, Subspace, Which
from ..engine.weight_space.parameter_space import ParameterSpace
from ..engine.workspace import Workspace
from ..records.measurements import Cost
from .requirements import measured_weights

ENDS: dict[str, Which] = {  # these can start from the eigenvectors of an earlier measurement
    "curvature.lambda_max": "largest",
    "curvature.lambda_min": "smallest",
}
OF_LAYERS = "scaled.lambda_max"
OF_ALL_LAYERS = {OF_LAYERS, "scaled.lambda_max_max"}

SQUARE = "curvature.trace_squared"  # needs fewer probes if there was a Lanczos run before
SUBSPACE = "subspace of the eigenvalues"  # its key in the workspace's cache

Block = tuple[str | None, Which]  # a parameter, or all of them, and an end of its spectrum
PairsAndCost = tuple[Eigenpairs, Cost]  # the cost is that of all blocks found together


def room_for_network(workspace: Workspace, name: str) -> None:
    """The shortest Lanczos basis of the whole network fits in memory."""
    check_room(ParameterSpace(workspace.surface), 1, workspace.vector_memory)


def room_for_weights(workspace: Workspace, name: str) -> None:
    """Refuse weights whose shortest Lanczos basis does not fit in memory."""
    for weight in measured_weights(workspace, name).values():
        check_room(ParameterSpace(workspace.surface, [weight]), 1, workspace.vector_memory)


def of_network(workspace: Workspace, name: str) -> tuple[Eigenpairs, int, Cost]:
    """The pairs that contain a measure of ENDS, its index among them, and their cost."""
    asked = _ends(workspace.asked | {name})
    block: Block = (None, "both" if len(asked) > 1 else asked[0])
    pairs, cost = _eigenpairs(workspace, [block])[block]
    return pairs, asked.index(ENDS[name]), cost


def subspace_of_network(workspace: Workspace) -> Subspace | None:
    """The subspace of the Lanczos run for the network's eigenvalues; None if nobody asked for them.

    It is as large as many copies of the weights, so it is given away, to be used once.
    """
    for name in ENDS:
        if name in workspace.asked:
            of_network(workspace, name)
            break
    subspace: Subspace | None = workspace.cache.pop(SUBSPACE, None)
    return subspace


def of_weights(workspace: Workspace, names: Sequence[str]) -> dict[str, PairsAndCost]:
    """The largest eigenvalue of the block of each of these parameters."""
    by_block = _eigenpairs(workspace, [(name, "largest") for name in names])
    return {name: by_block[name, "largest"] for name in names}


def _ends(measures: Collection[str]) -> list[Which]:
    return [end for measure, end in ENDS.items() if measure in measures]


def _eigenpairs(workspace: Workspace, needed: Sequence[Block]) -> dict[Block, PairsAndCost]:
    """The needed blocks; if one is new, together with all that the measures of this call need."""
    by_block: dict[Block, PairsAndCost] = workspace.cache.setdefault("eigenvalues", {})
    if all(block in by_block for block in needed):
        return by_block
    wanted = list(needed)
    if ends := _ends(workspace.asked):
        wanted.append((None, "both" if len(ends) > 1 else ends[0]))
    if workspace.asked & OF_ALL_LAYERS:
        weights = measured_weights(workspace, OF_LAYERS).values()
        wanted += [(name, "largest") for name in weights]
    missing = [block for block in dict.fromkeys(wanted) if block not in by_block]
    before, asked = workspace.cost, workspace.precision
    pairs = eigenpairs_of(
        workspace.products,
        [
            ParameterSpace(workspace.surface, None if name is None else [name])
            for name, _ in missing
        ],
        operator="hessian",
        which=[end for _, end in missing],
        seed=workspace.seed,
        max_products=max(asked.passes_left(0, price=PRODUCT, stage=PASS), 1),
        rtol=min(VALUE_RTOL, asked.rtol),
        confidence=asked.confidence,
        keep=[name is None and SQUARE in workspace.asked for name, _ in missing],
    )
    workspace.cache[SUBSPACE] = next((each.subspace for each in pairs if each.subspace), None)
    pairs = [dataclasses.replace(each, subspace=None) for each in pairs]
    cost = workspace.cost - before
    by_block.update((block, (each, cost)) for block, each in zip(missing, pairs, strict=True))
    return by_block
