"""The table of a whole study: every row is what the single functions give; words and JSON."""

import json
import math

import numpy as np
import pytest

from spiritlevel import SpiritlevelError
from spiritlevel_lab.statistics import (
    clustered,
    granulated_kendall,
    holm,
    kendall,
    levels,
    partial_correlation,
    pearson,
    regression,
    sign_error,
    spearman,
    summary,
)

pytestmark = pytest.mark.sampled(2)  # the others at night


def study(num_seeds: int = 4, *, confounders: bool = True, rates=(0.1, 0.2, 0.4)) -> list[dict]:
    """`good` follows the gap, `confounded` only through gini, `noise` and `fixed` not at all."""
    rng = np.random.default_rng(0)
    rows = []
    for lr in rates:
        for width in (8, 16):
            for seed in range(num_seeds):
                gini = rng.standard_normal()
                cause = rng.standard_normal() + math.log(lr)
                gap = 0.1 * (cause + gini + 0.3 * rng.standard_normal())
                measures = {
                    "good": math.exp(cause + 0.2 * rng.standard_normal()),
                    "confounded": gini + 0.2 * rng.standard_normal(),
                    "noise": rng.standard_normal(),
                    "fixed": 3.0,
                    "gini": gini,
                }
                row = {
                    "settings": {"lr": lr, "width": width, "seed": seed},
                    "measures": measures,
                    "target": gap,
                }
                if confounders:
                    row["confounders"] = {"gini": gini, "norm": rng.standard_normal()}
                rows.append(row)
    return rows


def columns(rows, name):
    return [row["measures"].get(name) for row in rows], [row["target"] for row in rows]


def test_every_row_is_what_the_functions_give():
    rows = study()
    table = summary(rows, num_test=1000)
    settings = [row["settings"] for row in rows]
    z = {name: [row["confounders"][name] for row in rows] for name in ("gini", "norm")}
    for name in ("good", "noise"):
        x, y = columns(rows, name)
        row = table[name]
        assert row.pearson == pearson(x, y)
        assert row.spearman == spearman(x, y)
        assert row.kendall == kendall(x, y)
        assert row.regression == regression(x, y)
        assert row.granulated == granulated_kendall(x, y, settings)
        assert row.sign_error == sign_error(x, y, settings, num_test=1000)
        of = [(each["lr"], each["width"]) for each in settings]
        assert row.partial_pearson == partial_correlation(x, y, z, clusters=of)
        assert row.partial_spearman == partial_correlation(x, y, z, kind="spearman", clusters=of)
        for kind, found in row.levels.items():
            assert found.clustered == clustered(x, y, of, kind=kind)
            inside = levels(x, y, of, kind=kind).within
            assert list(found.within.by_setting.values()) == list(inside.by_setting.values())
    assert table.settings == 6


def test_holm_runs_over_the_measures():
    table = summary(study(rates=(0.05, 0.1, 0.2, 0.4)))
    p_values = {name: row.spearman.p for name, row in table.measures.items()}
    truth = holm(p_values)
    assert table.holm["spearman"] == truth
    assert truth.skipped == ("fixed",)
    judged = {name: row.levels["spearman"].judged.p for name, row in table.measures.items()}
    assert table.holm["judged"] == holm(judged)
    assert table["good"].holm["spearman"] == truth.adjusted["good"]
    assert "spearman" not in table["fixed"].holm
    assert set(table["good"].holm) == {
        "pearson",
        "spearman",
        "kendall",
        "partial_pearson",
        "partial_spearman",
        "judged",
    }


def test_verdicts_say_no_more_than_the_numbers():
    table = summary(study(12, rates=(0.05, 0.1, 0.2, 0.4, 0.8)))
    verdicts = {name: row.verdict for name, row in table.measures.items()}
    assert verdicts == {
        "good": "rises with the target, also given the confounders",
        "confounded": "rises with the target; given the confounders: no clear "
        "association at this n",
        "noise": "no clear association at this n",
        "fixed": "undefined: the measure is the same in all 120 runs",
        "gini": "rises with the target, also given the confounders",
    }
    assert {row.judged.fixed for row in table.measures.values()} == {("width",)}


