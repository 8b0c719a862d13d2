"""The picture of a learning rate shows the rows that it was given."""

import math

import pytest

import spiritlevel as sl
from spiritlevel.pages import figures as plots

ROWS = [
    {"step": 5, "rate.sharpness": 1.0, "rate.threshold": 4.0, "rate.critical_sharpness": 0.5},
    {"step": 10, "rate.sharpness": 3.0, "rate.threshold": 2.0, "warning": "too sharp"},
    {"step": 15, "rate.sharpness": math.nan, "status": "failed"},
]


def test_every_number_has_its_place():
    ax = plots.learning_rate(ROWS)
    lines = {line.get_label(): line for line in ax.lines}
    assert lines["sharpness"].get_xydata().tolist() == [[5, 1.0], [10, 3.0]]
    assert lines["edge of stability"].get_xydata().tolist() == [[5, 4.0], [10, 2.0]]
    assert lines["critical sharpness of the last update"].get_xydata().tolist() == [[5, 0.5]]
    assert list(lines["warning"].get_xdata()) == [10, 10]
    assert ax.get_yscale() == "log"


def test_rows_of_another_monitor_are_refused():
    with pytest.raises(sl.SpiritlevelError, match=r"Got 1 without 'rate\.sharpness'\. Pass optim"):
        plots.learning_rate([{"step": 1, "relative.kappa": 2.0}])
