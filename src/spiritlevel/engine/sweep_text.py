"""How a sweep got its numbers, for the reports."""

from __future__ import annotations

from .workspace import Workspace


def columns_text(workspace: Workspace) -> str:
    """How many columns the sweep took."""
    count = workspace.plan.num_columns
    return f"{count} column{'s' * (count != 1)}"


def probes_text(workspace: Workspace) -> str:
    """How many output probes were taken, and why not all columns."""
    asked_for = workspace.precision.method == "output_probes"
    why = "" if asked_for else f", which would take {workspace.plan.num_columns} passes"
    return f"{workspace.sweep_text}{why}"