def test_three_rates_and_two_widths_have_no_honest_interval():
    table = summary(study())
    assert table["good"].verdict == (
        "no interval: any of lr and width may decide, none has 4 values to be counted, and with "
        "them fixed 2 differences between settings would be left; 5 are needed"
    )
    assert math.isnan(table["good"].given.low)
    assert table["good"].confounding.undone_at is None  # there is no result to undo
    assert table.holm["judged"].num_tests == 0
    assert table["good"].levels["spearman"].within.p < 0.5  # which the design does not need


def test_a_finding_that_holm_takes_away():
    rng = np.random.default_rng(1)
    n = 20
    gap = rng.standard_normal(n)
    measures = {f"noise{i}": rng.standard_normal(n) for i in range(40)}
    rows = [
        {
            "settings": {"seed": i},
            "measures": {k: v[i] for k, v in measures.items()},
            "target": gap[i],
        }
        for i in range(n)
    ]
    table = summary(rows)
    alone = [name for name, row in table.measures.items() if row.spearman.p < 0.05]
    assert alone  # some of forty look like findings by themselves
    words = {table[name].verdict for name in alone}
    assert words == {"no clear association at this n after Holm"}
    assert table[alone[0]].partial_spearman is None


def test_a_measure_that_is_a_confounder_is_held_against_the_others():
    table = summary(study())
    assert table["gini"].partial_spearman.given == ("norm",)
    assert table["good"].partial_spearman.given == ("gini", "norm")


def test_a_relation_that_turns_round():
    # Simpson: within equal z the measure falls as the gap rises, over all runs both rise.
    rng = np.random.default_rng(2)
    rows = []
    for i in range(60):
        z, e = i % 6, rng.standard_normal()
        rows.append(
            {
                "settings": {"seed": i},
                "measures": {"m": 2 * z + e},
                "target": 2 * z - e + 0.1 * rng.standard_normal(),
                "confounders": {"z": z},
            }
        )
    verdict = summary(rows)["m"].verdict
    assert verdict == "rises with the target, but turns round given the confounders"


def test_missing_numbers_are_counted_where_they_are_missing():
    rows = study()
    rows[0]["target"] = None
    rows[1]["measures"]["good"] = math.inf
    del rows[2]["measures"]["good"]
    rows[3]["confounders"]["norm"] = "nan"
    table = summary(rows)
    assert (table.n, table.without_target) == (24, 1)
    good, noise = table["good"], table["noise"]
    assert (good.spearman.n, good.spearman.excluded) == (21, 3)
    assert (noise.spearman.n, noise.spearman.excluded) == (23, 1)
    assert (good.partial_spearman.n, good.partial_spearman.excluded) == (20, 4)
    text = str(table)
    assert "24 runs, 1 of them without a finite target" in text
    assert "good, ρ given confounders: over 20 runs of 21." in text


def test_the_text():
    text = str(summary(study()))
    lines = text.splitlines()
    assert lines[0].split("  ")[0] == "measure"
    for heading in ("ρ", "p Holm", "ρ given", "ρ within", "n"):
        assert heading in lines[0]
    assert "undefined: the measure is the same in all 24 runs: fixed." in lines
    assert any(line.startswith("no interval: any of lr and width") for line in lines)
    for said in ("gini, norm", "6 settings"):
        assert said in text
    assert "4 measures" in str(summary(study(rates=(0.05, 0.1, 0.2, 0.4))))


def test_a_study_without_repeated_settings_counts_runs():
    rows = [row for row in study(1, confounders=False)]
    table = summary(rows)
    assert (table.settings, table["good"].levels) == (0, {})
    assert table["good"].judged.value == table["good"].spearman.value
    assert "within and between" not in str(table)


