"""The contract of a measure: every claim of its card in every case, to be executed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..measures import get
from ..verbs import reference_problems
from . import claims
from .claims import ClosedForm
from .moves import NETWORKS
from .under_test import UnderTest, claim


@dataclasses.dataclass(frozen=True)
class ClaimCheck:
    """One claim of a card in one case: calling it raises an AssertionError where it is false."""

    measure: str
    claim: str
    case: str  # the network, the move; "" where there is only one
    run: Callable[[], None]

    def __call__(self) -> None:
        """Execute it."""
        self.run()

    def __str__(self) -> str:
        return "-".join(part for part in (self.measure, self.claim, self.case) if part)


def checks(
    measure: str,
    *,
    options: Mapping[str, Any] | None = None,
    closed_form: ClosedForm | None = None,
) -> list[ClaimCheck]:
    """Every claim of a measure's card, to be called one by one, as by `pytest.mark.parametrize`.

    Args:
        options: those of the measure, so that it can be computed and that what moves is seen.
        closed_form: of (model, inputs, targets, loss, options) for one linear layer, with the loss
            "mse" or "cross_entropy": the values by name of the measure, worked out by hand.

    >>> print(*checks("softmax.gini")[:3], sep="; ")
    softmax.gini-complete; softmax.gini-record; softmax.gini-state
    """
    tested = UnderTest(get(measure), options)
    return [
        ClaimCheck(measure, claim, case, functools.partial(run, tested, *arguments))
        for claim, case, run, *arguments in _cases(tested, closed_form)
    ]


def check_measure(
    measure: str,
    *,
    options: Mapping[str, Any] | None = None,
    closed_form: ClosedForm | None = None,
) -> None:
    """Execute every claim of a measure's card; an AssertionError says which are false.

    >>> check_measure("softmax.gini")
    """
    failed = []
    all_checks = checks(measure, options=options, closed_form=closed_form)
    for check in all_checks:
        try:
            check()
        except Exception as error:  # also of the measure's own code
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            failed.append(f"\n  {check}: {kind}{error}")
    claim(not failed, f"{len(failed)} of {len(all_checks)} checks failed:{''.join(failed)}")


def _cases(
    tested: UnderTest, closed_form: ClosedForm | None
) -> Iterator[tuple[Any, ...]]:  # claim, case, function, its arguments beside what is tested
    yield "complete", "", claims.card_is_complete
    yield "record", "", claims.results_carry_name_and_settings
    yield "state", "", claims.state_is_untouched
    yield "seed", "", claims.the_same_seed_gives_the_same_value
    for network in reference_problems.ALL:
        yield "finite", network, claims.finite_and_the_same_in_both_precisions, network
        yield "cost", network, claims.planned_cost_is_the_counted_cost, network
    for move, networks in NETWORKS.items():
        for network in networks:
            yield "symmetry", f"{network}-{move}", claims.moves_as_the_card_says, move, network
    if closed_form is not None:
        for network in ("linear_regression", "softmax_regression"):
            yield "closed_form", network, claims.value_is_the_closed_form, network, closed_form
    if tested.card.needs.sweep:
        for method in ("output_probes", "hutchinson", "hutch++"):
            yield "estimate", method, claims.estimates_agree_with_the_exact_value, method
