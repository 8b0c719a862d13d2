"""The tables of docs/uses/quantization.md and pruning.md from the recorded results, as Markdown.

`python experiments/uses/tables.py`
"""

from __future__ import annotations

import json
import math
from typing import Any

from networks import RESULTS

NAMES = {
    "digits": "A small convolutional network on the 8×8 digits",
    "lenet5": "LeNet-5 on MNIST",
    "resnet18": "ResNet-18 of width 32 on CIFAR-10",
    "efficientnet": "EfficientNet-Lite0 from ImageNet weights on CIFAR-10",
    "language": "A language model of bytes",
}
BITS = {
    "uniform": "uniform",
    "error": "squared error",
    "trace": "HAWQ-V2",
    "curvature": "curvature (default)",
    "joint": "joint",
    "rise": "with the slope",
}
UNITS = {
    "joint": "joint (default)",
    "curvature": "curvature",
    "rise": "with the slope",
    "fisher": "diagonal Fisher",
    "magnitude": "magnitude",
    "random": "random",
}


def main() -> None:
    """Print them all."""
    for use, table in (("quantization", bit_widths), ("pruning", deletions)):
        recorded = json.loads((RESULTS / f"{use}.json").read_text("utf-8"))["summary"]
        for network, summary in recorded.items():
            whole = text(summary["test_accuracy"], summary["n"])
            print(f"{NAMES[network]}, test accuracy; whole {whole}, n = {summary['n']}:\n")
            print("\n".join(table(summary)), "\n")
            [ranks] = [value for key, value in summary.items() if key.startswith("rank")]
            told = ", ".join(f"{name} {text(value, 9)}" for name, value in ranks.items())
            print(f"Rank correlation with the actual rise: {told}\n")


def bit_widths(summary: dict[str, Any]) -> list[str]:
    """One row for each budget, one column for each rule."""
    budgets = dict.fromkeys(key.split()[0] for key in summary["plans"])
    rules = [rule for rule in BITS if any(key.endswith(rule) for key in summary["plans"])]
    lines = _heading(["bits per weight", *(BITS[rule] for rule in rules)])
    for budget in budgets:
        cells = [summary["plans"].get(f"{budget} {rule}") for rule in rules]
        told = [text(cell["test_accuracy"], summary["n"]) if cell else "–" for cell in cells]
        lines.append(_row([f"{float(budget):g}", *told]))
    return lines


def deletions(summary: dict[str, Any]) -> list[str]:
    """Two rows for each share: at once, and after the fine-tune."""
    shares = dict.fromkeys(key.split()[0] for key in summary["shares"])
    rules = [rule for rule in UNITS if any(key.endswith(rule) for key in summary["shares"])]
    lines = _heading(["deleted", "", *(UNITS[rule] for rule in rules)])
    for share in shares:
        cells = [summary["shares"][f"{share} {rule}"] for rule in rules]
        at_once = [text(cell["test_accuracy"], summary["n"]) for cell in cells]
        tuned = [text(cell["tuned_accuracy"], summary["n"]) for cell in cells]
        lines.append(_row([f"{float(share):.0%}".replace("%", " %"), "at once", *at_once]))
        lines.append(_row(["", "fine-tuned", *tuned]))
    return lines


def text(value: dict[str, Any], count: int) -> str:
    """Mean ± half of the interval; with more digits where the interval is narrow."""
    half = value["half_width"]
    if half is None or count < 2:
        return f"{value['mean']:.3f}"
    digits = 3 if half == 0 else min(4, max(3, 1 - math.floor(math.log10(half))))
    return f"{value['mean']:.{digits}f} ± {half:.{digits}f}"


def _heading(cells: list[str]) -> list[str]:
    return [_row(cells), _row(["---"] * len(cells))]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
