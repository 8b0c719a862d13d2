"""A study whose measure rises with the gap in each setting and falls from setting to setting."""

import csv
import dataclasses
import io

import numpy as np
import pytest
import scipy.stats

from pages.planted_stores import measure_names, parts, planted, records
from spiritlevel.pages.report import render
from spiritlevel.records.content import Chart, CorrelationCell
from spiritlevel_lab.pages.report.study import page_of
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.population_statistics import statistics
from spiritlevel_lab.population.storage import checksums

KAPPA = "relative.kappa"
GRID = {"lr": [0.1, 0.05, 0.02, 0.01, 0.005, 0.002]}


def set_measure(made, values):
    with made._writing():
        made._connection.executemany(
            "UPDATE measurements SET value = ? WHERE run = ? AND layer = ''", values
        )
        checksums.seal_all(made._connection)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with planted(tmp_path_factory.mktemp("levels"), grid=GRID, seeds=6, names=(KAPPA,)) as made:
        rows = Population.of(made).done
        gaps = {}
        for row in rows:
            gaps.setdefault(row["lr"], []).append(row["gap"])
        values = [(row["gap"] - 30 * np.mean(gaps[row["lr"]]), row["run"]) for row in rows]
        set_measure(made, values)
        yield made


@pytest.fixture(scope="module")
def page(store):
    return page_of(store)


def test_the_lead_the_notes_and_the_verdict_say_that_the_signs_differ(page):
    assert "Simpson's paradox" in page.highlights[0]
    section = next(each for each in page.sections if each.id == "correlations-section")
    (said,) = (line for line in section.parts[1].paragraphs if "Simpson" in line)
    assert said.startswith(f"{KAPPA}: The signs differ")
    assert "6 of 6 settings" in said
    (row,) = records(parts(page)["correlations"])
    assert row["verdict"].endswith("; within settings its sign differs")


def on_three_levels(of_scipy, store):
    """Over all runs, between settings and within them."""
    rows, groups = Population.of(store).done, {}
    for each in rows:
        groups.setdefault(each["lr"], []).append((each[KAPPA], each["gap"]))
    pooled = of_scipy(*zip(*((r[KAPPA], r["gap"]) for r in rows), strict=True))[0]
    means = [np.mean(group, axis=0) for group in groups.values()]
    inside = [of_scipy(*zip(*group, strict=True))[0] for group in groups.values()]
    return pooled, of_scipy(*zip(*means, strict=True))[0], np.mean(inside)


def test_the_levels_are_columns_of_one_table(page, store):
    (row,), (other,) = (records(parts(page)[name]) for name in ("correlations", "others"))
    pooled, between, _ = on_three_levels(scipy.stats.spearmanr, store)
    assert (row["ρ"].value, other["ρ between"].value) == pytest.approx((pooled, between), rel=1e-9)
    assert (row["n"], other["positive within"]) == (36, 1.0)
    found = statistics(store)[KAPPA]
    assert (row["ρ"].low, row["ρ"].high) == (found.judged.low, found.judged.high)
    within = found.levels["spearman"].within
    assert row["ρ within"] == CorrelationCell(within.value, within.low, within.high)
    assert row["p within"] == pytest.approx(within.p, rel=0.05)


@pytest.fixture(scope="module")
def page_of_five_rates(tmp_path_factory):
    """A rate says nearly all of a network, whatever its optimizer."""
    grid = {"optimizer": ["sgd", "adam"], "lr": [0.1, 0.03, 0.01, 0.003, 0.001]}
    with planted(tmp_path_factory.mktemp("rates"), grid=grid, seeds=6, names=(KAPPA,)) as made:
        rows = Population.of(made).done
        runs = [(i, grid["lr"].index(row["lr"]), row["run"]) for i, row in enumerate(rows)]
        set_measure(made, [(lr + 0.01 * (i % 7), run) for i, lr, run in runs])
        gaps = [([1, 0, 3, 4, 2][lr] + 0.01 * (i % 5), run) for i, lr, run in runs]
        with made._writing():
            made._connection.executemany(
                "UPDATE epochs SET test_loss = train_loss + ? WHERE run = ?", gaps
            )
            checksums.seal_all(made._connection)
        yield page_of(made)


def test_what_counts_rates_judges(page_of_five_rates):
    """Ten settings alone would call it clear."""
    (row,) = records(parts(page_of_five_rates)["correlations"])
    assert row["ρ"].low < 0 < row["ρ"].high
    assert "over 5 groups with the same lr" in page_of_five_rates.highlights[0]
    assert page_of_five_rates.lead.startswith("The one measure is not clearly associated")


@pytest.fixture(scope="module")
def wide_html(tmp_path_factory):
    """A page with measures whose names are as long as names get.

    Without its pictures: a browser takes seconds to read the script that draws them.
    """
    folder = tmp_path_factory.mktemp("wide")
    longest = sorted(measure_names(18), key=len)[-6:]
    with planted(folder, grid=GRID, names=tuple(longest)) as made:
        page = page_of(made)
    tables = [
        dataclasses.replace(section, parts=[p for p in section.parts if not isinstance(p, Chart)])
        for section in page.sections
    ]
    return render(dataclasses.replace(page, sections=tables))


def test_the_table_to_read_fits_a_desktop_and_scrolls_in_its_box_on_a_phone(open_page, wide_html):
    sizes = """() => { const box = document.querySelector("#correlations .scroll");
        return [document.documentElement.scrollWidth, box.scrollWidth - box.clientWidth]; }"""
    assert open_page(wide_html, width=1280).evaluate(sizes) == [1280, 0]
    page, further = open_page(wide_html, width=390).evaluate(sizes)
    assert page == 390  # the page itself does not move
    assert further > 0


def test_csv_has_three_columns_of_an_interval_and_settings_have_a_line_each(open_page, page):
    """The first choice of a colour is the whole setting; six lines rise, the dashed one falls."""
    opened = open_page(render(page))
    text = opened.evaluate(
        "() => spiritlevel.tables.csv(document.querySelector('#correlations table'))"
    )
    (row,) = csv.DictReader(io.StringIO(text))
    (expected,) = records(parts(page)["correlations"])
    rho = expected["ρ"]
    found = [float(row[f"ρ{end}"]) for end in ("", " low", " high")]
    assert found == [rho.value, rho.low, rho.high]

    opened.locator("#scatter").scroll_into_view_if_needed()
    opened.locator("#scatter .main-svg").first.wait_for()
    lines = opened.evaluate(
        """() => document.querySelector("#scatter .js-plotly-plot").data
             .filter(trace => trace.mode === "lines")
             .map(trace => [trace.name ?? "", Math.sign(trace.y.at(-1) - trace.y[0])])"""
    )
    assert [sign for _, sign in lines] == [1, 1, 1, 1, 1, 1, -1]
    assert lines[-1][0] == "least squares"
