"""What a study's page says of the paper's experiment that the study is."""

import dataclasses

import pytest
import scipy.stats

from pages.planted_stores import column, parts, planted, records
from spiritlevel.pages.report import render
from spiritlevel.records.content import Figure, IntervalEstimate, Page, Series, Table, Text
from spiritlevel_lab.claims.experiment import Outcome, titled
from spiritlevel_lab.claims.findings import Finding
from spiritlevel_lab.pages.report.study import page_of
from spiritlevel_lab.papers import registry
from spiritlevel_lab.papers.judgement import judge
from spiritlevel_lab.papers.study_section import claim_section
from spiritlevel_lab.population import control
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.storage import checksums

pytestmark = pytest.mark.sampled(3)  # the others at night

NAME = "001-table-2"
EXPERIMENT = registry.find(NAME)
TRACE, GINI = "curvature.trace", "softmax.gini"
STEPS = {"R = 5, one epoch": 5, "R = 10, one epoch": 10, "R = 20, one epoch": 20}
TRAINED = {"R = 1": 1, "R = 5": 5, "R = 10": 10}
HOSTILE = "<img src=x onerror=alert(1)>"
LINK = "<a href='https://evil'>l</a>"  # of the few tags that Plotly would read


def stored(folder, *, preset="", names=EXPERIMENT.measures, without=(), **more):
    """A store of the library's study, never trained; `without` names variants that it lacks."""
    study = control.find(NAME)
    fields = (study.with_preset(preset) if preset else study).to_dict() | more
    for name in without:
        del fields["variants"][name]
    fields["grid"] = {"lr": [0.01]}  # what the study has anyway: the same runs
    made = planted(folder, names=names, epochs=1, layers=(), **fields)
    with made._writing():  # each reached the training accuracy at which the study stops
        made._connection.execute(
            "UPDATE runs SET outcome = 'train_accuracy' WHERE outcome = 'epochs'"
        )
    return made


def set_values(store, measure, value_of):
    """Overwrite a measure of the whole network in every finished run."""
    rows = Population.of(store).done
    with store._writing():
        store._connection.executemany(
            "UPDATE measurements SET value = ? WHERE run = ? AND measure = ?",
            [(value_of(row), row["run"], measure) for row in rows],
        )
        checksums.seal_all(store._connection)


def as_claimed(row) -> float:
    """Rises with R after one epoch, falls with it in trained networks."""
    r = STEPS.get(row["variant"]) or -TRAINED.get(row["variant"], 1)
    return 100.0 + r + 0.1 * row["seed"]


def certain(row) -> float:
    """The same, but unmoved by R after one epoch."""
    return 100.0 + row["seed"] if row["variant"] in STEPS else as_claimed(row)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with stored(tmp_path_factory.mktemp("claimed")) as opened:
        set_values(opened, TRACE, as_claimed)
        set_values(opened, GINI, certain)
        yield opened


@pytest.fixture(scope="module")
def page(store):
    return page_of(store)


def analysed_by(monkeypatch, analyse, **fields):
    """In the place of the experiment, one whose analysis is known."""
    changed = dataclasses.replace(EXPERIMENT, analysis=lambda _, rows: analyse(rows), **fields)
    monkeypatch.setattr(registry, "of_study", lambda study: [changed])


def section_of(store):
    [judgement] = judge(store.study, Population.of(store).rows)
    return claim_section(judgement)


def texts(section) -> str:
    return "\n".join(p for part in section.parts if isinstance(part, Text) for p in part.paragraphs)


# -- what is said -----------------------------------------------------------------------------


def test_section_comes_first_and_says_what_it_must(page, store):
    assert page.title == f"{NAME}: {EXPERIMENT.title}"
    [judgement] = judge(store.study, Population.of(store).rows)
    assert judgement.verdict.startswith("reproduced")
    assert judgement.verdict in page.lead
    section = page.sections[0]
    assert section.id == "experiment"
    assert section.title.endswith(f": {judgement.verdict}")
    said = texts(section)
    for text in (EXPERIMENT.paper, EXPERIMENT.claim, EXPERIMENT.set_up, "Table 2"):
        assert text in said
    assert f"Scaled down (without a preset): {EXPERIMENT.scaled_down['']}" in said
    assert "n = 21 finished runs of 21." in said
    assert "Left out" not in said
    assert EXPERIMENT.rule in parts(page)["experiment-findings"].caption
    render(page)  # no id twice


