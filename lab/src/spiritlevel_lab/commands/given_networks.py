"""Networks that exist already, for `spiritlevel study measure`: found, and introduced."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence

from rich.console import Console

from spiritlevel.cli import console
from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.ground.files import write_atomically

from ..population.existing import columns, finding
from ..population.existing.columns import ColumnRoles, NetworkTable, repeated_settings
from ..population.settings.definition import Study
from ..population.settings.networks import axes_of
from ..statistics.clusters import MIN_CLUSTERS


def found(
    talk: Console,
    paths: list[str],
    names: str | None,
    roles: ColumnRoles,
    table: pathlib.Path | None,
) -> tuple[NetworkTable | None, ColumnRoles, Sequence[str]]:
    """The networks with the roles of their columns, and remarks; no networks if written only."""
    is_table = [path.lower().endswith(columns.ENDINGS) for path in paths]
    if any(is_table):
        for flag, given in (("--names", names), ("--table", table)):
            if given is not None:
                raise SpiritlevelError(
                    f"{flag} is for checkpoints in files and folders. Got the table {paths[0]!r}. "
                    "Leave it out."
                )
        if len(paths) > 1:
            raise SpiritlevelError(
                f"Give one table, or files and folders with checkpoints. Got {len(paths)} paths."
            )
        return columns.read_table(paths[0]), roles, ()
    networks = finding.find_networks(paths, names=names, roles=roles)
    if table is None:
        return networks.table, networks.roles, _remarks(networks)
    console.free(table)
    write_atomically(table, columns.table_text(networks.rows).encode("utf-8", "backslashreplace"))
    console.note(talk, f"written: {table}, with {len(networks.rows)} checkpoints")
    return None, roles, ()


def _remarks(found: finding.FoundNetworks) -> list[str]:
    remarks = []
    if found.beside:
        columns = ", ".join(found.beside)
        remarks.append(f"also found, and not used: {columns}. Use one with --setting or --outcome.")
    if found.one_run:
        remarks.append(
            "Some are checkpoints of one run, and such networks are alike. Give --setting "
            f"{finding.FOLDER} to count runs and not checkpoints, or only the last of each run."
        )
    return remarks


def introduce(talk: Console, study: Study, remarks: Sequence[str], *, judged: bool) -> None:
    """Say what will be measured, and what can be said of it in the end."""
    networks = study.networks
    console.note(talk, f"networks: {len(networks)}")
    axes = axes_of(networks)
    values = ", ".join(f"{axis} ({len(values)} values)" for axis, values in axes.items())
    repeated = repeated_settings(networks)
    counted = f"; {repeated} settings, some of them repeated" if repeated else ""
    console.note(talk, f"settings: {values or 'none'}{counted}")
    known = list(networks[0]["outcomes"])
    console.note(talk, f"outcomes: {', '.join(known) or 'none are given'}")
    for remark in remarks:
        console.note(talk, remark)
    if not judged:
        console.note(
            talk,
            "No outcome is known, so the networks are measured and nothing can be judged. Add a "
            "column such as test_accuracy, or give --test DATA.",
        )
    elif repeated and repeated < MIN_CLUSTERS:
        console.note(
            talk,
            f"Networks of one setting are alike, so verdicts count settings: {repeated} are too "
            f"few, at least {MIN_CLUSTERS} are needed. The numbers are shown without a verdict.",
        )
