"""Weight probes that all measures of a kind share."""

from __future__ import annotations

from .data_pass import Needs
from .precision import Precision
from .sweep.feature_scales import POWERS
from .sweep.sums import RowKind
from .weight_space.metrics import Metric
from .weight_space.probes import PILOT, WeightProbes
from .workspace import Workspace


def shared_probes(workspace: Workspace, kind: RowKind, rows: tuple[str, ...]) -> WeightProbes:
    """The probes of a kind, which all its measures share."""
    key = ("probes", kind)
    if key not in workspace.cache:
        scales = workspace.feature_scales[kind] if kind in POWERS else None
        metric = Metric(workspace.surface, kind, rows, scales)
        count = workspace.run(Needs()).num_samples
        workspace.cache[key] = WeightProbes(
            workspace.products,
            metric,
            seed=workspace.seed,
            num_samples=count,
            few=workspace.precision.max_passes - 2 * sketch_size(workspace.precision) < PILOT,
        )
    probes: WeightProbes = workspace.cache[key]
    return probes


def sketch_size(precision: Precision) -> int:
    """How many dominant directions are removed first; each takes two passes."""
    if precision.method != "hutch++":
        return 0
    return max(1, min(PILOT, precision.max_passes // 3))
