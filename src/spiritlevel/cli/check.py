"""`spiritlevel check`: does this installation compute the expected numbers?

It measures tiny problems in float64 and a network on the embedded digits in float32, all with
fixed seeds, and compares the values with reference.json. The same command writes that file
(`--json`) and the documentation page (`--markdown`). With `--device` it asks the same of a GPU, see
`check_device`.
"""

from __future__ import annotations

import json as json_text
import math
import platform
from importlib import resources
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from .. import api
from ..analysis.reference_problems import ALL
from ..content import Cell, Table
from ..errors import SpiritlevelError
from ..records import __version__
from ..study.data import digits
from ..study.models import build
from . import check_device, console, inputs, options, subject, tables

FORMAT = "spiritlevel-reference-1"
DIGITS = "digits_mlp"
TOLERANCES = {"float64": 1e-9, "float32": 1e-4}  # relative
# Attention has no exact trace: its measures are those that every machine finds without probes.
CHOSEN = {"attention": ["curvature.ggn_trace", "curvature.lambda_max", "head.*", "softmax.gini"]}
Values = dict[str, dict[str, float]]  # by problem and measure


def check(
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Check this device instead, in float32 against the same values: cpu, cuda or mps.",
        ),
    ] = None,
    markdown: Annotated[
        bool,
        typer.Option(
            "--markdown", help="Print the expected values as Markdown, without measuring."
        ),
    ] = False,
    json: options.Json = None,
) -> None:
    """Check this installation, or a GPU, against reference values.

    Takes a few seconds. The exit code is 1 if a number differs by more than the tolerance.
    """
    talk = console.talk(json)
    expected = reference()
    if device is not None:
        _check_device(talk, inputs.parse_device(device), expected, json)
        return
    if markdown:
        talk.file.write(markdown_page(expected))
        return
    with console.progress("measuring"):
        values = measured()
    wrong = differences(values, expected["values"])
    total = sum(map(len, expected["values"].values()))
    tables.print_parts(talk, [_table(values, wrong)])
    console.note(talk, f"This is {_versions_in_words(versions())}.")
    console.note(talk, f"The reference is from {_versions_in_words(expected['versions'])}.")
    result = {"format": FORMAT, "versions": versions(), "values": values}
    subject.write_json(talk, json, json_text.dumps(result, indent=1))
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
    wanted = {name: expected["values"][name] for name in ALL}
    with console.progress("measuring") as show:
        rows = check_device.compared(device, wanted, show=show)
        faster = {
            kind: check_device.worst(
                check_device.compared(device, wanted, arithmetic=kind, show=show)
            ).error
            for kind in check_device.FASTER.get(device.type, ())
        }
    where = check_device.name_of(device)
    tables.print_parts(talk, [check_device.table(rows)])
    console.note(talk, f"This is {_versions_in_words(versions())}, float32 on {where}.")
    console.note(
        talk, f"The reference is from {_versions_in_words(expected['versions'])}, float64."
    )
    for kind, error in faster.items():
        console.note(talk, f"arithmetic={kind!r} is off by {error:.1e} at most.")
    result = check_device.as_dict(rows, faster, versions=versions(), device=where)
    subject.write_json(talk, json, json_text.dumps(result, indent=1))
    if wrong := [row for row in rows if not row.agrees]:
        most = check_device.worst(wrong)
        raise SpiritlevelError(
            f"{len(wrong)} of {len(rows)} numbers differ from the reference on {where}, "
            f"{most.measure} of {most.problem} most: by {most.error:.1e} of its value, where "
            f"{check_device.TOLERANCE:.0e} is allowed. Do not trust this device: measure with "
            "--device cpu, update torch or the driver, or open an issue with the output of "
            f"`spiritlevel check --device {device} --json -`."
        )
    talk.print(
        f"all {len(rows)} numbers agree to {check_device.TOLERANCE:.0e}; "
        f"the largest error is {check_device.worst(rows).error:.1e}"
    )


