"""One page for a reader who has five minutes: which claims survive, and what to measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spiritlevel.content import Cell, Figure, Panels, Table
from spiritlevel.measures import get, names
from spiritlevel.pages import markdown
from spiritlevel.pages.markdown import escape
from spiritlevel.papers.judging.experiment import PAPERS, Experiment
from spiritlevel.papers.judging.scale import WORDS

from .in_short import in_short
from .population_lines import (
    LOSS,
    OVER_ALL,
    WITHIN,
    MeasuredPopulation,
    MeasureLine,
    judged_rows,
    populations,
)
from .results import ScaleResult, tally
from .scale_table import population_in_words

SCOPE = (
    "A name with [head] is of the last layer alone, as those of the family head always are; the "
    "others are of the whole network. The widest interval counts settings, or groups of settings "
    "that share a value, such as an optimizer with its rate, or seeds, whichever leaves more room; "
    "where nothing that they share has four values or more, it is that over settings. Within "
    "settings, too, it counts settings or seeds. Held fixed: by "
    "partial rank correlation, with the widest interval. The training loss is that at the end, "
    "uncertainty is 1 − ‖p‖², which is a factor of every curvature here."
)
HEAD = (
    "# What holds",
    "Which claims of the five papers survive here, within training settings and across them, and "
    "what to measure in practice. Five minutes. Everything below is made from the recorded runs "
    "by `python experiments/pages.py`; [the experiments](experiments.md) have all of it, with the "
    "rules, the scale and what is missing. A result at a smaller scale than the paper's says what "
    "happened at that scale.",
)
TWO_QUESTIONS = (
    "Two questions are easily mixed up. *Across settings*: if one way of training gives flatter "
    "networks than another, does it also give a smaller gap? *Within one setting*: of two networks "
    "that differ by their seed alone, does the flatter one have the smaller gap? The answers need "
    "not agree. Over all networks together they are mixed, and the mixture can have the sign of "
    "neither. A large value means sharp for every measure of curvature, so a positive correlation "
    "means that flatter networks generalize better."
)
ADVICE = (
    "**Train first.** Compare only networks that have fitted their data equally well. The loss of "
    "the training data changes every curvature, and at the loss of chance a network is flat for "
    "no reason that matters.",
    "**Ask within a setting.** Repeat each setting with several seeds, and look at the seeds of "
    "one setting before all runs together. `spiritlevel study report` shows both, and says when "
    "their signs differ. Count settings, not networks, when you ask how sure it is, and vary how "
    "networks are trained in many ways: 24 settings made of 6 optimizers with their rates may say "
    "no more than 6.",
    "**Use a measure that rescaling cannot change.** Rescaling of single neurons and of whole "
    "layers leaves `neuron.rho_sum` and `relative.kappa_std` as they are; of these two, "
    "`relative.kappa` and `head.kappa` withstand only that of whole layers, and the trace and the "
    "largest eigenvalue neither. `spiritlevel audit` tries the symmetries on your own network.",
    "**Report what else differs.** Training loss, confidence (`softmax.gini`) and weight norm "
    "(`norms.weight`), and both gaps. Confidence is a factor of every curvature of "
    "cross-entropy: holding it fixed leaves another measure, not the same one cleaned.",
)
FURTHER_TITLE = "### The same on other networks"
FURTHER_SHOWN = 2  # measures of each population
FURTHER_INTRODUCTION = (
    "Some experiments were also run with other networks, images or rates, further from the "
    "paper's. Of each of these populations: the first two measures of the experiment, and their "
    "rank correlations with the gap of the losses. They are not counted in the table at the top. "
    "Of measures that tell nothing, about one interval in 20 would miss 0."
)
FURTHER_COLUMNS = (
    "experiment, preset",
    "networks",
    "trained",
    "settings",
    "measure",
    WITHIN,
    OVER_ALL,
)


def what_holds(results: Sequence[Sequence[ScaleResult]]) -> str:
    """The page, as Markdown; of each experiment all results, the nearest to the paper first."""
    nearest = [scales[0] for scales in results]
    found = [each for scales in results if (each := populations(scales))]
    lines = [line for first, *_ in found for line in first.lines]
    parts = [
        *HEAD,
        "## In short",
        f"**How did the papers' experiments come out?** {tally(nearest)}",
        *(in_short(lines) if lines else []),
    ]
    parts += ["## The claims", *_claims(nearest)]
    if found:
        parts += ["## Flatness and the gap", TWO_QUESTIONS, *_populations(found, lines)]
    parts += ["## What to measure", "\n".join(f"{i}. {each}" for i, each in enumerate(ADVICE, 1))]
    return "\n\n".join(parts) + "\n"


def _claims(results: Sequence[ScaleResult]) -> list[str]:
    """By paper: how many claims fared how, and which."""
    blocks = []
    for number, title in PAPERS.items():
        own = [result for result in results if result.experiment.name.startswith(f"{number}-")]
        if not own:
            continue
        lines = []
        for word in WORDS:
            chosen = [_link(result.experiment) for result in own if result.verdict == word]
            if chosen:
                lines.append(f"- {word}: {'; '.join(chosen)}")
        blocks += [f"**{number}, {escape(title)}**", "\n".join(lines)]
    return blocks


def _link(experiment: Experiment) -> str:
    return f"[{escape(experiment.title)}](experiments/{experiment.name}.md)"


def _populations(
    found: Sequence[Sequence[MeasuredPopulation]], lines: Sequence[MeasureLine]
) -> list[str]:
    """Of each experiment the nearest one at length, and the others in a table."""
    return [
        escape(SCOPE),
        *(part for first, *_ in found for part in _one(first)),
        "### All of them",
        "\n".join(_in_words(lines)),
        f"These are {len(lines)} lines: of measures that tell nothing, about one in 40 would have "
        "an interval above 0 by chance, in each column, and one in 40 below.",
        f"Of these measures, rescaling of layers changes {_listing(_moved(lines))}.",
        *further_populations([each for _, *others in found for each in others]),
    ]


def _one(population: MeasuredPopulation) -> list[str]:
    """A population: its networks, what each measure says, and the figure."""
    result, own = population.result, population.lines
    levels = own[0].levels
    losses = [row[LOSS] for row in judged_rows(result)]
    parts = [
        f"### {result.experiment.name}: {escape(population_in_words(result))}",
        f"{levels.pooled.n} trained networks of {levels.clustered.clusters} settings, with a "
        f"training loss of {min(losses):.2g} to {max(losses):.2g}. Rank correlations (Spearman) "
        "with the gap of the losses:",
        markdown.table(Table(list(own[0].cells), [list(line.cells.values()) for line in own])),
    ]
    if any(figure.fitted for figure in _drawn(result.outcome.figure)):
        parts += [
            f"![{escape(result.experiment.title)}](experiments/{result.stem}.svg)",
            "*Each colour that has a line is a way of training.*",
        ]
    return parts


def _drawn(figure: Figure | Panels | None) -> Sequence[Figure]:
    if isinstance(figure, Panels):
        return figure.figures
    return [] if figure is None else [figure]


def further_populations(populations: Sequence[MeasuredPopulation]) -> list[str]:
    """A section with a table; nothing where each experiment has one population."""
    rows = [row for population in populations for row in _further_rows(population)]
    return (
        [FURTHER_TITLE, FURTHER_INTRODUCTION, markdown.table(Table(FURTHER_COLUMNS, rows))]
        if rows
        else []
    )


def _further_rows(population: MeasuredPopulation) -> list[list[Cell]]:
    result = population.result
    name = ", ".join(filter(None, (result.experiment.name, result.record.preset)))
    rows: list[list[Cell]] = []
    for line in population.lines[:FURTHER_SHOWN]:
        n, settings = line.levels.pooled.n, line.levels.clustered.clusters
        views = [line.views[view] for view in (WITHIN, OVER_ALL)]
        rows.append([name, population_in_words(result), n, settings, line.measure, *views])
    return rows


def _in_words(lines: Sequence[MeasureLine]) -> list[str]:
    """What the table shows, as a list."""
    chosen: dict[str, Callable[[MeasureLine], bool]] = {
        "The 95 % interval lies above 0 within settings": lambda e: e.levels.within.low > 0,
        "It lies below 0 within settings": lambda e: e.levels.within.high < 0,
        "It lies above 0 over all networks, counting settings": lambda e: e.rises,
        "It lies below 0 over all networks, counting settings": lambda e: e.falls,
        "It lies above 0 with training loss and uncertainty held fixed": (
            lambda e: e.equal_both.low > 0
        ),
        "It lies below 0 with both held fixed": lambda e: e.equal_both.high < 0,
        "The signs differ between the levels (correlations below 0.1 left out)": lambda e: (
            e.levels.disagrees
        ),
    }
    return [
        f"- {words}: {_listing([f'{e.measure} in {e.population}' for e in lines if is_so(e)])}."
        for words, is_so in chosen.items()
    ]


def _moved(lines: Sequence[MeasureLine]) -> list[str]:
    used = dict.fromkeys(line.measure.partition("[")[0] for line in lines)
    known = set(names())
    return [name for name in used if name in known and "layer_rescale" not in get(name).invariant]


def _listing(each: Sequence[str]) -> str:
    """Measures as code, with the population where it is named.

    >>> _listing(["head.kappa in 002-fig-5", "norms.weight"])
    '`head.kappa` in 002-fig-5, `norms.weight`'
    """
    quoted = []
    for text in each:
        name, between, where = text.partition(" in ")
        quoted.append(f"`{name}`{between}{where}")
    return ", ".join(quoted) or "none"
