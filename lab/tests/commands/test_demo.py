"""The demo in its smallest form: all of it happens, and the numbers are those of the study."""

import html
import json
import re

import pytest
import torch
from scipy.stats import spearmanr
from typer.testing import CliRunner

from spiritlevel.cli.app import app
from spiritlevel.inputs.checkpoints import load_checkpoint
from spiritlevel.inputs.models import mlp
from spiritlevel_lab import Store
from spiritlevel_lab.commands import demo_study as demo


@pytest.fixture(scope="module")
def glance(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SAMPLES", 40)  # of the audit: its verdicts do not depend on them
        yield demo.run(tmp_path_factory.mktemp("demo") / "out", preset="glance", workers=1)


def test_everything_is_there(glance):
    found = {path.name for path in glance.folder.iterdir()}
    assert found == {"study", "report.html", "audit.html", "gap-log.png", "correlations.png"}
    assert glance.counts.done == glance.counts.total == 8
    page = (glance.folder / "report.html").read_text(encoding="utf-8")
    assert glance.answer.found in html.unescape(re.sub(r"<[^>]+>", "", page))
    assert all(run.id in page for run in glance.study.runs())


def test_the_analysis_is_of_the_runs(glance):
    with Store.open(glance.folder / "study") as store:
        last = {row["run"]: row for row in store.rows("epochs")}  # in the order of the epochs
        kappa = {
            row["run"]: row["value"]
            for row in store.rows("measurements")
            if (row["measure"], row["layer"]) == ("relative.kappa", "")
        }
    gaps = [last[run]["test_loss"] - last[run]["train_loss"] for run in kappa]
    expected = spearmanr(list(kappa.values()), gaps).statistic
    assert glance.statistics.measures["relative.kappa"].spearman.value == pytest.approx(expected)


def test_the_audited_network_is_one_of_them(glance):
    model = mlp(hidden=[64, 64])
    before = [p.clone() for p in model.parameters()]
    load_checkpoint(model, glance.checkpoint)
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert glance.audit.verdict("curvature.trace").kind == "scale"
    assert glance.audit.factor("neuron.rho_sum", "layer_rescale") == pytest.approx(1.0, rel=1e-3)


@pytest.mark.nightly
def test_started_again_it_trains_nothing_writes_the_same_and_says_what_was_found(glance):
    names = ("report.html", "audit.html", "gap-log.png")
    before = {name: (glance.folder / name).read_bytes() for name in names}
    with Store.open(glance.folder / "study") as store:
        attempts = store.attempts()
    numbers = glance.folder.parent / "demo.json"
    arguments = ["demo", "--quick", "--workers", "1", "--out", str(glance.folder)]
    done = CliRunner().invoke(app, [*arguments, "--json", str(numbers)])
    assert done.exit_code == 0, done.output
    with Store.open(glance.folder / "study") as store:
        assert store.attempts() == attempts
    assert {name: (glance.folder / name).read_bytes() for name in names} == before

    words = " ".join(done.stdout.split())
    assert " ".join(glance.answer.found.split()) in words
    assert "neuron.rho_sum comparable at equal confidence" in words
    assert f"--checkpoint {glance.checkpoint}" in words
    written = json.loads(numbers.read_text(encoding="utf-8"))
    assert written["lead"] == glance.answer.found
    assert "curvature.lambda_max" in written["audit"]["original"]["measures"]
