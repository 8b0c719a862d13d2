"""Runs do what their settings say, to the bit; the command line drives and shows them."""

import copy
import functools
import json
import math
import os
import re
import signal
import time

import pytest
import torch
from safetensors.torch import load
from torch.nn import functional as F

import command_line
import spiritlevel as sl
from fresh import TIMEOUT, forks
from population.tiny_study import command, tiny
from spiritlevel.inputs.data import digits
from spiritlevel.inputs.models import build
from spiritlevel_lab import Store, execute, resume, run, state
from spiritlevel_lab.population.population import Population
from spiritlevel_lab.population.population_statistics import statistics
from spiritlevel_lab.population.runs.run_data import derived_generator, load_data
from spiritlevel_lab.population.runs.running import run_one
from spiritlevel_lab.statistics import spearman

pytestmark = pytest.mark.sampled(2)  # the others at night

FAST = {"epochs": 60, "lr": 0.1, "momentum": 0.9, "batch_size": 16}


def only(**changes):
    """The one run of a study without a grid."""
    [settings] = tiny(**({"grid": {}, "seeds": 1} | changes)).runs()
    return settings


def without_time(result):
    return vars(result) | {"seconds": None}


# -- one run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_run_is_the_plain_training_loop(optimizer):
    numbers = {"lr": 0.03, "weight_decay": 0.01}
    settings = only(training={"optimizer": optimizer, "epochs": 2, "batch_size": 16} | numbers)
    result = run_one(settings)
    chosen = torch.randperm(1297, generator=torch.Generator().manual_seed(0))[:60]
    x, y = (part[chosen] for part in digits("train"))
    model = build("mlp", hidden=4, seed=0)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    step = kinds[optimizer](model.parameters(), **numbers)
    generator = derived_generator(0, "shuffling")
    for _ in range(2):
        order = torch.randperm(60, generator=generator)
        for start in range(0, 60, 16):
            batch = order[start : start + 16]
            step.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            step.step()
    weights = load(result.checkpoint)
    for name, value in model.state_dict().items():
        assert torch.equal(weights[name], value)
    last = result.epochs[-1]
    test_x, test_y = digits("test")
    with torch.no_grad():
        assert math.isclose(last.train_loss, float(F.cross_entropy(model(x), y)), rel_tol=1e-6)
        assert last.test_accuracy == float((model(test_x).argmax(1) == test_y).double().mean())
    report = sl.measure(model.eval(), (x, y), measures=["head.trace", "norms.weight"])
    found = {m.measure: m.value for m in result.measurements if m.layer == ""}
    for name, value in found.items():
        assert math.isclose(value, report[name].value, rel_tol=1e-6)
    assert set(found) == {"head.trace", "norms.weight"}


def test_a_run_is_the_same_to_the_bit_whatever_happened_before():
    settings = only(interventions={"label_noise": 0.3, "input_noise": 0.1})
    first = run_one(settings)
    torch.manual_seed(99)
    torch.rand(7)
    state = torch.get_rng_state()
    torch.set_num_threads(2)
    again = run_one(settings)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    assert without_time(first) == without_time(again)
    assert torch.equal(torch.get_rng_state(), state)


def test_another_seed_is_another_run():
    weights = [run_one(settings).checkpoint for settings in tiny(grid={}, seeds=2).runs()]
    assert weights[0] != weights[1]


@pytest.mark.parametrize(
    ("stop", "outcome"),
    [
        ({}, "epochs"),
        ({"train_loss": 0.5}, "train_loss"),
        ({"train_accuracy": 0.9}, "train_accuracy"),
    ],
)
def test_training_ends_at_the_first_epoch_that_meets_the_rule(stop, outcome):
    wide = {"name": "mlp", "hidden": 16}
    result = run_one(only(model=wide, training=FAST, stop=stop))
    assert result.outcome == outcome
    met = [
        row.train_loss <= stop.get("train_loss", -1)
        or row.train_accuracy >= stop.get("train_accuracy", 2)
        for row in result.epochs
    ]
    assert [row.epoch for row in result.epochs] == list(range(1, len(met) + 1))
    assert met == ([False] * 60 if not stop else [False] * (len(met) - 1) + [True])


def test_a_run_that_diverges_is_a_result_without_measures():
    result = run_one(only(model={"name": "mlp", "hidden": []}, training={"lr": 1e38, "epochs": 9}))
    assert (result.outcome, result.measurements) == ("diverged", ())
    assert math.isnan(result.epochs[-1].train_loss)
    assert len(result.epochs) < 9


