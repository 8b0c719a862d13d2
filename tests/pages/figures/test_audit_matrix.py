"""Cells of the matrix are what the audit found."""

import math

import numpy as np
import pytest

import spiritlevel as sl
from spiritlevel.pages import figures as plots
from spiritlevel.results import Cost, Measurement, Status

VALUES = {  # before, then after each move
    "curvature.trace": (2.0, 20.0, 2.0, 200.0),
    "relative.kappa": (3.0, 3.0, 3.0, 0.03),
    "softmax.gini": (0.0, 1.0, 0.0, 0.0),
}
MOVES = ("layer_rescale", "unit_permute", "logit_temperature")


def report(place: int, **noise: float) -> sl.Report:
    found = {}
    for name, values in VALUES.items():
        error = noise.get(name.split(".")[0])
        found[name] = Measurement(
            name, values[place], exact=error is None, stderr=error, status=Status.OK, cost=Cost()
        )
    return sl.Report(found, layers={}, settings={"num_samples": 50}, cost=Cost())


@pytest.fixture
def audit() -> sl.results.Audit:
    # The confidence-only move comes first here and is drawn last all the same.
    order = (MOVES[2], *MOVES[:2])
    moved = {move: [report(MOVES.index(move) + 1)] for move in order}
    return sl.results.Audit(report(0), moved, moves=dict.fromkeys(order, "a move"), absent={})


def texts(ax) -> list[list[str]]:
    found = [text.get_text() for text in ax.texts]
    return [found[i : i + 4] for i in range(0, len(found), 4)]


def test_cells_are_factors_and_the_verdict_stands_beside_them(audit):
    ax = plots.audit_matrix(audit)
    assert texts(ax) == [
        ["10", "=", "100", "scale"],
        ["=", "=", "0.01", "confidence"],
        ["∞", "=", "=", "confounder"],
    ]
    assert tuple(label.get_text() for label in ax.get_xticklabels()) == MOVES
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["curvature.trace  2", "relative.kappa  3", "softmax.gini  0"]
    shades = ax.images[0].get_array()
    # Powers of ten, whichever way; no further than a factor of 1000.
    assert np.allclose(shades, [[1, 0, 2], [0, 0, 2], [3, 0, 0]])
    assert "n = 50 samples" in ax.get_title(loc="left")


def test_a_line_separates_what_changes_confidence_alone(audit):
    [line] = plots.audit_matrix(audit).lines
    assert list(line.get_xdata()) == [1.5, 1.5]


def test_what_the_errors_leave_open_is_grey():
    wide = {"curvature": 5.0}
    moved = {MOVES[0]: [report(1, **wide)]}
    audit = sl.results.Audit(report(0, **wide), moved, moves={MOVES[0]: "a move"}, absent={})
    ax = plots.audit_matrix(audit)
    assert ax.texts[0].get_text() == "?"
    assert np.ma.getmaskarray(ax.images[0].get_array())[0, 0]
    assert math.isclose(ax.images[0].cmap.get_bad()[0], 0xDD / 255)


def test_an_audit_without_moves_says_what_to_read():
    audit = sl.results.Audit(report(0), {}, moves={}, absent={})
    with pytest.raises(sl.SpiritlevelError, match=r"found no move .* `print\(audit\)`"):
        plots.audit_matrix(audit)