def test_parts_of_the_claim_with_their_correlations(page, store):
    findings = records(parts(page)["experiment-findings"])
    assert [row["here"] for row in findings] == ["held"] * 3 + ["not refuted"]
    early = [row for row in Population.of(store).rows if row["variant"] in STEPS]
    rho = scipy.stats.spearmanr(
        [STEPS[row["variant"]] for row in early], [row[TRACE] for row in early]
    ).statistic
    assert findings[0]["seen"].startswith(f"{rho:.3g} [")


def test_another_outcome_has_another_verdict(tmp_path):
    with stored(tmp_path) as store:
        set_values(store, TRACE, as_claimed)
        set_values(store, GINI, lambda row: -as_claimed(row))
        section = section_of(store)
    assert section.title.endswith(": partly reproduced at a smaller scale")


def test_numbers_are_means_with_their_intervals(page, store):
    table = {row["training"]: row for row in records(parts(page)["experiment-numbers"])}
    assert list(table) == list(control.find(NAME).variants)
    for variant, row in table.items():
        values = column(
            [r for r in Population.of(store).rows if r["variant"] == variant], "test_accuracy"
        )
        ends = scipy.stats.t.interval(0.95, 2, values.mean(), scipy.stats.sem(values))
        assert row["n"] == 3
        assert row["test_accuracy"] == pytest.approx(values.mean())
        shown = row["95 % of test_accuracy"].strip("[]").replace("−", "-").split(", ")
        assert list(map(float, shown)) == pytest.approx(ends, rel=1e-3)


def test_paper_s_numbers_stand_beside_ours(page, store):
    table = {row["what"]: row for row in records(parts(page)["experiment-beside"])}
    row = table["test_accuracy, R = 1, augmented"]
    runs = [r for r in Population.of(store).rows if r["variant"] == "R = 1, augmented"]
    assert row["paper"] == pytest.approx(0.8342)  # Table 2 of the paper
    assert row["here"] == pytest.approx(column(runs, "test_accuracy").mean())
    assert row["95 % interval"].startswith("[")
    assert row["n"] == 3


def test_one_run_has_no_interval(tmp_path):
    with stored(tmp_path, preset="quick") as store:
        page = Page("", "", {}, [section_of(store)])
    assert {row["n"] for row in records(parts(page)["experiment-beside"])} == {1}
    assert {row["95 % interval"] for row in records(parts(page)["experiment-beside"])} == {None}


def test_figure_has_every_run(page, store):
    figure = parts(page)["experiment-figure"]
    runs = [row for row in Population.of(store).rows if row["variant"] == "R = 10"]
    [series] = [s for s in figure.data["series"] if s["name"] == "R = 10"]
    assert series["x"] == list(column(runs, TRACE))
    assert series["y"] == list(column(runs, "test_accuracy"))
    assert not figure.data["joined"]
    assert figure.data["log_x"]  # all traces are positive
    assert len(figure.table.rows) == 21
    assert "Whiskers" not in figure.caption


def test_a_study_that_is_no_experiment_has_no_such_section(tmp_path):
    with planted(tmp_path) as store:
        page = page_of(store)
    assert "experiment" not in [section.id for section in page.sections]


def test_same_runs_same_bytes(store, page):
    assert render(page_of(store)) == render(page)


# -- which settings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"preset": "quick"}, f"Scaled down (preset quick): {EXPERIMENT.scaled_down['quick']}"),
        ({"data": {"name": "mine.npz", "samples": 1000}}, "The data were given as mine.npz;"),
        ({"data": {"samples": 1000, "name": "cifar10:/data"}}, "Scaled down (without a preset):"),
        ({"data": {"name": "digits", "samples": 1000}}, "Changed by hand"),
        ({"data": {"name": "mine.npz", "samples": 999}}, "Changed by hand"),
        ({"seeds": 2}, "Changed by hand"),
    ],
)
def test_settings_are_those_of_a_preset_or_changed(tmp_path, changes, said):
    with stored(tmp_path, **changes) as store:
        text = texts(section_of(store))
    assert said in text
    assert text.count("Scaled down") + text.count("Changed by hand") == 1


# -- what is missing --------------------------------------------------------------------------


def test_runs_that_are_left_out_are_counted(tmp_path):
    with stored(tmp_path, failed=1, pending=2) as store:
        section = section_of(store)
    assert section.title.endswith(", so far")
    said = texts(section)
    assert "n = 18 finished runs of 21." in said
    assert "Left out: 1 that failed, 2 that are not finished." in said


def test_a_run_that_failed_will_not_change_the_verdict(tmp_path):
    with stored(tmp_path, failed=1) as store:
        section = section_of(store)
    assert not section.title.endswith("so far")
    assert "n = 20 finished runs of 21. Left out: 1 that failed, 0 that" in texts(section)


