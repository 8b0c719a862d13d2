"""A study whose measure rises with the gap in each setting and falls from setting to setting."""

import numpy as np
import pytest
import scipy.stats

from pages.planted_stores import parts, planted, records
from spiritlevel.pages.report import render
from spiritlevel.pages.report.study import page_of
from spiritlevel.study.population import Population

KAPPA = "relative.kappa"
GRID = {"optimizer": ["sgd", "adam"], "lr": [0.1, 0.01, 0.001]}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with planted(tmp_path_factory.mktemp("levels"), grid=GRID, seeds=6, names=(KAPPA,)) as made:
        rows = Population.of(made).done
        gaps = {}
        for row in rows:
            gaps.setdefault((row["optimizer"], row["lr"]), []).append(row["gap"])
        values = [
            (row["gap"] - 30 * np.mean(gaps[row["optimizer"], row["lr"]]), row["run"])
            for row in rows
        ]
        with made._writing():
            made._connection.executemany(
                "UPDATE measurements SET value = ? WHERE run = ? AND layer = ''", values
            )
        yield made


@pytest.fixture(scope="module")
def page(store):
    return page_of(store, resamples=0)


def test_the_lead_and_the_section_say_that_the_signs_differ(page):
    assert "The signs differ between the levels (Simpson's paradox): " in page.lead
    section = next(each for each in page.sections if each.id == "levels-section")
    (said,) = section.parts[0].paragraphs
    assert said.startswith(f"{KAPPA}: The signs differ")
    assert "positive in 6 of 6 settings" in said


@pytest.mark.parametrize("kind", ["spearman", "pearson"])
def test_the_table_has_the_three_levels(page, store, kind):
    (row,) = records(parts(page)[f"levels-{kind}"])
    rows = Population.of(store).done
    of_scipy = {"spearman": scipy.stats.spearmanr, "pearson": scipy.stats.pearsonr}[kind]
    groups = {}
    for each in rows:
        groups.setdefault((each["optimizer"], each["lr"]), []).append((each[KAPPA], each["gap"]))
    pooled = of_scipy(*zip(*((r[KAPPA], r["gap"]) for r in rows), strict=True))[0]
    means = [np.mean(group, axis=0) for group in groups.values()]
    inside = [of_scipy(*zip(*group, strict=True))[0] for group in groups.values()]
    assert row["all runs"] == pytest.approx(pooled, rel=1e-4)
    assert row["between"] == pytest.approx(of_scipy(*zip(*means, strict=True))[0], rel=1e-4)
    assert row["within"] == pytest.approx(np.mean(inside), rel=1e-4)
    assert (row["n"], row["positive within"], row["signs"]) == (36, "6 of 6", "differ")


def test_settings_are_coloured_and_have_a_line_each(open_page, page):
    """The first choice of a colour is the whole setting; six lines rise, the dashed one falls."""
    opened = open_page(render(page))
    opened.locator("#scatter .main-svg").first.wait_for()
    lines = opened.evaluate(
        """() => document.querySelector("#scatter .js-plotly-plot").data
             .filter(trace => trace.mode === "lines")
             .map(trace => [trace.name ?? "", Math.sign(trace.y.at(-1) - trace.y[0])])"""
    )
    assert [sign for _, sign in lines] == [1, 1, 1, 1, 1, 1, -1]
    assert lines[-1][0] == "least squares"
