"""How far values of one quantity may lie apart, and what they must say of it themselves."""

from __future__ import annotations

import math

import torch

from ..measures import Card, Measurement
from ..records import Status

MAXIMUM = r"\max"  # how the formula of a maximum over layers starts
ROUND_OFF = {torch.float64: 1e-8, torch.float32: 1e-4}  # 7 digits through a few layers of sums


def claim(holds: bool, otherwise: str) -> None:
    """Raise an AssertionError that says what is wrong, also where Python leaves out asserts."""
    if not holds:
        raise AssertionError(otherwise)


def close(one: float, other: float) -> bool:
    """Equal up to round-off."""
    return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12 * abs(other))


def margin(*results: Measurement, rel: float, probes: bool = False) -> float:
    """How far values of one quantity may lie apart.

    Round-off, and the residuals: an eigenvalue lies within its residual. With other probes also 5
    standard errors of the difference, which chance exceeds once in a million.
    """
    spread = 5 * math.hypot(*(m.stderr or 0.0 for m in results)) if probes else 0.0
    largest = max(abs(m.value) for m in results)
    return rel * largest + sum(m.residual or 0.0 for m in results) + spread


def agree(
    one: Measurement,
    other: Measurement,
    when: str,
    *,
    rel: float = ROUND_OFF[torch.float64],
    probes: bool = False,
) -> None:
    """Claim that two values are the same; `when` completes "one is this, the other is that ..."."""
    apart = abs(one.value - other.value)
    near = apart <= margin(one, other, rel=rel, probes=probes)
    claim(near, f"it is {one.value!r}, and {other.value!r} {when}")


def error_bars(card: Card, found: Measurement) -> None:
    """A value is exact, or says how far it may be off."""
    if found.stderr is not None:
        _interval(card, found)
        return
    if card.found_by == "search" and found.status is Status.NOT_CONVERGED:
        claim(bool(found.residual and found.residual > 0), "it has not converged to nothing")
        claim(bool(found.text), "it has not converged, and does not say what to do")
        return
    claim(found.status is Status.OK, f"its status is {found.status.value!r}: {found.text}")
    claim(found.interval is None, "it has an interval and no stderr")
    if found.residual is None:
        claim(found.exact, "it is not exact, and has neither stderr nor residual")
    else:
        claim(found.residual >= 0, "its residual is negative")
        small = found.residual <= 1e-7 * abs(found.value)
        claim(small or not found.exact, f"it is exact with a residual of {found.residual:.2g}")


def _interval(card: Card, found: Measurement) -> None:
    assert found.stderr is not None
    claim(not found.exact, "it is exact, and has a stderr")
    claim(found.stderr > 0, "its stderr is not above 0")
    claim(found.interval is not None, "it has a stderr and no interval")
    assert found.interval is not None
    low, high = found.interval
    claim(close((low + high) / 2, found.value), "its interval is not around the value")
    half = (high - low) / 2  # at 95 % this is 1.96 standard errors, and more with few probes
    least = 1.95 * found.stderr - 1e-15 * abs(found.value)
    claim(half >= least, f"its interval is ±{half:.2g} with a stderr of {found.stderr:.2g}")
    precise = half <= found.settings["rtol"] * abs(found.value)
    # the precision is asked of the sum: layers and their maximum only show their error
    if not card.formula.startswith(MAXIMUM):
        wanted = Status.OK if precise else Status.NOT_CONVERGED
        claim(found.status is wanted, f"its status is {found.status.value!r} at ±{half:.2g}")
        claim(precise or "max_passes" in found.text, "it does not say what to do next")
    named = "probes" in found.text or "draws" in found.text
    claim(named, "it does not say how many probes or draws it took")