@pytest.mark.parametrize("executor", ["local", "vmap"])
def test_weights_that_are_no_longer_finite_end_a_run_before_the_next_evaluation(tmp_path, executor):
    training = {"lr": 1e38, "epochs": 9, "evaluate_every": 9}
    study = tiny(model={"name": "mlp", "hidden": []}, training=training, grid={}, seeds=2)
    with Store.create(tmp_path / "study", study) as store:
        execute(store, executor=executor)
        rows = store.rows("epochs")
        assert {row["outcome"] for row in store.rows("runs")} == {"diverged"}
    assert len(rows) == 2
    assert all(row["epoch"] < 9 and math.isnan(row["train_loss"]) for row in rows)


def test_label_noise_changes_the_share_of_the_labels_and_depends_on_the_seed():
    clean = load_data(only()).y
    noisy = [
        load_data(settings).y
        for settings in tiny(grid={}, seeds=2, interventions={"label_noise": 0.25}).runs()
    ]
    assert [int((y != clean).sum()) for y in noisy] == [15, 15]
    assert not torch.equal(*noisy)


def test_shuffled_labels_keep_the_class_counts():
    clean = load_data(only()).y
    share = {"label_noise": 0.5, "label_noise_kind": "shuffle"}
    shuffled = load_data(only(interventions=share)).y
    assert torch.equal(shuffled.bincount(), clean.bincount())
    assert 0 < int((shuffled != clean).sum()) <= 30
    usual = only(interventions={"label_noise": 0.5, "label_noise_kind": "replace"})
    assert usual.id == only(interventions={"label_noise": 0.5}).id


@pytest.mark.parametrize("name", ["input_noise", "mixup", "crop_flip"])
def test_changes_of_batches_change_training(name):
    plain, changed = run_one(only()), run_one(only(interventions={name: 1}))
    assert plain.checkpoint != changed.checkpoint
    assert run_one(only(interventions={name: 0})).checkpoint == plain.checkpoint


def test_measures_see_the_first_samples_and_the_weights_before_training():
    settings = only(measures=["norms.distance", "head.trace"], measure_options={"samples": 25})
    result = run_one(settings)
    found = {m.measure: m.value for m in result.measurements if m.layer == ""}
    before, after = build("mlp", hidden=4, seed=0), build("mlp", hidden=4, seed=0)
    after.load_state_dict(load(result.checkpoint))
    data = load_data(settings)
    report = sl.measure(
        after.eval(),
        (data.x[:25], data.y[:25]),
        measures=["norms.distance", "head.trace"],
        options={"initial": copy.deepcopy(before.state_dict())},
    )
    for name, value in found.items():
        assert math.isclose(value, report[name].value, rel_tol=1e-6)


# -- many runs -------------------------------------------------------------------------------


def test_a_run_that_fails_is_kept_with_its_reason_and_the_others_go_on(tmp_path, monkeypatch):
    (tmp_path / "fragile_net.py").write_text(
        "from spiritlevel.inputs.models import mlp\ndef make(broken):\n"
        "    return mlp(inputs=63 if broken else 64, hidden=4)\n"
    )
    monkeypatch.chdir(tmp_path)
    study = tiny(model="fragile_net:make", grid={"model.broken": [True, False]}, seeds=1)
    with run(study, tmp_path / "study") as store:
        now = state(store)
        assert (now.counts.failed, now.counts.done) == (1, 1)
        reason = now.failures[0][1]
        assert "RuntimeError: mat1 and mat2 shapes cannot be multiplied" in reason
        assert re.search(r"\(modules/linear.py, line \d+\)", reason)
        assert statistics(store).without_target == 1
    with resume(tmp_path / "study") as store:
        assert [row["attempt"] for row in store.rows("runs")] == [2, 1]
    assert "1 of 2 runs failed" in cli("resume", tmp_path / "study", code=1).stderr


def test_executors_are_checked(tmp_path):
    with Store.create(tmp_path, tiny()) as store:
        for wrong, text in (
            ({"executor": "rya"}, "must be one of local, vmap, ray. Got 'rya'. Did you mean 'ray'"),
            ({"workers": 0}, "must be at least 1. Got 0"),
            ({"address": "auto"}, "needs executor='ray'. Got 'local'"),
        ):
            with pytest.raises(sl.SpiritlevelError, match=text):
                execute(store, **wrong)


def test_statistics_are_those_of_the_rows(tmp_path):
    with run(tiny(), tmp_path) as store:
        rows, found = Population.of(store).rows, statistics(store, target="error_gap")
    gaps = [row["train_accuracy"] - row["test_accuracy"] for row in rows]
    own = spearman([row["head.trace"] for row in rows], gaps)
    assert found["head.trace"].spearman == own
    assert found.confounders == ("train_loss", "norms.weight")
    assert found.n == 12


