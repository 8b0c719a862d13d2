"""Weight probes that the measures of a kind share."""

from __future__ import annotations

from .data_pass import Needs
from .precision import Precision
from .sweep.feature_scales import POWERS
from .sweep.sums import RowKind
from .weight_space.metrics import Metric
from .weight_space.probes import PILOT, WeightProbes
from .workspace import Workspace


def shared_probes(workspace: Workspace, kind: RowKind, rows: tuple[str, ...]) -> WeightProbes:
    """The weight probes of a kind, which all its measures share."""

    def make() -> WeightProbes:
        scales = workspace.features.scales[kind] if kind in POWERS else None
        metric = Metric(workspace.surface, kind, rows, scales)
        return WeightProbes(
            workspace.products,
            metric,
            seed=workspace.seed,
            num_samples=workspace.run(Needs()).num_samples,
            few=workspace.precision.max_passes - 2 * sketch_size(workspace.precision) < PILOT,
        )

    return workspace.once(("probes", kind), make)


def sketch_size(precision: Precision) -> int:
    """How many dominant directions are removed first; each takes two passes."""
    if not precision.way.sketch:
        return 0
    return max(1, min(PILOT, precision.max_passes // 3))
