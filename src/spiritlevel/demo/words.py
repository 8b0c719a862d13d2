"""What the demo shows and what it does not: every sentence is computed from the numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from .agreement import agreement
from .networks import EARLY, LONG, NOISE, NUM_TRAIN, SGD, gap_difference
from .result import CLEAN, SHOWN, Demo, spread_of

FLATNESS = tuple(name for name in SHOWN if name != "softmax.gini")
STEADY = 1.001  # largest over smallest below this is round-off of float32, not movement


def findings(demo: Demo) -> dict[str, str]:
    """Headings and paragraphs."""
    return {
        "Exactness": _exactness(demo),
        "Label noise": _label_noise(demo),
        "Order": _order(demo),
        "Confidence": _confidence(demo),
        "Invariance": _invariance(demo),
        "Layers": _layers(demo),
    }


def limits(demo: Demo) -> list[str]:
    """What must not be concluded, with the numbers that say so."""
    found = [demo.agreement(m, names) for names in demo.groups().values() for m in FLATNESS]
    said = [
        f"{len(demo.trained)} networks of one architecture on one data set with one seed are an "
        "anecdote, not evidence. In a population of such networks the order may be another: of the "
        f"{len(found)} rank agreements of flatness measures above, random orders match or beat "
        f"{sum(a.chance > 0.05 for a in found)} more often than one time in twenty.",
        _gap_noise(demo),
        "That flat minima cause small gaps is not shown: the measures and the gap are both results "
        "of the same training.",
        f"The measures are taken on the {NUM_TRAIN} images each network was trained on, with the "
        "labels it was trained with. For cross-entropy and a piecewise-linear network curvature "
        "depends on the labels only through the trained weights.",
        "Training and test digits are by the same writers; the gap to new hands may be another.",
    ]
    if demo.quick:
        said.insert(0, "This was a quick run: the networks are not at minima, only on their way.")
    unfinished = [name for name, t in demo.trained.items() if not t.reached]
    if unfinished:
        said.insert(
            0,
            "Stopped by the limit of epochs before the training loss was as low as intended: "
            f"{_joined(map(repr, unfinished))}.",
        )
    return said


def _exactness(demo: Demo) -> str:
    measurements = [m for report in demo.reports.values() for m in report.values()]
    exact = sum(m.exact for m in measurements)
    first = next(iter(demo.reports.values()))
    n = first.settings["num_samples"]
    return (
        f"{exact} of {len(measurements)} measurements are exact values on these {n} images, not "
        f"estimates. A report took {first.cost.passes(n)} a sample."
    )


def _label_noise(demo: Demo) -> str:
    gaps = {name: t.gap for name, t in demo.trained.items()}
    others = {name: gap for name, gap in gaps.items() if name != NOISE}
    next_name = max(others, key=lambda name: others[name])
    noisy = demo.trained[NOISE]
    sharpest = {m: _sharpest(demo, m) for m in FLATNESS}
    by_noise = [m for m, name in sharpest.items() if name == NOISE]
    sentences = [
        f"The network trained on 30 % wrong labels has a gap of {noisy.gap:.2f} and "
        f"{noisy.test_accuracy:.1%} test accuracy; the largest other gap is "
        f"{others[next_name]:.2f} ({next_name!r})."
    ]
    if by_noise:
        sentences.append(f"It is the sharpest of all by {_joined(by_noise)}.")
    sentences += [
        f"By {m} the sharpest is {name!r}." for m, name in sharpest.items() if name != NOISE
    ]
    if noisy.gap > 2 * others[next_name]:
        sentences.append(
            "A difference that large decides any linear correlation over these networks; ranks, "
            "used here, bound its weight."
        )
    return " ".join(sentences)


def _order(demo: Demo) -> str:
    parts = []
    for group, names in demo.groups().items():
        found = {m: demo.agreement(m, names) for m in FLATNESS}
        best = max(found.values(), key=lambda a: a.tau)
        tied = [m for m, a in found.items() if a.tau == best.tau]
        parts.append(f"among {group} {_joined(tied)} with τ = {best}, chance {best.chance:.0%}")
    return (
        f"Of the flatness measures, closest to the order of the gap are {'; '.join(parts)}. Chance "
        "is the share of random orders that agree or disagree as strongly."
    )


def _confidence(demo: Demo) -> str:
    early, middle, late = (demo.trained[name] for name in (EARLY, SGD, LONG))
    ratio = {m: _value(demo, SGD, m) / _value(demo, LONG, m) for m in SHOWN}
    flatter = [f"{m} is {ratio[m]:.3g} times smaller" for m in FLATNESS if ratio[m] > 1]
    difference, error = gap_difference(late, middle)
    sentences = [
        f"{EARLY!r}, {SGD!r} and {LONG!r} are one run at three moments. From the second to the "
        f"third softmax.gini goes from {_value(demo, SGD, 'softmax.gini'):.2g} to "
        f"{_value(demo, LONG, 'softmax.gini'):.2g} (it is 0 for a network that is certain) and "
        f"test accuracy from {middle.test_accuracy:.1%} to {late.test_accuracy:.1%}; the gap "
        f"{'grows' if difference > 0 else 'falls'} by {abs(difference):.2f} ± {error:.2f}."
    ]
    if flatter:
        sentences.append(f"It then counts as flatter: {_joined(flatter)}.")
    sharper = [m for m in FLATNESS if _value(demo, EARLY, m) > _value(demo, SGD, m)]
    if sharper and early.gap < middle.gap:
        sentences.append(
            f"Stopped early it is sharper by {_joined(sharper)}, and its gap is the smaller one: "
            f"{early.gap:.2f} against {middle.gap:.2f}."
        )
    names = list(demo.trained)
    gini = [_value(demo, name, "softmax.gini") for name in names]
    orders = [f"{m} {agreement([_value(demo, n, m) for n in names], gini)}" for m in FLATNESS]
    sentences.append(f"Kendall's τ with softmax.gini is for {_joined(orders)}.")
    return " ".join(sentences)


def _invariance(demo: Demo) -> str:
    layer = {m: spread_of(v) for m, v in demo.layerwise.curves.items()}
    neuron = {m: spread_of(v) for m, v in demo.neuronwise.curves.items()}
    low, high = demo.layerwise.factors[0], demo.layerwise.factors[-1]
    text = (
        f"Multiplying layer fc1 of {SGD!r} by α and dividing fc2 by α leaves its outputs as they "
        f"were (largest change {demo.layerwise.change:.1g} of the largest output). For α from "
        f"{low:g} to {high:g}, {_movement(layer)}. With every second neuron only, "
        f"{_movement(neuron)}."
    )
    trace = demo.layerwise.curves["curvature.trace"]
    sharpest = max(_value(demo, name, "curvature.trace") for name in demo.reports)
    if max(trace) > sharpest:
        text += (
            f" The rescaled copy reaches a trace of {max(trace):.3g}, more than any of the "
            f"{len(demo.reports)} networks ({sharpest:.3g}), and is the same function."
        )
    return text


def _movement(spread: dict[str, float]) -> str:
    moves = [f"{m} moves by a factor of {s:.3g}" for m, s in spread.items() if s > STEADY]
    stays = [m for m, s in spread.items() if s <= STEADY]
    parts = moves + ([f"{_joined(stays)} {'stay' if len(stays) > 1 else 'stays'}"] if stays else [])
    return _joined(parts)


def _layers(demo: Demo) -> str:
    tops: dict[str, list[float]] = {}
    for report in demo.reports.values():
        rows = report.layers["relative.kappa"]
        top = max(rows, key=lambda layer: rows[layer].value)
        share = rows[top].value / sum(m.value for m in rows.values())
        tops.setdefault(top, []).append(share)
    n = len(demo.reports)
    parts = [
        f"{layer} in {len(shares)} of {n} networks ({min(shares):.0%} to {max(shares):.0%} of the "
        "sum)"
        for layer, shares in tops.items()
    ]
    return f"The layer that carries most of relative.kappa is {_joined(parts)}."


def _gap_noise(demo: Demo) -> str:
    """How many pairs of networks have gaps that the test images tell apart."""
    clean = [demo.trained[name] for name in demo.groups()[CLEAN]]
    pairs = [gap_difference(a, b) for a, b in itertools.combinations(clean, 2)]
    within = sum(abs(difference) <= 2 * error for difference, error in pairs)
    return (
        f"Differences of the gap may be chance: of the {len(pairs)} pairs of networks with clean "
        f"labels, {within} differ in it by less than two standard errors over "
        f"{len(clean[0].test_losses)} test images."
    )


def _value(demo: Demo, name: str, measure: str) -> float:
    return demo.reports[name][measure].value


def _sharpest(demo: Demo, measure: str) -> str:
    return max(demo.reports, key=lambda name: _value(demo, name, measure))


def _joined(parts: Iterable[str]) -> str:
    parts = list(parts)
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
