"""Building measurements of Hessian quantities that are certified, or named as what they are."""

from __future__ import annotations

from collections.abc import Iterable

from .._core import Measurement, Status
from ..estimators.exact import Pass
from ..estimators.work import Work


def hessian_measurement(
    work: Work,
    run: Pass,
    name: str,
    value: float,
    data_stderr: float | None,
    parameters: Iterable[str],
) -> Measurement:
    """Exact where the certificate holds for all `parameters`; elsewhere the GGN's value."""
    bent = [p for p in parameters if not work.certificates[p].linear]
    common = {"cost": run.cost, "settings": work.settings(), "data_stderr": data_stderr}
    if not bent:
        return Measurement(name, value, exact=True, quantity="Hessian", **common)  # type: ignore[arg-type]
    others = f" and {len(bent) - 1} more" if len(bent) > 1 else ""
    text = (
        "of the GGN, not the Hessian: not certified for "
        f"{bent[0]!r}{others}, {work.certificates[bent[0]].reason}. The Hessian's value needs "
        "products with the Hessian (Hutchinson probes in weight space)."
    )
    return Measurement(
        name,
        value,
        exact=False,
        status=Status.GGN,
        quantity="GGN",
        text=text,
        **common,  # type: ignore[arg-type]
    )
