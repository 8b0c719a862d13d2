"""One page for a reader who has two minutes: does flatness go with generalization, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from spiritlevel.records.content import Cell, Table
from spiritlevel_lab.claims.population import OVER_ALL, WITHIN
from spiritlevel_lab.claims.rows import OUTCOMES

from . import markdown
from .markdown import escape
from .population_lines import LEVELS, MeasuredPopulation, MeasureLine, View
from .results import ScaleResult, cited, tally
from .scale_table import population_in_words

FIGURE = "experiments/what-holds.svg"
SIDES = ("smaller", "larger", "unclear")
COLUMNS = ("the flatter networks have", *SIDES)
LEGEND = (
    "Each row: a population's claimed measure and one outcome. *Within settings*: networks that "
    "differ by their seed alone, with the interval of a permutation test. *Over all*: networks of "
    "all settings, with the widest of the 95 % intervals that count settings, what they share, and "
    "seeds. Networks that missed the criterion of their study are left out."
)
ADVICE = (
    "**Train to one loss.** Compare only networks that came to it: the training loss changes every "
    "curvature.",
    "**Repeat each setting with several seeds**, and ask within settings first. There flatness "
    "says most, and a permutation test has the power to see it.",
    "**Vary training in many ways.** Six optimizers at two batch sizes and two decays say no more "
    "than six. `spiritlevel study preflight` says beforehand what a design can see.",
    "**Report three outcomes**: both gaps and the test error. They disagree.",
    "**Use a measure that rescaling cannot change**: `neuron.rho_sum` or `relative.kappa_std`; "
    "`head.kappa` withstands rescaling of whole layers alone. [Trust](trust.md) tries it on your "
    "network.",
    "**Report what else differs**: training loss, confidence (`softmax.gini`), weight norm.",
)


def what_holds(
    results: Sequence[Sequence[ScaleResult]], found: Sequence[MeasuredPopulation]
) -> str:
    """The page, as Markdown; `found` are the populations that the picture shows."""
    nearest = [scales[0] for scales in results]
    lines = [line for population in found for line in population.lines]
    parts = ["# What holds"]
    if lines:
        parts += [
            _answer(lines),
            f"![Rank correlations of flatness with three outcomes, by population]({FIGURE})",
            LEGEND,
            f"The populations: {'; '.join(map(_population, found))}.",
            f"Of {len(lines)} results, each of one measure of flatness in one of these "
            "populations, the 95 % interval is clear of 0 on either side in so many:",
            markdown.table(Table(COLUMNS, [_counts(lines, view) for view in _views()])),
            "Measures of one population share its networks, so the results are not independent. Of "
            "measures that tell nothing, about one in 40 would be clear on each side.",
        ]
    parts += [
        "## What came of the papers' claims",
        f"{tally(nearest)} [Reproductions](experiments.md) has each of them, with its rule, its "
        "scale, and what its verdict was before the present rules.",
        "## What to do",
        "\n".join(f"{place}. {each}" for place, each in enumerate(ADVICE, start=1)),
    ]
    return "\n\n".join(parts) + "\n"


def _answer(lines: Sequence[MeasureLine]) -> str:
    """One sentence, with the numbers of the table in it."""
    error = {level: _sides(lines, (level, "test_error")) for level in LEVELS}
    gap = _sides(lines, (WITHIN, "gap"))
    return (
        "**Does a flatter network generalize better?** Between networks trained in one way, the "
        f"flatter ones have a clearly smaller test error in {error[WITHIN]['smaller']} of "
        f"{len(lines)} results (larger in {error[WITHIN]['larger']}) and a clearly smaller gap of "
        f"the losses in {gap['smaller']} (larger in {gap['larger']}); over networks trained in "
        f"different ways, the test error is clearly smaller in {error[OVER_ALL]['smaller']} "
        f"(larger in {error[OVER_ALL]['larger']})."
    )


def _views() -> list[View]:
    return [(level, outcome) for level in LEVELS for outcome in OUTCOMES]


def _sides(lines: Sequence[MeasureLine], view: View) -> dict[str, int]:
    sides = [line.side(view) for line in lines if view in line.views]
    return {side: sides.count(side) for side in SIDES}


def _counts(lines: Sequence[MeasureLine], view: View) -> list[Cell]:
    level, outcome = view
    return [f"{level}: {OUTCOMES[outcome]}", *_sides(lines, view).values()]


def _population(population: MeasuredPopulation) -> str:
    experiment = population.result.experiment
    return (
        f"[{escape(cited(experiment))}](experiments/{experiment.name}.md) "
        f"({escape(population_in_words(population.result))})"
    )
