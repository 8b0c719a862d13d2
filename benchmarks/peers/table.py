"""The recorded answers as tables and pictures, for docs/peers.md and README.md."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent
RESULTS, DOCS = HERE.parent / "results", HERE.parents[1] / "docs"
MARKS = "<!-- table of peers: {} -->"
TOOLS = ("spiritlevel", "BackPACK", "PyHessian", "curvlinops", "hessian-eigenthings")
COLORS = ("#1b6ca8", "#c66b3d", "#7a9a3a", "#8a5a9e", "#6b6b6b")
NETWORKS = (
    "MLP",
    "VGG-small",
    "ResNet-18",
    "ResNet-50",
    "ViT-B/16",
    "GPT-2 small",
    "head of GPT-2",
)
QUESTIONS = ("exact trace", "trace to 10 %", "trace to 3 %", "trace to 1 %", "default trace")
QUESTIONS += ("traces of all layers to 10 %", "GGN trace", "largest eigenvalue", "density")
SHORT = (  # what the README shows
    ("VGG-small", "exact trace"),
    ("ResNet-18", "exact trace"),
    ("VGG-small", "trace to 10 %"),
    ("ResNet-18", "trace to 10 %"),
    ("GPT-2 small", "trace to 10 %"),
    ("VGG-small", "largest eigenvalue"),
    ("head of GPT-2", "exact trace"),
)
Rows = list[dict[str, Any]]


def main() -> None:
    parts = []
    for device in ("cuda", "cpu"):
        recorded = RESULTS / f"peers-{device}.json"
        if recorded.exists():
            found = json.loads(recorded.read_text(encoding="utf-8"))
            parts.append(table(found["rows"], found["machine"]))
            picture(found["rows"], DOCS / "pictures" / f"peers-{device}.svg")
            if device == "cuda":
                insert(DOCS.parent / "README.md", short_table(found["rows"], found["machine"]))
    if not parts:
        sys.exit("Nothing was recorded yet: run benchmarks/peers/run.py first.")
    insert(DOCS / "peers.md", "\n".join(parts))


def insert(page: pathlib.Path, made: str) -> None:
    """Put it between the marks of the page."""
    text = page.read_text(encoding="utf-8")
    begin, end = MARKS.format("begin"), MARKS.format("end")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{made}\n{end}{after}", encoding="utf-8")


def table(rows: Rows, machine: dict[str, Any]) -> str:
    """One line a question and network, one column a tool."""
    return _table(rows, machine, in_order(rows), cell)


def in_order(rows: Rows) -> list[tuple[str, str]]:
    """Networks and questions, the networks by size."""
    asked = dict.fromkeys((r["network"], r["question"]) for r in rows)
    return sorted(asked, key=lambda each: (NETWORKS.index(each[0]), QUESTIONS.index(each[1])))


def short_table(rows: Rows, machine: dict[str, Any]) -> str:
    """A few of the questions, with a dagger instead of notes."""
    return _table(rows, machine, SHORT, short_cell)


def _table(
    rows: Rows,
    machine: dict[str, Any],
    asked: Sequence[tuple[str, str]],
    write: Callable[[dict[str, Any] | None], str],
) -> str:
    lines = [f"On {machine['device']}, torch {machine['torch']}:", ""]
    lines.append("| network | question | " + " | ".join(TOOLS) + " |")
    lines.append("| --- | --- | " + " | ".join("---" for _ in TOOLS) + " |")
    for network, question in asked:
        by_tool = {
            r["tool"]: r for r in rows if (r["network"], r["question"]) == (network, question)
        }
        cells = [write(by_tool.get(tool)) for tool in TOOLS]
        lines.append(f"| {network} | {question} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cell(row: dict[str, Any] | None) -> str:
    if row is None or row["seconds"] is None:
        return "—" if row is None or row["note"] in ("", "no answer") else row["note"]
    parts = [f"{short(row['seconds'])} s"]
    if row["error"] is not None:
        parts.append(distance(row["error"], row["question"]))
    if row["peak_bytes"]:
        parts.append(f"{short(row['peak_bytes'] / 1e9)} GB")
    return ", ".join(parts) + (f" ({row['note']})" if row["note"] else "")


def distance(error: float, question: str) -> str:
    """How far an answer is from what it is held against."""
    if error < 1e-5:
        return "exact" if "trace" in question else "the same value"
    return "under 0.1% off" if error < 0.0005 else f"{error:.1%} off"


def short(number: float) -> str:
    """Two digits, or all before the point."""
    return f"{number:.0f}" if number >= 100 else f"{number:.2g}"


def short_cell(row: dict[str, Any] | None) -> str:
    if row is None or row["seconds"] is None or not row["note"]:
        return cell(row)
    return cell({**row, "note": ""}) + " †"


def picture(rows: Rows, path: pathlib.Path) -> None:
    """Seconds of every tool, one line a question; hollow where the answer is of no use."""
    questions = in_order(rows)[::-1]
    figure, axes = plt.subplots(figsize=(8, 0.32 * len(questions) + 1.2))
    for tool, color in zip(TOOLS, COLORS, strict=True):
        mine = [r for r in rows if r["tool"] == tool and r["seconds"] is not None]
        places = [questions.index((r["network"], r["question"])) for r in mine]
        faces = ["white" if r["note"] or (r["error"] or 0) > 0.1 else color for r in mine]
        axes.scatter([r["seconds"] for r in mine], places, c=faces, edgecolors=color, zorder=3)
        axes.scatter([], [], c=color, label=tool)  # filled in the legend, whatever comes first
    axes.set_xscale("log")
    axes.set_xlabel(
        "seconds for the whole call; hollow: more than 10 % off, or tolerance not reached"
    )
    axes.set_yticks(range(len(questions)), [f"{n}, {q}" for n, q in questions], fontsize=8)
    axes.grid(axis="x", alpha=0.3)
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    axes.legend(**place, ncols=len(TOOLS), fontsize=8, frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, bbox_inches="tight")


if __name__ == "__main__":
    main()
