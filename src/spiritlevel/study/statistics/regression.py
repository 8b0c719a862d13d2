"""The regression table of paper 000 (Table 3): a line through measure and gap, and correlations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from ...notebooks import aligned
from .correlations import Correlation, kendall, p_of_t, pearson, spearman
from .intervals import percent
from .points import Array, Numbers, as_floats, finite_points, numpy, why_undefined


@dataclasses.dataclass(frozen=True)
class Regression:
    """target ≈ slope·measure + intercept by least squares, and how closely they go together."""

    slope: float
    intercept: float
    slope_stderr: float
    p_slope: float
    r_squared: float
    pearson: Correlation
    spearman: Correlation
    kendall: Correlation
    n: int
    excluded: int
    log: bool  # whether the measure's natural logarithm is regressed upon
    reason: str = ""

    def rows(self) -> list[tuple[str, str]]:
        """Metric and value in the order in which the paper prints them."""
        ends = f"[{self.pearson.low:.4f}, {self.pearson.high:.4f}]"
        return [
            ("Linear regression slope", f"{self.slope:.5g}"),
            ("Intercept", f"{self.intercept:.5g}"),
            ("p (slope)", f"{self.p_slope:.4g}"),
            ("Slope standard error", f"{self.slope_stderr:.4g}"),
            ("R²", f"{self.r_squared:.4f}"),
            ("Pearson r", f"{self.pearson.value:.4f}"),
            (f"{percent(self.pearson.confidence)} CI (Pearson r)", ends),
            ("p (Pearson)", f"{self.pearson.p:.4g}"),
            ("Spearman ρ", f"{self.spearman.value:.4f}"),
            ("p (Spearman)", f"{self.spearman.p:.4g}"),
            ("Kendall τ", f"{self.kendall.value:.4f}"),
            ("p (Kendall)", f"{self.kendall.p:.4g}"),
            ("n", str(self.n)),
            ("excluded", str(self.excluded)),
        ]

    def __str__(self) -> str:
        heading = "metric (of log measure)" if self.log else "metric"
        lines = [aligned([(heading, "value"), *self.rows()])]
        return "\n".join(lines + [f"Undefined: {self.reason}."] * bool(self.reason))


def regression(
    values: Numbers,
    target: Numbers,
    *,
    log: bool = False,
    confidence: float = 0.95,
) -> Regression:
    """Regress the target on the measure.

    Args:
        values: of the measure, one a run; None or a non-finite number leaves the run out.
        target: such as the generalization gap.
        log: regress on log(measure); runs where it is not positive are left out and counted.
        confidence: of the correlations' intervals.
    """
    np = numpy()
    x = as_floats(values, "values")
    if log:
        x = np.log(x, out=np.full_like(x, np.nan), where=x > 0)
    points = finite_points(values=x, target=target)
    x, y = points.columns
    reason = why_undefined(points, measure=x, target=y)
    line = (math.nan,) * 5 if reason else _line(x, y)

    def correlation(of: Callable[..., Correlation]) -> Correlation:
        return dataclasses.replace(of(x, y, confidence=confidence), excluded=points.excluded)

    return Regression(
        *line,
        pearson=correlation(pearson),
        spearman=correlation(spearman),
        kendall=correlation(kendall),
        n=points.n,
        excluded=points.excluded,
        log=log,
        reason=reason,
    )


def _line(x: Array, y: Array) -> tuple[float, float, float, float, float]:
    """Slope, intercept, standard error and p of the slope, R²."""
    unit_x, unit_y = float(abs(x).max()), float(abs(y).max())  # so that no square can overflow
    dx, dy = x / unit_x - (x / unit_x).mean(), y / unit_y - (y / unit_y).mean()
    xx, yy, xy = float(dx @ dx), float(dy @ dy), float(dx @ dy)
    slope = xy / xx
    left = dy - slope * dx
    degrees = len(x) - 2
    stderr = math.sqrt(float(left @ left) / degrees / xx)
    r = xy / math.sqrt(xx * yy)
    scale = unit_y / unit_x
    intercept = unit_y * float((y / unit_y).mean() - slope * (x / unit_x).mean())
    return slope * scale, intercept, stderr * scale, p_of_t(r, degrees), r**2
