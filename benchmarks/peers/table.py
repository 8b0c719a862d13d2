"""The recorded answers as tables and a picture, for docs/peers.md and README.md."""

from __future__ import annotations

import collections
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt

HERE = pathlib.Path(__file__).parent
RESULTS, DOCS = HERE.parent / "results", HERE.parents[1] / "docs"
MARKS = "<!-- table of peers: {} -->"
COLORS = dict(
    zip(
        (
            "spiritlevel",
            "BackPACK",
            "nngeometry",
            "laplace-torch",
            "PyHessian",
            "curvlinops",
            "hessian-eigenthings",
        ),
        ("#1b6ca8", "#c66b3d", "#d9a441", "#3f9c95", "#7a9a3a", "#8a5a9e", "#6b6b6b"),
        strict=True,
    )
)
NETWORKS = (
    "MLP",
    "MLP, untrained",
    "tanh-MLP",
    "VGG-small",
    "ResNet-18",
    "ResNet-18, untrained",
    "ResNet-50",
    "ViT-B/16",
    "GPT-2 small",
    "head of GPT-2",
)
QUESTIONS = (
    "exact trace",
    "trace to 10 %",
    "trace to 3 %",
    "trace to 1 %",
    "default trace",
    "traces of all layers to 10 %",
    "GGN trace to 10 %",
    "Hessian diagonal",
    "largest eigenvalue to 1 %",
    "density",
)
SHORT = (  # what the README shows, with rows in which others are ahead
    ("VGG-small", "exact trace"),
    ("VGG-small", "largest eigenvalue to 1 %"),
    ("ResNet-18", "exact trace"),
    ("ResNet-18", "traces of all layers to 10 %"),
    ("ResNet-18", "largest eigenvalue to 1 %"),
    ("ResNet-18, untrained", "trace to 10 %"),
    ("ViT-B/16", "trace to 10 %"),
    ("GPT-2 small", "trace to 10 %"),
    ("GPT-2 small", "trace to 1 %"),
    ("GPT-2 small", "largest eigenvalue to 1 %"),
)
EXACT = 1e-4  # relative error up to which float32 alone is at work
NOISE = {"wall": 1.1, "processor": 1.33}  # of times, by the clock
EQUAL = 1.2  # times our memory that still count as the same
STATES = ("answered", "not reached", "too long", "failed", "does not offer")  # best first
Cell = dict[str, Any]
Record = dict[str, Any]
Row = tuple[str, str]


def main() -> None:
    records = recorded()
    if not records:
        sys.exit("Nothing was recorded yet: run benchmarks/peers/run.py first.")
    insert(DOCS / "peers.md", "\n".join(table(found) for found in records.values()))
    insert(DOCS.parent / "README.md", "\n".join(short_table(found) for found in records.values()))
    for device, found in records.items():
        picture(found, DOCS / "pictures" / f"peers-{device}.svg")


def recorded() -> dict[str, Record]:
    """What there is, by device."""
    paths = {device: RESULTS / f"peers-{device}.json" for device in ("cuda", "cpu")}
    return {
        device: json.loads(path.read_text(encoding="utf-8"))
        for device, path in paths.items()
        if path.exists()
    }


def insert(page: pathlib.Path, made: str) -> None:
    """Put it between the marks of the page."""
    text = page.read_text(encoding="utf-8")
    begin, end = MARKS.format("begin"), MARKS.format("end")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n\n{made}\n{end}{after}", encoding="utf-8")


def table(found: Record) -> str:
    """The networks, one line a question and network with one column a library, and who is first."""
    lines = [f"On {where(found)}.", ""]
    lines += [*of_networks(found), ""]
    lines += [*of_answers(found, rows_of(found)), "", standing(found), ""]
    return "\n".join(lines)


def short_table(found: Record) -> str:
    """A few of the questions on large networks; of others, in how many rows each is first."""
    chosen = [row for row in SHORT if row in rows_of(found)]
    answers = ["", *of_answers(found, chosen), ""] if chosen else []
    return "\n".join([f"On {where(found)}:", *answers, standing(found), ""])