def test_without_a_finished_run_there_is_nothing_to_judge(tmp_path):
    with stored(tmp_path, failed=2, pending=19) as store:
        assert judge(store.study, Population.of(store).rows) == []


def test_columns_that_no_run_has_are_named(tmp_path):
    with stored(tmp_path, names=(TRACE, GINI), measures=[TRACE, GINI]) as store:
        page = page_of(store)
    section = page.sections[0]
    assert EXPERIMENT.claim in texts(section)
    assert "must have the columns curvature.ggn_trace, curvature.lambda_max." in texts(section)
    assert "experiment-numbers" not in parts(page)
    assert "correlations" in parts(page)  # the rest of the page is there


def last_variant(rows):
    """An analysis that cannot do without one group."""
    return {row["variant"]: row for row in rows}["R = 10"]


def test_a_group_without_a_finished_run_is_named(tmp_path, monkeypatch):
    analysed_by(monkeypatch, last_variant)
    with stored(tmp_path, pending=3) as store:
        said = texts(section_of(store))
    assert "No run is finished yet with variant: R = 10." in said
    assert "KeyError" not in said


def test_a_group_that_was_taken_out_is_named(tmp_path, monkeypatch):
    analysed_by(monkeypatch, last_variant)
    with stored(tmp_path, without=["R = 10", "R = 5"]) as store:
        said = texts(section_of(store))
    assert "in the library also has variant: R = 5, R = 10. This one has not." in said
    assert "Changed by hand" in said


def test_a_fault_of_the_analysis_is_not_hidden(store, monkeypatch):
    analysed_by(monkeypatch, lambda rows: rows["no such thing"])
    with pytest.raises(TypeError):
        section_of(store)


# -- in the browser ---------------------------------------------------------------------------


def hostile(rows) -> Outcome:
    """Words that are markup, and lines with intervals, one of which reaches below 0."""
    seen = IntervalEstimate(1.0, 0.5, 1.5, 3)
    return Outcome(
        table=Table(
            (HOSTILE, "value"), [[HOSTILE, seen], [LINK, IntervalEstimate(-20.0, -21.0, 3.0, 3)]]
        ),
        findings=[Finding(HOSTILE, "held", LINK)],
        agrees="yes",
        conclusion=HOSTILE,
        figure=Figure(
            HOSTILE,
            LINK,
            [
                Series(HOSTILE, [1.0, 2.0], [1.0, 10.0], [0.5, -1.0], [2.0, 20.0]),
                Series(LINK, [0.0, 2.0], [2.0, 3.0]),
            ],
            names=LINK,
        ),
        reproduced_values={HOSTILE: seen},
        more=[titled(HOSTILE, LINK, Table((HOSTILE,), [[seen]]))],
    )


def test_hostile_words_stay_text_on_a_phone(open_page, store, monkeypatch):
    words = dict.fromkeys(("title", "claim", "rule", "set_up"), HOSTILE)
    analysed_by(monkeypatch, hostile, paper_values={HOSTILE: 2.0}, **words)
    text = render(Page("one section", "", {}, [section_of(store)]))
    assert HOSTILE not in text
    shown = open_page(text, width=375)
    figure = shown.locator("#experiment-figure")
    figure.scroll_into_view_if_needed()
    figure.locator(".main-svg").first.wait_for()
    assert figure.locator(".yerror").count() == 2  # the second line has no intervals
    assert figure.locator(".lines path.js-line").count() == 2
    assert figure.locator(".legendtitletext").text_content() == LINK
    assert LINK in figure.locator(".legendtext").last.text_content()
    assert HOSTILE in figure.locator(".xtitle").text_content()
    for axis, said in (("x", "The x axis stays linear: 1 of 4"), ("y", "has no place: 1.")):
        figure.get_by_role("button", name=f"Log {axis}", exact=True).click()
        assert said in figure.locator("[role=status]").inner_text()
    assert shown.locator("#experiment img, svg a, main a[href*=evil]").count() == 0
    assert shown.evaluate("document.documentElement.scrollWidth") <= 375
    more = shown.locator("#experiment-more-1")
    assert HOSTILE in more.inner_text()
    assert LINK in more.inner_text()
    assert more.locator("tbody td, tbody th").all_inner_texts() == ["1", "[0.5, 1.5]"]
    heading = shown.locator("#experiment-numbers").get_by_role("button", name="value")
    heading.click()  # as numbers: −20 comes before 1
    assert shown.locator("#experiment-numbers tbody th").first.inner_text() == LINK
