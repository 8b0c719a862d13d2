"""The demo as one page of HTML that needs nothing but itself."""

from __future__ import annotations

import html

from .networks import HIDDEN, NUM_TRAIN
from .result import SHOWN, Demo
from .words import findings, limits

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff }
p, li { max-width: 46rem } svg { width: 100%; height: auto }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 14px }
th, td { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
td { white-space: nowrap }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left }
td:nth-child(2) { white-space: normal }
"""


def page(demo: Demo, svg: str) -> str:
    """Table, picture, what it shows, what it does not show."""
    shown = "".join(
        f"<p><b>{heading}.</b> {html.escape(text)}</p>\n"
        for heading, text in findings(demo).items()
    )
    not_shown = "".join(f"<li>{html.escape(text)}</li>\n" for text in limits(demo))
    picture = svg[svg.index("<svg") :]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>spiritlevel demo</title>
<style>{STYLE}</style>
</head>
<body>
<h1>How flat are the minima of {len(demo.trained)} small networks?</h1>
<p>{html.escape(setting(demo))}</p>
<div class="wide">{_table(demo)}</div>
<figure style="margin: 2rem 0">{picture}</figure>
<h2>What it shows</h2>
<p>Kendall's τ of each measure with the gap (1: the same order, −1: the opposite one):</p>
<div class="wide">{_agreement_table(demo)}</div>
{shown}<h2>What it does not show</h2>
<ul>
{not_shown}</ul>
</body>
</html>
"""


def setting(demo: Demo) -> str:
    """What was done, in two sentences."""
    quick = " (quick run)" if demo.quick else ""
    return (
        f"Multilayer perceptrons with hidden layers {HIDDEN}, each trained on the same {NUM_TRAIN} "
        f"8×8 digits with seed {demo.seed}{quick}, tested on 500 others and measured on the images "
        "and labels they were trained with. The gap is test loss − train loss; ± is its standard "
        "error from the test images."
    )


def _table(demo: Demo) -> str:
    heads = ["network", "training", "epochs", "train loss", "test accuracy", "gap", *SHOWN]
    rows = [
        [
            t.name,
            t.recipe,
            str(t.epochs),
            f"{t.train_loss:.2g}",
            f"{t.test_accuracy:.1%}",
            f"{t.gap:.2f} ± {t.test_loss_stderr:.2f}",
            *(f"{demo.reports[t.name][m].value:.3g}" for m in SHOWN),
        ]
        for t in demo.trained.values()
    ]
    return _html_table(heads, rows)


def _agreement_table(demo: Demo) -> str:
    groups = demo.groups()
    rows = [[m, *(str(demo.agreement(m, names)) for names in groups.values())] for m in SHOWN]
    return _html_table(["measure", *groups], rows)


def _html_table(heads: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{html.escape(h)}</th>" for h in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>\n" for row in rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>"
