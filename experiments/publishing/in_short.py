"""The answer of all populations together: does a flatter network generalize better?"""

from __future__ import annotations

from collections.abc import Sequence

from spiritlevel.content import Table
from spiritlevel.pages import markdown

from .population_lines import OVER_ALL, MeasureLine

COLUMNS = ("the flatter networks have", "a smaller gap", "a larger gap", "neither is clear")
TO_DO = "What follows for practice: [what to measure](#what-to-measure)."


def in_short(lines: Sequence[MeasureLine]) -> list[str]:
    """Paragraphs: how many measures of flatness say what, and what else follows the gap."""
    flat = [line for line in lines if line.is_flatness]
    populations = len({line.population for line in flat})
    answer = "Not always. " if any(line.falls for line in flat) else ""
    views = list(dict.fromkeys(view for line in flat for view in line.views))
    said = [_doubts(flat), *_both_ways(flat), *_others_first(lines), TO_DO]
    return [
        f"**Does a flatter network generalize better?** {answer}The table counts {len(flat)} "
        f"results, each of one measure of flatness in one of {populations} populations, which are "
        "described below. A gap is clearly smaller or larger if the 95 % interval of the "
        "correlation does not contain 0.",
        markdown.table(Table(COLUMNS, [[view, *_counts(flat, view)] for view in views])),
        "\n".join(f"- {each}" for each in said),
    ]


def _counts(lines: Sequence[MeasureLine], view: str) -> tuple[int, int, int]:
    smaller = sum(line.views[view].low > 0 for line in lines)
    larger = sum(line.views[view].high < 0 for line in lines)
    return smaller, larger, len(lines) - smaller - larger


def _doubts(lines: Sequence[MeasureLine]) -> str:
    """How much is left where settings that share a value count once."""
    clear = [line for line in lines if line.rises or line.falls]
    left = [line for line in clear if not line.levels.doubt]
    return (
        "Settings that share a value, such as an optimizer, may be alike, and so may networks that "
        "share a seed. Of the "
        f"{len(clear)} results that are clear over all networks if settings are counted, "
        f"{len(left)} are clear by the widest interval, which counts what they share."
    )


def _both_ways(lines: Sequence[MeasureLine]) -> list[str]:
    """Measures whose sign is clear in several populations, and not the same."""
    said = []
    for measure in dict.fromkeys(line.measure for line in lines):
        own = [line for line in lines if line.measure == measure]
        up, down = [e for e in own if e.rises], [e for e in own if e.falls]
        if up and down:
            stays = all(e.equal_loss.value > 0 for e in up) and all(
                e.equal_loss.value < 0 for e in down
            )
            said.append(
                "The sign depends on the population: over all networks, the gap rises with "
                f"`{measure}` in {_where(up)} and falls with it in {_where(down)}, "
                f"{'also' if stays else 'but not'} with the training loss held fixed. "
                f"{_unclear([*up, *down])}Across settings, one population does not tell what "
                "another one shows."
            )
    return said


def _unclear(lines: Sequence[MeasureLine]) -> str:
    doubted = [line.population for line in lines if line.levels.doubt]
    return f"By the widest interval it is unclear in {' and '.join(doubted)}. " if doubted else ""


def _others_first(lines: Sequence[MeasureLine]) -> list[str]:
    """Populations in which the gap follows something else more closely than any flatness."""
    said = []
    for population in dict.fromkeys(line.population for line in lines):
        own = {e.measure: e for e in lines if e.population == population}
        best = max(own.values(), key=_strength)
        flat = [line for line in own.values() if line.is_flatness]
        if best.is_flatness or not flat:
            continue
        second = max(flat, key=_strength)
        said.append(
            f"In {population} the strongest correlation with the gap over all networks is that of "
            f"`{best.measure}`, which does not measure flatness: "
            f"{best.views[OVER_ALL]}. The strongest of a measure of flatness is "
            f"{second.views[OVER_ALL]} (`{second.measure}`)."
        )
    return said


def _where(lines: Sequence[MeasureLine]) -> str:
    return ", ".join(f"{e.population} ({e.views[OVER_ALL]})" for e in lines)


def _strength(line: MeasureLine) -> float:
    """Of the correlation over all networks, whatever its sign."""
    return abs(line.views[OVER_ALL].value)
