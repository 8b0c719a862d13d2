"""One page for a reader who has five minutes: which claims survive, and what to measure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...measures import get, names
from ...pages import markdown
from ...pages.content import Cell, Figure, IntervalEstimate, Table
from ...pages.markdown import escape
from ...study.statistics import Levels
from ..experiment import PAPERS, Experiment, Row
from ..judging.findings import estimate
from ..judging.population import GAP, measured
from ..judging.scale import WORDS
from ..judging.settings import between_estimate, levels_of
from ..judging.trained import NotAsked
from ..library_studies import library_study
from .render import ScaleResult
from .scale_table import images_in_words, networks_in_words

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
    "their signs differ. Count settings, not networks, when you ask how sure it is.",
    "**Use a measure that rescaling cannot change.** `relative.kappa`, or `head.kappa` where only "
    "the last layer is of interest; not the trace or the largest eigenvalue alone. `spiritlevel "
    "audit` tries the symmetries on your own network.",
    "**Report what else differs.** Training loss, confidence (`softmax.gini`) and weight norm "
    "(`norms.weight`), and both gaps. Confidence is a factor of every curvature of "
    "cross-entropy: holding it fixed leaves another measure, not the same one cleaned.",
)


def what_holds(results: Sequence[Sequence[ScaleResult]]) -> str:
    """The page, as Markdown, from the first result of each experiment."""
    nearest = [scales[0] for scales in results]
    parts = [*HEAD, "## The claims", *_claims(nearest)]
    populations = [result for result in nearest if _measures(result)]
    if populations:
        parts += ["## Flatness and the gap", TWO_QUESTIONS, *_populations(populations)]
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


def _judged(result: ScaleResult) -> Sequence[Row]:
    trained = result.experiment.trained
    rows = result.record.rows
    return rows if isinstance(trained, NotAsked) else trained.split(rows).judged


def _measures(result: ScaleResult) -> dict[str, Levels]:
    """The measures of a population that repeats its settings, on their three levels."""
    experiment, rows = result.experiment, _judged(result)
    if result.outcome.agrees == "untrained" or not experiment.settings or experiment.rows_of:
        return {}
    # of the whole network, or of its last layer alone
    columns = [column for name in experiment.measures for column in (name, f"{name}[head]")]
    found = {
        column: levels_of(rows, column, GAP, experiment.settings)
        for column in measured(rows, columns)
    }
    return {name: each for name, each in found.items() if each is not None}


def _populations(results: Sequence[ScaleResult]) -> list[str]:
    rows: list[Sequence[Cell]] = []
    populations: list[Sequence[Cell]] = []
    seen: list[tuple[str, str, Levels]] = []  # measure, population, what was found
    for result in results:
        population, measures = result.experiment.name, _measures(result)
        first = next(iter(measures.values()))
        losses = [row["train_loss"] for row in _judged(result)]
        populations.append(
            [
                *(population, _networks(result), first.pooled.n, first.clustered.clusters),
                f"{min(losses):.2g} to {max(losses):.2g}",
            ]
        )
        for name, found in measures.items():
            inside = found.within
            rows.append(
                [
                    *(population, name),
                    IntervalEstimate(inside.value, inside.low, inside.high, inside.n),
                    f"{inside.num_positive} of {inside.n}",
                    *(between_estimate(found), estimate(found.clustered)),
                ]
            )
            seen.append((name, population, found))
    titles = (
        *("population", "measure", "within settings, mean", "positive within"),
        *("between settings", "over all, interval over settings"),
    )
    figures = [
        f"![{escape(r.experiment.title)}](experiments/{r.stem}.svg)\n\n"
        f"*{escape(f'{r.experiment.name}, {_networks(r)}')}: each colour is a way of training, "
        "with a line of its own.*"
        for r in results
        if isinstance(r.outcome.figure, Figure) and r.outcome.figure.fitted
    ]
    return [
        "The populations, of trained networks:",
        markdown.table(
            Table(("population", "what", "networks", "settings", "training loss"), populations)
        ),
        "Rank correlations (Spearman) with the gap of the losses:",
        markdown.table(Table(titles, rows)),
        "\n".join(_in_words(seen)),
        f"These are {len(rows)} lines: of measures that tell nothing, about one in 40 would have "
        "an interval above 0 by chance, on each level, and one in 40 below.",
        f"Of these measures, rescaling of layers changes {_listing(_moved(rows))}.",
        *figures,
    ]


def _networks(result: ScaleResult) -> str:
    """Which networks a population has, and the images that they were trained on."""
    study = library_study(result.experiment.study, result.record.preset)
    return f"{networks_in_words(study)}, {images_in_words(study)}"


def _in_words(seen: Sequence[tuple[str, str, Levels]]) -> list[str]:
    """What the table shows, as a list; `seen` has measure, population and what was found."""
    chosen: dict[str, Callable[[Levels], bool]] = {
        "The 95 % interval lies above 0 within settings": lambda f: f.within.low > 0,
        "It lies below 0 within settings": lambda f: f.within.high < 0,
        "It lies above 0 over all networks, counting settings": lambda f: f.clustered.low > 0,
        "It lies below 0 over all networks, counting settings": lambda f: f.clustered.high < 0,
        "The signs differ between the levels": lambda f: f.disagrees,
    }
    lines = [
        f"- {words}: {_listing([f'{name} in {where}' for name, where, f in seen if is_so(f)])}."
        for words, is_so in chosen.items()
    ]
    for measure in dict.fromkeys(name for name, *_ in seen):
        up = [where for name, where, f in seen if name == measure and f.clustered.low > 0]
        down = [where for name, where, f in seen if name == measure and f.clustered.high < 0]
        if up and down:
            lines.append(
                f"- **The sign depends on the population:** over all networks, the gap rises with "
                f"`{measure}` in {', '.join(up)} and falls with it in {', '.join(down)}. Across "
                "settings, one population does not tell what another one shows."
            )
    return lines


def _moved(rows: Sequence[Sequence[Cell]]) -> list[str]:
    used = dict.fromkeys(str(row[1]).partition("[")[0] for row in rows)
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
