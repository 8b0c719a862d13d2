"""The eigenvalues that the measures of one call need, of the network and of its layers, together.

A pass over the data takes a forward and the graph of the gradient whatever is multiplied then. So
the Lanczos runs of the whole network and of every layer go side by side and share their passes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from ..engine.weight_space.eigenvalues import eigenpairs_of
from ..engine.weight_space.lanczos import Eigenpairs, Subspace, Which
from ..engine.weight_space.parameter_space import ParameterSpace
from ..engine.workspace import Workspace
from ..records import Cost
from .layer_weights import measured_weights

ENDS: dict[str, Which] = {
    "curvature.lambda_max": "largest",
    "curvature.lambda_min": "smallest",
}
OF_LAYERS = "scaled.lambda_max"
OF_ALL_LAYERS = {OF_LAYERS, "scaled.lambda_max_max"}

SQUARE = "curvature.trace_squared"  # needs fewer probes where a Lanczos run is there already
KNOWN = "subspace of the eigenvalues"

Block = tuple[str | None, Which]  # a parameter, or all of them, and an end of its spectrum
Found = tuple[Eigenpairs, Cost]  # the cost is of everything that was found together


def of_network(workspace: Workspace, name: str) -> tuple[Eigenpairs, int, Cost]:
    """The pairs that a measure in ENDS is among, its place among them, and what they cost."""
    asked = _ends(workspace.asked | {name})
    block: Block = (None, "both" if len(asked) > 1 else asked[0])
    pairs, cost = _found(workspace, [block])[block]
    return pairs, asked.index(ENDS[name]), cost


def known_of_network(workspace: Workspace) -> Subspace | None:
    """What they tell of the Hessian beyond themselves; None where nobody asked for them.

    It is as large as many copies of the weights, so whoever asks is the one to use it up.
    """
    for name in ENDS:
        if name in workspace.asked:
            of_network(workspace, name)
            break
    found: Subspace | None = workspace.cache.pop(KNOWN, None)
    return found


def of_weights(workspace: Workspace, names: Sequence[str]) -> dict[str, Found]:
    """The largest of the block of each of these parameters."""
    found = _found(workspace, [(name, "largest") for name in names])
    return {name: found[name, "largest"] for name in names}


def _ends(measures: Collection[str]) -> list[Which]:
    return [end for measure, end in ENDS.items() if measure in measures]


def _found(workspace: Workspace, needed: Sequence[Block]) -> dict[Block, Found]:
    """What is needed now; if it is not there yet, with all that the measures of this call need."""
    known: dict[Block, Found] = workspace.cache.setdefault("eigenvalues", {})
    if all(block in known for block in needed):
        return known
    wanted = list(needed)
    if ends := _ends(workspace.asked):
        wanted.append((None, "both" if len(ends) > 1 else ends[0]))
    if workspace.asked & OF_ALL_LAYERS:
        weights = measured_weights(workspace, OF_LAYERS).values()
        wanted += [(name, "largest") for name in weights]
    missing = [block for block in dict.fromkeys(wanted) if block not in known]
    before = workspace.cost
    pairs = eigenpairs_of(
        workspace.products,
        [
            ParameterSpace(workspace.surface, None if name is None else [name])
            for name, _ in missing
        ],
        operator="hessian",
        which=[end for _, end in missing],
        seed=workspace.seed,
        max_products=workspace.precision.max_passes,
        keep=[name is None and SQUARE in workspace.asked for name, _ in missing],
    )
    workspace.cache[KNOWN] = next((found.subspace for found in pairs if found.subspace), None)
    pairs = [dataclasses.replace(found, subspace=None) for found in pairs]
    cost = workspace.cost - before
    known.update((block, (found, cost)) for block, found in zip(missing, pairs, strict=True))
    return known
