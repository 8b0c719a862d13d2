"""The tables of reproduction/ on uses and penalties from the recorded results, as Markdown.

Quantization, pruning with differences between the rules, sharpness at the edge of stability, and
penalties beside plain training.

`python experiments/uses/tables.py`
"""

from __future__ import annotations

import json
import math
from typing import Any

from networks import RESULTS
from summaries import mean_and_interval

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
POWERS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

AT_ONCE = {"accuracy": "test_accuracy", "loss": "test_loss"}
TUNED = {"accuracy": "tuned_accuracy", "loss": "tuned_loss"}


def main() -> None:
    """Print them all."""
    for use, table in (("quantization", bit_widths), ("pruning", deletions)):
        recorded = json.loads((RESULTS / f"{use}.json").read_text("utf-8"))
        for network, summary in recorded["summary"].items():
            print(heading(network, summary))
            print("\n".join(table(summary)), "\n")
            [ranks] = [value for key, value in summary.items() if key.startswith("rank")]
            told = ", ".join(f"{name} {text(value, 9)}" for name, value in ranks.items())
            print(f"Rank correlation with the actual rise: {told}\n")
            if use == "pruning":
                rows = [row for row in recorded["rows"] if row["network"] == network]
                print("\n".join(differences(rows, outcome_of(summary))), "\n")
    recorded = json.loads((RESULTS / "learning_rates.json").read_text("utf-8"))
    for part in ("edge", "images"):
        if recorded.get(part):
            steps = recorded["steps"][part] if isinstance(recorded["steps"], dict) else None
            print(f"Sharpness over threshold, {part}, {steps} steps:\n")
            print("\n".join(edges(recorded[part])), "\n")
    recorded = json.loads((RESULTS / "penalties.json").read_text("utf-8"))
    for rate, part in recorded["rates"].items():
        print(f"Penalties, a small ResNet with BatchNorm on the digits, rate {rate}:\n")
        print("\n".join(penalties(part)), "\n")


def outcome_of(summary: dict[str, Any]) -> str:
    """What is looked at: the loss of a language model, where it is known, or the accuracy."""
    return "loss" if "test_perplexity" in summary else "accuracy"


def heading(network: str, summary: dict[str, Any]) -> str:
    """The network, and how good it is."""
    outcome = outcome_of(summary)
    whole = text(summary[AT_ONCE[outcome]], summary["n"])
    if outcome == "accuracy":
        return f"{NAMES[network]}, test accuracy; whole {whole}, n = {summary['n']}:\n"
    perplexity = text(summary["test_perplexity"], summary["n"])
    error = summary["relative_error"]["mean"]
    return (
        f"{NAMES[network]}, test loss in nats per byte; whole {whole} (perplexity {perplexity}), "
        f"n = {summary['n']}, error of ρ(j) from the probes {error:.1%}:\n"
    )


def differences(rows: list[dict[str, Any]], outcome: str) -> list[str]:
    """The joint rule, or ½ρ(j) where there is none, against the others, paired by seed."""
    lines = []
    for when, keys in (("at once", AT_ONCE), ("fine-tuned", TUNED)):
        for share in dict.fromkeys(each["share"] for row in rows for each in row["rows"]):
            by_rule: dict[str, list[float]] = {}
            for row in rows:
                for each in row["rows"]:
                    if each["share"] == share:
                        by_rule.setdefault(each["rule"], []).append(each[keys[outcome]])
            first = "joint" if "joint" in by_rule else "curvature"
            told = []
            for rule in ("curvature", "fisher", "magnitude"):
                if rule != first:
                    gaps = [a - b for a, b in zip(by_rule[first], by_rule[rule], strict=True)]
                    told.append(f"{rule} {text(mean_and_interval(gaps), len(gaps))}")
            lines.append(
                f"{first} at {share:.0%} {when}, {outcome} minus that by {', '.join(told)}"
            )
    return lines


def edges(summary: dict[str, Any]) -> list[str]:
    """One row for each optimizer and rate."""
    lines = _heading(["", "first row", "largest", "last fifth", "last loss"])
    for name, found in summary.items():
        cells = [found.get(key) for key in ("first", "largest", "last_fifth", "last_loss")]
        told = [text(cell, cell["n"]) if cell else "–" for cell in cells]
        optimizer, _, rest = name.partition(" ")
        lines.append(_row([f"{optimizer}, η = {rest}", *told]))
    return lines


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
        outcome = outcome_of(summary)
        at_once = [text(cell[AT_ONCE[outcome]], summary["n"]) for cell in cells]
        tuned = [text(cell[TUNED[outcome]], summary["n"]) for cell in cells]
        lines.append(_row([f"{float(share):.0%}".replace("%", " %"), "at once", *at_once]))
        lines.append(_row(["", "fine-tuned", *tuned]))
    return lines


def penalties(recorded: dict[str, Any]) -> list[str]:
    """One row for each way of training; – for a seed whose loss became infinite."""
    lines = _heading(
        [
            "training",
            "`relative.kappa`, each seed",
            "at equal confidence",
            "norm of the weights",
            "accuracy, %",
        ]
    )
    for name in recorded["summary"]:
        rows = [row for row in recorded["rows"] if row["method"] == name]
        kept = [row for row in rows if not row["diverged"]]
        cells = [
            ", ".join(short(row["relative.kappa"]) if row in kept else "–" for row in rows),
            ", ".join(
                short(row["equal"]["relative.kappa"]) if row in kept else "–" for row in rows
            ),
        ]
        ends = (short(end(row["norm"] for row in kept)) for end in (min, max))
        cells.append("–".join(dict.fromkeys(ends)))
        accuracies = (f"{row['test_accuracy']:.1%}"[:-1] if row in kept else "–" for row in rows)
        cells.append(", ".join(accuracies))
        label = (
            name.replace("weight=", "").replace("kind=", "").replace(", adaptive_bias=False", "")
        )
        lines.append(_row([f"`{label}`" if "(" in name else name, *cells]))
    return lines


def short(value: float) -> str:
    """Two digits, or all before the point; a power of ten where that is long."""
    if value == 0:
        return "0"
    sign, size = "−" if value < 0 else "", abs(value)
    power = math.floor(math.log10(size))
    if -5 < power < 6:
        rounded = float(f"{size:.2g}")
        return sign + (f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:.2g}")
    return f"{sign}{size / 10**power:.1f}·10{str(power).translate(POWERS)}"


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
