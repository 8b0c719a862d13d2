"""`study report` and `report` with confounders and confidence of the user's choice."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from command_line import run
from population.tiny_study import tiny
from spiritlevel import SpiritlevelError
from spiritlevel_lab import Store
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.population_statistics import statistics
from spiritlevel_lab.population.run_results import EpochRow, MeasurementRow, RunResult
from spiritlevel_lab.population.storage.claims import new_worker


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished study whose numbers were drawn, not trained."""
    folder = tmp_path_factory.mktemp("drawn")
    rng = np.random.default_rng(0)
    axes = {"lr": [0.1, 0.01], "optimizer": ["sgd", "adam"]}
    study = tiny(grid=axes, seeds=5, training={"epochs": 2})
    with Store.create(folder, study) as store:
        while (claim := store.claim(new_worker())) is not None:
            loss, noise, weight = rng.random(3)
            values = {"head.trace": loss + noise + weight, "norms.weight": weight}
            store.finish(
                claim,
                RunResult(
                    outcome="epochs",
                    epochs=(EpochRow(1, loss, 1.0, 2 * loss + noise, 0.5),),
                    measurements=tuple(
                        MeasurementRow(name, "", value, None, None, True, "ok", "")
                        for name, value in values.items()
                    ),
                    checkpoint=b"",
                    num_train=60,
                    num_test=500,
                    seconds=1.0,
                    machine="{}",
                ),
            )
    return folder


def test_confounders_and_confidence_reach_the_numbers(folder):
    options = ("--confounders", "train_loss", "--confounders", "lr", "--confidence", "0.8")
    text = run("study", "report", folder, *options, "--json", "-").stdout
    found = json.loads(text)
    assert found["confounders"] == ["train_loss", "lr"]
    with Store.open(folder) as store:
        rows = Population.of(store).rows
    x, y, *others = (
        np.array([row[name] for row in rows]) for name in ("head.trace", "gap", "train_loss", "lr")
    )
    design = np.column_stack([np.ones(20), *others])
    left = [v - design @ np.linalg.lstsq(design, v, rcond=None)[0] for v in (x, y)]
    r = np.corrcoef(left)[0, 1]
    partial = found["measures"]["head.trace"]["parts_of_the_judged"]["partial_pearson"]
    assert partial["value"] == pytest.approx(r, rel=1e-9)
    settings = np.array([f"{row['lr']} {row['optimizer']}" for row in rows])
    z = []
    for setting in set(settings.tolist()):
        kept = settings != setting
        given = design[kept]
        rest = [v[kept] - given @ np.linalg.lstsq(given, v[kept], rcond=None)[0] for v in (x, y)]
        z.append(math.atanh(np.corrcoef(rest)[0, 1]))
    k = len(z)
    error = math.sqrt((k - 1) / k * sum((each - math.atanh(r)) ** 2 for each in z))
    half = stats.t.ppf(0.9, k - 1) * error
    assert partial["low"] == pytest.approx(math.tanh(math.atanh(r) - half), rel=1e-9)
    assert partial["clusters"] == k


def test_without_them_the_usual_ones_are_held(folder):
    shown = run("study", "report", folder, "--verbose").stdout
    assert "Confounders held fixed: train_loss, norms.weight." in shown
    assert "Brackets: 95% intervals." in shown
    assert "Lines: target ≈ slope · measure + intercept" in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_answer_comes_first_and_fits_the_terminal(folder, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    short = run("study", "report", folder).stdout
    assert short.startswith("tiny: ")
    assert len(short.split("\n\n")[0].splitlines()) <= 12 * 60 / width + 3
    for outcome in ("gap of the", "test error"):
        assert outcome in short
    long = run("study", "report", folder, "--verbose").stdout
    assert "independent" in long
    assert "independent" not in short
    lines = [line for line in (short + long).splitlines() if not line.startswith("written")]
    assert max(map(len, lines)) <= width


def test_a_confounder_that_never_varies_is_named(folder):
    shown = run(
        *("study", "report", folder, "--confounders", "train_accuracy"),
        "--verbose",
    ).stdout
    assert "train_accuracy dropped: the same in all runs." in " ".join(shown.split())


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--confounders", "train_los"), "Got 'train_los'. Did you mean 'train_loss'?"),
        (("--confounders", "optimizer"), "must be a column of numbers of this study: lr, "),
        (("--confounders", "seed"), "Got 'seed'."),
        (("--confounders", "gap"), "must be other columns than the target. Got 'gap'"),
        (("--confidence", "1"), "must be a number between 0 and 1. Got 1.0."),
        (("--confidence", "0"), "must be a number between 0 and 1. Got 0.0."),
        (("--confidence", "95"), "must be a number between 0 and 1. Got 95.0."),
    ],
)
@pytest.mark.parametrize("command", [("study", "report"), ("report",)])
def test_refusals(folder, tmp_path, monkeypatch, command, options, text):
    monkeypatch.chdir(tmp_path)  # where `report` would write its page
    code = 2 if options[0] == "--confidence" else 1
    error = run(*command, folder, *options, code=code).stderr
    assert text in error
    assert len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_page_has_them_too(folder, tmp_path):
    out, data = tmp_path / "page.html", tmp_path / "page.json"
    options = ("--confounders", "lr", "--confidence", "0.9", "--title", "drawn")
    run("report", folder, "--out", out, "--json", data, *options)
    page = data.read_text()
    assert "Confounders held fixed: lr." in page
    assert "With lr held fixed" in page
    assert "its 90% interval" in page
    assert json.loads(page)["title"] == "drawn"


def test_a_file_has_no_use_for_them(tmp_path):
    (tmp_path / "report.json").write_text("{}")
    for option, value in (("--confounders", "lr"), ("--confidence", "0.95")):
        error = run("report", tmp_path / "report.json", option, value, code=2).stderr
        assert f"{option} needs a study's folder." in error


def test_in_python_an_unknown_confounder_is_refused_as_well(folder):
    with (
        Store.open(folder) as store,
        pytest.raises(SpiritlevelError, match=r"Got 'norm\.weights'\. Did you mean 'norms\.weight"),
    ):
        statistics(store, confounders=["norm.weights"])