# -- command line ----------------------------------------------------------------------------

YAML = """
name: tiny
model: {name: mlp, hidden: 4}
data: {name: digits, samples: 60}
training: {epochs: 2}
grid: {lr: [0.1, 0.01]}
seeds: 3
measures: [head.trace]
"""


cli = functools.partial(command_line.run, "study")


def test_run_status_report_export_and_resume(tmp_path):
    (tmp_path / "tiny.yaml").write_text(YAML)
    out = tmp_path / "out"
    said = cli("run", tmp_path / "tiny.yaml", "--out", out).stdout
    assert "tiny: 6 of 6 runs done; 6 of them now" in said
    assert cli("status", out).stdout == "tiny: 6 of 6 runs done\n"
    now = json.loads(cli("status", out, "--json", "-").stdout)
    assert (now["done"], now["total"], now["seconds_left"]) == (6, 6, 0.0)
    assert "head.trace" in cli("report", out).stdout
    found = json.loads(cli("report", out, "--json", "-").stdout)
    assert found["measures"]["head.trace"]["judged"]["n"] == 6
    assert "runs.csv" in cli("export", out, "--out", tmp_path / "t").stdout.replace("\n", "")
    assert "6 of 6 runs done; 0 of them now" in cli("resume", out).stdout
    assert (
        "6 of 6 runs done; 0 of them now" in cli("run", tmp_path / "tiny.yaml", "--out", out).stdout
    )


def test_the_command_line_says_how_many_runs_diverged(tmp_path):
    for name, rate in (("half", "1e38"), ("none", "0.2")):
        text = YAML.replace("[0.1,", f"[{rate},").replace("hidden: 4", "hidden: []")
        (tmp_path / f"{name}.yaml").write_text(text)
    said = cli("run", tmp_path / "half.yaml", "--out", tmp_path / "a", "--quiet")
    assert "6 of 6 runs done" in said.stdout
    assert "3 of the 6 diverged: their loss is no longer a number" in said.stderr
    assert "diverged" not in cli("run", tmp_path / "none.yaml", "--out", tmp_path / "b").stderr


def test_the_command_line_refuses_in_one_line(tmp_path):
    (tmp_path / "bad.yaml").write_text(YAML + "sedes: 4\n")
    cases = {
        ("run", "digitz"): "digits. Did you mean 'digits'?",
        ("run", "digits", "--preset", "quik"): "Did you mean 'quick'?",
        ("run", tmp_path / "bad.yaml"): "unknown key 'sedes'. Did you mean 'seeds'?",
        ("run", "digits", "--device", "gpu", "--out", tmp_path / "x"): "--device 'gpu' cannot be",
        ("status", tmp_path): "must hold a study (runs.sqlite). There is none.",
        ("report", tmp_path): "must hold a study",
    }
    for arguments, text in cases.items():
        result = cli(*arguments, code=1)
        assert text in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "x").exists()  # nothing was made for a device that is not there
    with Store.create(tmp_path / "none", tiny()):
        assert "no finished run yet" in cli("report", tmp_path / "none", code=1).stderr


def test_ctrl_c_gives_the_run_back(tmp_path):
    assert code_of_a_study_that_gives_its_run_back(tmp_path, signal.SIGINT) == 130


def test_sigterm_gives_the_run_back(tmp_path):
    assert code_of_a_study_that_gives_its_run_back(tmp_path, signal.SIGTERM) == 143


def code_of_a_study_that_gives_its_run_back(tmp_path, sent):
    """The exit code of a study to which a signal is sent while it trains its first network."""
    (tmp_path / "long.yaml").write_text(YAML.replace("epochs: 2", "epochs: 100000"))
    out = tmp_path / "out"
    arguments = ("study", "run", str(tmp_path / "long.yaml"), "--out", str(out))
    files = {name: str(tmp_path / name) for name in ("said", "trains")}
    process = forks().Process(target=command, args=arguments, kwargs=files)
    process.start()
    # Told by the run itself: on a busy machine no time of ours says how far it has come.
    deadline = time.monotonic() + TIMEOUT
    while not (tmp_path / "trains").exists() and time.monotonic() < deadline:
        assert process.is_alive()
        time.sleep(0.02)
    with Store.open(out) as store:
        assert store.counts().running == 1
    os.kill(process.pid, sent)
    process.join(TIMEOUT)
    process.kill()  # or it would train on for hours where it did not end
    text = (tmp_path / "said").read_text()
    assert f"To continue: spiritlevel study resume {out}" in " ".join(text.split())
    with Store.open(out) as store:
        assert (store.counts().pending, store.deaths()) == (6, {})
    return process.exitcode