def test_settings_without_a_target_are_not_counted():
    rows = study()
    first = {k: v for k, v in rows[0]["settings"].items() if k != "seed"}
    gone = [
        row | {"target": None}
        if {k: v for k, v in row["settings"].items() if k != "seed"} == first
        else row
        for row in rows
    ]
    before, after = (summary(each) for each in (rows, gone))
    assert after.settings == before.settings - 1
    assert after["good"].levels["spearman"].clustered.clusters == after.settings
    assert f"over the {after.settings} settings" in str(after)


def test_a_finding_that_rests_on_three_settings_is_none():
    """Over 60 runs the correlation is sure; over the three settings they share it is not."""
    rng = np.random.default_rng(5)
    rows = []
    for place in range(60):
        step = 10.0 * (place % 4)
        measure, gap = step + rng.standard_normal(2)
        gap += (0, 3, -4, 5)[place % 4] - 0.9 * step
        rows.append(
            {
                "settings": {"lr": place % 4, "seed": place // 4},
                "measures": {"m": measure},
                "target": gap,
            }
        )
    row = summary(rows)["m"]
    assert row.spearman.verdict == "rises with the target"
    assert row.verdict == "no clear association at this n"


def test_levels_that_disagree_are_said_by_the_text():
    rng = np.random.default_rng(6)
    rows = []
    for place in range(60):
        inside, step = rng.standard_normal(), 3.0 * (place % 6)
        measures = {"m": step + inside, "same": step - inside}
        settings = {"lr": place % 6, "seed": place // 6}
        rows.append({"settings": settings, "measures": measures, "target": inside - step})
    notes = summary(rows).notes()
    said = [note for note in notes if "Simpson's paradox" in note]
    assert [note.partition(":")[0] for note in said] == ["m"]


def test_the_text_without_confounders_or_pairs():
    rows = [
        {"settings": {"a": i, "b": i}, "measures": {"m": i % 5}, "target": float(i)}
        for i in range(10)
    ]
    text = str(summary(rows))
    assert "given confounders" not in text
    assert "m, Ψ: no two runs differ in exactly one hyperparameter." in text
    assert "m, sign error: no two runs differ in exactly one hyperparameter." in text


def test_the_text_of_a_perfect_measure_has_no_empty_notes():
    rows = study()
    for row in rows:
        row["measures"] = {"same": row["target"]}
        row["confounders"] = {"gini": row["confounders"]["gini"], "fixed": 1.0}
    notes = summary(rows).notes()
    assert "same, ρ given confounders: fixed dropped: the same in all runs." in " ".join(
        note.replace("; no setting changes it", "") for note in notes
    )
    for row in rows:
        del row["confounders"]["fixed"]
    assert not any(note.endswith(": .") for note in summary(rows).notes())


def test_a_study_of_two_runs_does_not_die():
    table = summary(study()[:2])
    assert table["good"].verdict == "undefined: only 2 finite points, at least 4 are needed"
    assert "–" in str(table)


def test_json_keeps_everything_with_nan_as_text():
    table = summary(study(), num_test=1000)
    data = json.loads(table.to_json())
    assert data == table.to_dict()
    assert data["format"] == "spiritlevel-statistics-2"
    assert data["measures"]["fixed"]["judged"]["value"] == "nan"
    assert data["measures"]["good"]["judged"]["value"] == table["good"].judged.value
    assert data["measures"]["good"]["p_holm"] == table["good"].holm.get("judged")
    runs = data["measures"]["good"]["as_if_runs_were_independent"]
    assert runs["pearson"]["value"] == table["good"].pearson.value
    assert data["measures"]["good"]["sign_error"]["environments"][0]["axis"] == "lr"
    assert data["measures"]["good"]["granulated"]["axes"][0]["groups"] == 8
    assert data["holm"]["spearman"]["skipped"] == ["fixed"]


def test_refusals():
    with pytest.raises(SpiritlevelError, match=r"at least one run\. Got none"):
        summary([])
    with pytest.raises(SpiritlevelError, match="Row 1 lacks measures, target and has settings"):
        summary([study()[0], {"settings": {}}])
    with pytest.raises(KeyError, match=r"This study has no 'best'\. It has: good, confounded"):
        summary(study())["best"]