def where(found: Record) -> str:
    """The machine, and what a second is there."""
    machine = found["machine"]
    clock = ", seconds of processor time" if machine.get("clock") == "processor" else ""
    return f"{machine['device']}, torch {machine['torch']}, float32{clock}"


def rows_of(found: Record) -> list[Row]:
    """Networks and questions that all libraries were asked, in order."""
    asked = collections.defaultdict(set)
    for cell in found["cells"]:
        asked[cell["network"], cell["question"]].add(cell["library"])
    whole = [row for row, libraries in asked.items() if libraries == set(found["versions"])]
    return sorted(whole, key=lambda row: (NETWORKS.index(row[0]), QUESTIONS.index(row[1])))


def of_networks(found: Record) -> list[str]:
    lines = [
        "| network | weights | data | loss | accuracy | products for a trace to 10; 3; 1 % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in sorted(found["networks"], key=NETWORKS.index):
        facts = found["networks"][name]
        spread = facts["spread of one product"].get("trace")
        counts = "—"
        if spread is not None:
            counts = "; ".join(f"{products(spread, to):,}" for to in (0.1, 0.03, 0.01))
        shape = " × ".join(str(size) for size in facts["data"])
        lines.append(
            f"| {name} | {facts['parameters']:,} | {shape} | {facts['loss']:.2g} "
            f"| {facts['accuracy']:.0%} | {counts} |"
        )
    return lines


def products(spread: float, tolerance: float) -> int:
    """With random signs: so many that a 95 % interval is as narrow as the tolerance."""
    return max(1, -int(-((1.96 * spread / tolerance) ** 2) // 1))


def of_answers(found: Record, rows: Sequence[Row]) -> list[str]:
    libraries = list(found["versions"])
    lines = ["| network | question | " + " | ".join(libraries) + " |"]
    lines.append("| --- | --- | " + " | ".join("---" for _ in libraries) + " |")
    for row in rows:
        cells = by_library(found, row)
        texts = []
        for library in libraries:
            text = written(cells[library], cells["spiritlevel"])
            texts.append(f"**{text}**" if library in first(cells, found) else text)
        lines.append("| " + " | ".join([*row, *texts]) + " |")
    return lines


def by_library(found: Record, row: Row) -> dict[str, list[Cell]]:
    """All ways of each library, the best first."""
    cells = collections.defaultdict(list)
    for cell in found["cells"]:
        if (cell["network"], cell["question"]) == row:
            cells[cell["library"]].append(cell)
    for ways in cells.values():
        ways.sort(
            key=lambda c: (
                not is_as_accurate(c),
                STATES.index(c["state"]),
                not is_as_accurate(c) and c["error"] is not None,
                c["seconds"] or float("inf"),
            )
        )
    return cells


def first(cells: dict[str, list[Cell]], found: Record) -> list[str]:
    """The libraries that answer in the shortest time, up to what noise hides."""
    noise = NOISE[found["machine"].get("clock", "wall")]
    best = {
        library: ways[0]["seconds"] for library, ways in cells.items() if is_as_accurate(ways[0])
    }
    return [library for library, took in best.items() if took <= noise * min(best.values())]


def is_as_accurate(cell: Cell) -> bool:
    """Whether it was as near as the question asks, where its error is known."""
    off = 0.0 if cell["error"] is None else cell["error"]
    return cell["state"] == "answered" and bool(off <= tolerance(cell["question"]))


def tolerance(question: str) -> float:
    """The one that the question names; of a default, 10 %, and else that of single precision."""
    words = question.split()
    if "%" in words:
        return float(words[words.index("%") - 1]) / 100
    return 0.1 if question == "default trace" else EXACT


def written(ways: Sequence[Cell], ours: Sequence[Cell]) -> str:
    """The fastest way; and one that takes our memory, if the fastest takes more."""
    best = ways[0]
    text = of_cell(best)
    limit = EQUAL * (ours[0]["peak_bytes"] or float("inf"))
    if best["state"] == "answered" and (best["peak_bytes"] or 0) > limit:
        frugal = [c for c in ways if is_as_accurate(c) and (c["peak_bytes"] or limit) <= limit]
        if frugal:
            text += f"; {frugal[0]['way']}: {of_cell(frugal[0], named=False)}"
    return text


def of_cell(cell: Cell, *, named: bool = True) -> str:
    state, note = cell["state"], cell["note"]
    if state == "does not offer":
        return "not offered"
    if state == "failed":
        return f"fails: {reason(note)}"
    if state == "too long" and cell["error"] is None:
        if cell["products"]:
            return f"{cell['products']:,} products, about {short(cell['seconds'])} s"
        return f"too long: {note}"
    parts = [f"{short(cell['seconds'])} s"]
    if cell["error"] is not None:
        is_exact = cell["error"] < EXACT and not cell["question"].startswith("largest")
        parts.append("exact" if is_exact else f"± {percent(cell['error'])}")
    if cell["peak_bytes"]:
        parts.append(f"{short(cell['peak_bytes'] / 1e9)} GB")
    if named and cell["way"] and cell["library"] not in ("BackPACK", "nngeometry"):
        times = f" × {cell['products']}" if cell["products"] else ""
        parts.append(cell["way"] + times)
    text = ", ".join(parts)
    return text if is_as_accurate(cell) else f"not reached: {text}"


def reason(note: str) -> str:
    """What a reader needs of an error."""
    known = {
        "deprecated since version 1.9": "needs a function that torch no longer has",
        "NotImplementedError": "a layer that it does not know",
        "co_varnames": "a model that its converter cannot trace",
        "Expecting types": "a model that its converter cannot trace",
        "backpropagation quantity": "a layer that it does not know",
    }
    return next((said for part, said in known.items() if part in note), note)


def percent(error: float) -> str:
    if error < 0.0001:
        return "0.01 % at most"
    return f"{100 * error:.2g} %" if error < 0.0995 else f"{100 * error:.0f} %"


def short(number: float) -> str:
    """Two digits, or all before the point."""
    return f"{number:.0f}" if number >= 10 else f"{number:.2g}"


def standing(found: Record) -> str:
    """In how many rows each library is first."""
    rows = rows_of(found)
    counts = collections.Counter(
        library for row in rows for library in first(by_library(found, row), found)
    )
    said = ", ".join(f"{library} in {count}" for library, count in counts.most_common())
    return f"Of {len(rows)} rows in the full table, first up to the noise of the machine: {said}."


def picture(found: Record, path: pathlib.Path) -> None:
    """Seconds of every library, one line a question; hollow where the accuracy was not reached."""
    rows = rows_of(found)[::-1]
    figure, axes = plt.subplots(figsize=(9, 0.24 * len(rows) + 1.6))
    for turn, (library, color) in enumerate(COLORS.items()):
        best = [by_library(found, row).get(library, [{"seconds": None}])[0] for row in rows]
        dots = [(cell, place) for place, cell in enumerate(best) if cell["seconds"] is not None]
        faces = [color if is_as_accurate(cell) else "white" for cell, _ in dots]
        seconds = [c["seconds"] for c, _ in dots]
        places = [place + 0.09 * (3 - turn) for _, place in dots]  # so that none hides another
        axes.scatter(seconds, places, c=faces, edgecolors=color, s=26, zorder=3)
        axes.scatter([], [], c=color, label=library)
    axes.set_xscale("log")
    axes.set_xlabel("seconds for the whole call, at the accuracy asked for (log scale)")
    axes.set_yticks(range(len(rows)), [f"{n}: {q}" for n, q in rows], fontsize=7)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.grid(axis="both", alpha=0.25)
    title = f"Time of a first call on {where(found)}"
    axes.set_title(
        f"{title}\nhollow: the accuracy was not reached, or the time is extrapolated", fontsize=9
    )
    place = {"loc": "upper center", "bbox_to_anchor": (0.4, -0.6 / (0.24 * len(rows) + 1.6))}
    axes.legend(**place, ncols=4, fontsize=8, frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