def measured() -> Values:
    """The values that this installation computes."""
    values = {
        name: _values(problem.model, problem.data, problem.loss, CHOSEN.get(name))
        for name, problem in ((name, make(torch.float64)) for name, make in ALL.items())
    }
    model = build("mlp", seed=0).eval()
    return values | {DIGITS: _values(model, [digits("test")], "cross_entropy")}


def _values(
    model: torch.nn.Module, data: Any, loss: str, measures: list[str] | None = None
) -> dict[str, float]:
    report = api.measure(model, data, loss=loss, measures=measures)
    return {name: m.value for name, m in report.items()}


def reference() -> dict[str, Any]:
    """The values that are expected."""
    text = resources.files(__package__).joinpath("reference.json").read_text(encoding="utf-8")
    return dict(json_text.loads(text))


def differences(found: Values, expected: Values) -> dict[tuple[str, str], float]:
    """Relative errors above the tolerance, by problem and measure.

    >>> differences({"relu_mlp": {"a": 2.0, "b": 1.0}}, {"relu_mlp": {"a": 2.0, "b": 1.25}})
    {('relu_mlp', 'b'): 0.2}
    """
    wrong = {}
    for problem, values in expected.items():
        for name, value in values.items():
            error = abs(found[problem].get(name, math.nan) - value) / abs(value)
            if not error <= TOLERANCES[_dtype(problem)]:  # also if it is NaN
                wrong[problem, name] = error
    return wrong


def versions() -> dict[str, str]:
    """Versions that the numbers depend on."""
    python = platform.python_version()
    return {"spiritlevel": __version__, "torch": torch.__version__, "Python": python}


def markdown_page(expected: dict[str, Any]) -> str:
    """The expected values as a documentation page."""
    return (
        "# Reference values\n\n"
        "Generated by `spiritlevel check --markdown`. To compare your installation with them:\n\n"
        "```text\nspiritlevel check\nspiritlevel check --device cuda\n```\n\n"
        "It measures a few tiny problems of `spiritlevel.analysis.reference_problems` in "
        "float64, and the network\n"
        "`mlp` with seed 0, not trained, on the 500 test digits in float32. Nothing is\n"
        "downloaded. Numbers must agree to a relative error of "
        f"{TOLERANCES['float64']:.0e} in float64 and\n{TOLERANCES['float32']:.0e} in float32. "
        "A larger difference means that something in the installation\ncomputes differently: a "
        "mathematics library, a random generator, a changed default.\n\n"
        "With `--device` the tiny problems are measured on that device in float32, and each number "
        "is held against\nits value here to a relative error of "
        f"{check_device.TOLERANCE:.0e}. On an NVIDIA GPU the largest errors of TF32 and bfloat16 "
        "are\nshown too, and not judged.\n\n"
        f"The values below are from {_versions_in_words(expected['versions'])}, on a CPU.\n"
        f"{''.join(_section(name, values) for name, values in expected['values'].items())}"
    )


def _section(problem: str, values: dict[str, float]) -> str:
    digits_shown = 12 if _dtype(problem) == "float64" else 6
    rows = "".join(f"| `{name}` | {value:.{digits_shown}g} |\n" for name, value in values.items())
    return f"\n## `{problem}`, {_dtype(problem)}\n\n| measure | value |\n| --- | --- |\n{rows}"


def _dtype(problem: str) -> str:
    return "float32" if problem == DIGITS else "float64"


def _versions_in_words(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _table(found: Values, wrong: dict[tuple[str, str], float]) -> Table:
    rows: list[list[Cell]] = []
    for problem, values in found.items():
        off = sum(place[0] == problem for place in wrong)
        tolerance = f"{TOLERANCES[_dtype(problem)]:.0e}"
        rows.append([problem, len(values), len(values) - off, tolerance])
    return Table(["problem", "numbers", "agree", "tolerance"], rows)
