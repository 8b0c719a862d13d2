"""Figures of lines and points, alone and as panels."""

import pytest

pytest.importorskip("matplotlib", reason="figures need matplotlib")

from publishing import series
from spiritlevel.records.content import Figure, Panels, Series

LONG = "how often each of the things that were counted was seen, if it was seen at all, in percent"


@pytest.mark.parametrize("columns", [1, 2])
def test_long_labels_stay_within_the_figure(columns, monkeypatch):
    figure = Figure(LONG, LONG, [Series("a", [1.0, 2.0], [1.0, 3.0])])
    pages = []
    monkeypatch.setattr(series, "save", lambda page, kind: pages.append(page))
    series.svg(Panels([figure] * columns, columns=columns))
    [page] = pages
    page.canvas.draw()
    for ax in page.axes:
        for label in (ax.xaxis.label, ax.yaxis.label):
            assert label.get_text().replace("\n", " ") == LONG
            extent = label.get_window_extent()
            assert page.bbox.contains(extent.x0, extent.y0)
            assert page.bbox.contains(extent.x1, extent.y1)
