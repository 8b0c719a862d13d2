"""Parts of a claim that were judged only after the runs were made: how far they may count."""

from __future__ import annotations

from collections.abc import Sequence

from .findings import Agreement, Finding

HOW = (  # for the end of a rule that has such parts
    "What was added after the runs were made counts in one way alone: where it is not so, the "
    "claim is at most partly reproduced."
)


def with_added(agrees: Agreement, added: Sequence[Finding]) -> Agreement:
    """The verdict by the rule of before the runs; added parts can lower it and never raise it.

    >>> with_added("yes", [Finding("it falls", "undecided", "")])
    'partly'
    >>> with_added("undecided", [Finding("it falls", "held", "")])
    'undecided'
    """
    fit = all(finding.result in ("held", "not refuted") for finding in added)
    return agrees if agrees != "yes" or fit else "partly"
