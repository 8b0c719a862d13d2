"""`spiritlevel check`: does this installation compute the expected numbers?

With `--device` it asks the same of a GPU.
"""

from __future__ import annotations

import json as json_text
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..ground.errors import SpiritlevelError
from . import console, inputs, options, outputs
from .common import examples

if TYPE_CHECKING:
    import torch


@examples("""\b
Examples:
  spiritlevel check
  spiritlevel check --json src/spiritlevel/cli/reference.json --overwrite
""")
def check(
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Check this device instead, in float32 against the same values: cpu, cuda or mps.",
        ),
    ] = None,
    json: options.Json = None,
) -> None:
    """Check this installation, or a GPU, against reference values.

    Takes a few seconds. The exit code is 1 if a number differs by more than the tolerance.
    """
    from . import check_values, tables

    talk = console.talk(json)
    expected = check_values.reference()
    if device is not None:
        _check_device(talk, inputs.parse_device(device), expected, json)
        return
    with console.progress("measuring"):
        values = check_values.measured()
    wrong = check_values.differences(values, expected["values"])
    total = sum(map(len, expected["values"].values()))
    tables.print_parts(talk, [check_values.table(values, wrong)])
    console.note(talk, f"This is {check_values.versions_in_words(check_values.versions())}.")
    console.note(
        talk, f"The reference is from {check_values.versions_in_words(expected['versions'])}."
    )
    result = {"format": check_values.FORMAT, "versions": check_values.versions(), "values": values}
    outputs.write_json(talk, json, json_text.dumps(result, indent=1))
    if wrong:
        worst = max(wrong, key=lambda place: wrong[place])
        raise SpiritlevelError(
            f"{len(wrong)} of {total} numbers differ from the reference, {worst[1]} of {worst[0]} "
            f"most: by {wrong[worst]:.1e} of its value. Install another version of torch, or open "
            "an issue with the output of `spiritlevel check --json -`."
        )
    talk.print(f"all {total} numbers agree with the reference")


def _check_device(
    talk: Console, device: torch.device, expected: dict[str, Any], json: str | None
) -> None:
    from ..verbs.reference_problems import ALL
    from . import check_values, tables

    wanted = {name: expected["values"][name] for name in ALL}
    with console.progress("measuring") as show:
        rows = check_values.compared(device, wanted, show=show)
        faster = {
            kind: check_values.worst(
                check_values.compared(device, wanted, arithmetic=kind, show=show)
            ).error
            for kind in check_values.FASTER.get(device.type, ())
        }
    where = check_values.name_of(device)
    tables.print_parts(talk, [check_values.device_table(rows)])
    console.note(
        talk,
        f"This is {check_values.versions_in_words(check_values.versions())}, float32 on {where}.",
    )
    console.note(
        talk,
        f"The reference is from {check_values.versions_in_words(expected['versions'])}, float64.",
    )
    for kind, error in faster.items():
        console.note(talk, f"arithmetic={kind!r} is off by {error:.1e} at most.")
    result = check_values.as_dict(rows, faster, versions=check_values.versions(), device=where)
    outputs.write_json(talk, json, json_text.dumps(result, indent=1))
    if wrong := [row for row in rows if not row.agrees]:
        most = check_values.worst(wrong)
        raise SpiritlevelError(
            f"{len(wrong)} of {len(rows)} numbers differ from the reference on {where}, "
            f"{most.measure} of {most.problem} most: by {most.error:.1e} of its value, where "
            f"{check_values.DEVICE_TOLERANCE:.0e} is allowed. Do not trust this device: measure "
            "with --device cpu, update torch or the driver, or open an issue with the output of "
            f"`spiritlevel check --device {device} --json -`."
        )
    talk.print(
        f"all {len(rows)} numbers agree to {check_values.DEVICE_TOLERANCE:.0e}; "
        f"the largest error is {check_values.worst(rows).error:.1e}"
    )
