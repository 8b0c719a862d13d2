"""Tables and folders of networks: what is understood, and each refusal before anything runs."""

import json

import pytest
import torch
from typer.testing import CliRunner

from spiritlevel.cli.app import app
from spiritlevel.errors import SpiritlevelError
from spiritlevel.study.existing.columns import (
    ColumnRoles,
    NetworkTable,
    as_value,
    read_networks,
    read_table,
    table_text,
)
from spiritlevel.study.existing.finding import find_checkpoints, find_networks
from study.given_runs import networks, write

ROLES = ColumnRoles(["lr", "batch_size"], ["accuracy"])
ARGUMENTS = ("--model", "mlp", "--model-arg", "hidden=6", "--data", "digits", "--samples", "20")
MEASURES = ("--measures", "norms.weight")
COLUMNS = ("--setting", "lr,batch_size", "--outcome", "accuracy")
HEADING = "checkpoint,lr,batch_size,seed,accuracy"


def refused(*args):
    result = CliRunner().invoke(app, ["study", "measure", *map(str, args)])
    assert result.exit_code == 1, result.output
    return " ".join(result.stderr.split())


def rows_of(folder):
    lines = write(folder).read_text().splitlines()
    assert lines[0] == HEADING
    return [line.split(",") for line in lines[1:]]


def save(folder, rows, heading=HEADING):
    path = folder / "runs.csv"
    path.write_text("\n".join([heading, *(",".join(row) for row in rows)]), encoding="utf-8")
    return path


# -- what is understood ----------------------------------------------------------------------------


def test_a_table_is_read_with_types_and_paths_beside_it(tmp_path):
    found = read_networks(read_table(write(tmp_path / "runs")), ROLES)
    assert [each["name"] for each in found] == list(networks())
    assert found[0]["settings"] == {"lr": 0.1, "batch_size": 10}
    assert found[1]["seed"] == 1
    assert found[-1]["task"]["checkpoint"].startswith(str(tmp_path / "runs"))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_spreadsheets_write_other_separators_and_a_mark_at_the_start(separator, tmp_path):
    lines = ["checkpoint,lr", "a.pt,0.5", ",", "b.pt,1e-3"]
    path = tmp_path / "runs.csv"
    path.write_text("\ufeff" + "\r\n".join(lines).replace(",", separator), encoding="utf-8")
    table = read_table(path)
    assert [row["lr"] for row in table.rows] == ["0.5", "1e-3"]
    assert table.places == ["line 2", "line 4"]


def test_a_column_with_one_word_is_a_column_of_words():
    rows = [{"checkpoint": f"{i}.pt", "size": size} for i, size in enumerate(["8", "wide"])]
    found = read_networks(NetworkTable(rows, ["line 2", "line 3"], "it"), ColumnRoles(["size"]))
    assert [each["settings"]["size"] for each in found] == ["8", "wide"]


def test_a_table_that_was_written_is_read_back(tmp_path):
    rows = [{"checkpoint": "a.pt", "lr": 0.1}, {"checkpoint": "b, c.pt", "lr": None}]
    (tmp_path / "t.csv").write_text(table_text(rows), encoding="utf-8")
    again = read_table(tmp_path / "t.csv").rows
    assert [{**row, "lr": as_value(row["lr"])} for row in again] == rows


def test_paths_name_settings(tmp_path):
    write(tmp_path / "runs")
    found = find_networks([tmp_path / "runs"], names="lr{lr}_bs{batch_size}_seed{seed}.pt")
    read = read_networks(found.table, found.roles)
    assert found.roles.all_settings == ["lr", "batch_size"]
    assert [each["settings"] for each in read][-1] == {"lr": 1.0, "batch_size": 40}
    assert [each["seed"] for each in read] == [0, 1] * 4


def lightning_run(folder, lr, accuracy, files=("epoch=1-step=20.ckpt",)):
    (folder / "checkpoints").mkdir(parents=True)
    for name in files:
        torch.save({"state_dict": {}}, folder / "checkpoints" / name)
    (folder / "hparams.yaml").write_text(f"lr: {lr}\nlayers: [1, 2]\n")
    lines = [
        "epoch,step,train_loss,val_acc",
        "0,9,,0.1",
        "0,9,2.0,",
        f"1,19,,{accuracy}",
        "2,29,,9",
    ]
    (folder / "metrics.csv").write_text("\n".join(lines))


def test_lightning_runs_bring_settings_and_what_was_logged_by_then(tmp_path):
    for i in (2, 10):
        lightning_run(tmp_path / f"version_{i}", i / 10, i / 100)
    found = find_networks([tmp_path], roles=ColumnRoles(["lr"], ["val_acc"]))
    read = read_networks(found.table, found.roles)
    assert [(n["settings"]["lr"], n["outcomes"]["val_acc"]) for n in read] == [
        (0.2, 0.02),
        (1, 0.1),
    ]
    assert set(found.beside) == {"folder", "train_loss"}
    assert not found.one_run
    lightning_run(tmp_path / "version_11", 1, 0.5, ("epoch=0-step=10.ckpt", "last.ckpt"))
    assert find_networks([tmp_path]).one_run
    assert not find_networks([tmp_path], roles=ColumnRoles(["folder"])).one_run


def test_trainer_folders_are_checkpoints_with_what_was_logged_by_then(tmp_path):
    history = [{"step": s, "epoch": s / 10, "eval_loss": 1 / s, "eval_runtime": 3} for s in (5, 10)]
    for step in (5, 10):
        folder = tmp_path / "out" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        for name in ("model.safetensors", "optimizer.pt", "rng_state.pth", "training_args.bin"):
            (folder / name).touch()
        state = {"global_step": step, "epoch": step / 10, "log_history": history}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    found = find_networks([tmp_path / "out"], roles=ColumnRoles(["step"], ["eval_loss"]))
    read = read_networks(found.table, found.roles)
    assert [each["name"] for each in read] == ["checkpoint-5", "checkpoint-10"]
    assert [each["settings"]["step"] for each in read] == [5, 10]
    assert [each["outcomes"]["eval_loss"] for each in read] == [0.2, 0.1]
    assert found.beside == ["epoch"]
    assert found.one_run


def test_patterns_and_files_are_found_once(tmp_path):
    write(tmp_path / "runs")
    (tmp_path / "runs" / "optimizer.pt").touch()
    everything = find_checkpoints([tmp_path / "runs"])
    assert [path.name for path in everything] == list(networks())
    again = [tmp_path / "runs" / "lr0.1*.pt", everything[0], tmp_path / "runs"]
    assert sorted(find_checkpoints(again)) == sorted(everything)


# -- refusals of tables ----------------------------------------------------------------------------


def changed(i, column, value):
    def change(rows, heading):
        rows[i][heading.split(",").index(column)] = value
        return rows, heading

    return change


def renamed(old, new):
    return lambda rows, heading: (rows, heading.replace(old, new))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (renamed("checkpoint", "check_point"), "weights. Did you mean 'check_point'?"),
        (renamed("batch_size", "batchsize"), "--setting names. Did you mean 'batchsize'?"),
        (renamed("seed", "tries"), "what 'tries' is. Say for each whether"),
        (renamed("seed", "lr"), "'lr' is there twice"),
        (renamed("seed", ""), "must name every column"),
        (changed(2, "accuracy", "nan"), "'accuracy' must hold finite numbers. line 4"),
        (changed(2, "accuracy", "good"), "line 4 of"),
        (changed(2, "accuracy", ""), "'accuracy' must have a value in every row. line 4"),
        (changed(2, "lr", ""), "'lr' must have a value in every row. line 4"),
        (changed(2, "checkpoint", ""), "'checkpoint' must have a value in every row. line 4"),
        (changed(2, "seed", "-1"), "'seed' must hold whole numbers of at least 0. line 4"),
        (changed(2, "checkpoint", "lr0.1_bs10_seed0.pt"), "'checkpoint' twice"),
        (changed(2, "checkpoint", "lost.pt"), "1 of 8 do not: 'lost.pt'"),
        (lambda rows, heading: (rows[:3], heading), "at least 4 networks. Got 3"),
        (lambda rows, heading: ([], heading), "has no networks"),
        (lambda rows, heading: ([*rows, ["a.pt"]], heading), "Line 10 has 1"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_meant_is_refused(change, words, tmp_path):
    rows, heading = change(rows_of(tmp_path), HEADING)
    out = tmp_path / "store"
    text = refused(save(tmp_path, rows, heading), *ARGUMENTS, *MEASURES, *COLUMNS, "--out", out)
    if words == "'checkpoint' twice":
        assert "has the checkpoint" in text
        assert "twice: line 2 and line 4" in text
    else:
        assert words in text
    assert not out.exists()  # before anything ran


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*MEASURES, *COLUMNS, "--model-arg", "hidden=7"), "lr0.1_bs10_seed0.pt' must fit"),
        ((*COLUMNS, "--measures", "norms.wight"), "No measure is called 'norms.wight'"),
        ((*MEASURES, *COLUMNS, "--outcome", "lr"), "'lr' cannot be both: --setting and --outcome"),
        ((*MEASURES, *COLUMNS, "--test", "lost.npz"), "'lost.npz' must exist"),
        ((*MEASURES, *COLUMNS, "--names", "{lr}.pt"), "--names is for checkpoints"),
        ((*MEASURES, *COLUMNS, "--option", "initial=a.pt"), "in a column 'initial'"),
        ((*MEASURES, *COLUMNS, "--loss", "bce"), "cannot be measured on this data"),
        ((*COLUMNS, "--measures", "head.kappa", "--head", "nowhere"), "'nowhere'"),
        ((*MEASURES, *COLUMNS, "--model-column", "lr"), "cannot be built with the options"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(arguments, words, tmp_path):
    out = tmp_path / "store"
    text = refused(write(tmp_path / "runs"), *ARGUMENTS, *arguments, "--out", out)
    assert words in text
    assert not out.exists()


def test_data_and_model_are_needed(tmp_path):
    table = write(tmp_path / "runs")
    assert "--data must say" in refused(table, "--model", "mlp", *COLUMNS)
    assert "--model must say" in refused(table, "--data", "digits", *COLUMNS)


def test_equal_weights_in_two_files_are_one_network(tmp_path):
    found = networks()
    first, second = next(iter(found)), list(found)[5]
    found[second] = found[first][0], found[second][1]
    text = refused(write(tmp_path / "runs", found), *ARGUMENTS, *MEASURES, *COLUMNS)
    assert f"{first!r} and {second!r} have the same weights" in text


def known(**columns):
    rows = [{"checkpoint": f"{i}.pt", **{k: v[i] for k, v in columns.items()}} for i in range(2)]
    return read_networks(NetworkTable(rows, ["line 2", "line 3"], "'t.csv'"), ColumnRoles())


def test_outcomes_that_contradict_each_other_are_refused():
    good = known(train_loss=["0.1", "0.2"], test_loss=["0.3", "0.5"], gap=["0.2", "0.3001"])
    assert good[1]["outcomes"]["gap"] == 0.3001  # rounded, as tables are
    with pytest.raises(SpiritlevelError, match=r"'gap' is 0.1 in line 3 .* make it 0.3"):
        known(train_loss=["0.1", "0.2"], test_loss=["0.3", "0.5"], gap=["0.2", "0.1"])
    with pytest.raises(SpiritlevelError, match=r"shares from 0 to 1.*Divide percentages by 100"):
        known(test_accuracy=["97.5", "98"])


@pytest.mark.parametrize("name", ["status", "network", "model", "norms.weight", "outcome"])
def test_names_with_another_meaning_are_refused(name):
    rows = [{"checkpoint": "a.pt", name: "1"}]
    with pytest.raises(SpiritlevelError, match="another meaning"):
        read_networks(NetworkTable(rows, ["line 2"], "it"), ColumnRoles([name]))


def test_paths_that_do_not_fit_the_names_are_refused(tmp_path):
    write(tmp_path / "runs")
    (tmp_path / "runs" / "best.pt").touch()
    with pytest.raises(SpiritlevelError, match=r"'best.pt' is not of that form"):
        find_networks([tmp_path / "runs"], names="lr{lr}_bs{size}_seed{seed}.pt")
    with pytest.raises(SpiritlevelError, match="names in braces, each once"):
        find_networks([tmp_path / "runs"], names="lr{lr}_{lr}.pt")
    with pytest.raises(SpiritlevelError, match="no 'lr' in the paths or beside"):
        find_networks([tmp_path / "runs"], roles=ColumnRoles(["lr"]))
    with pytest.raises(SpiritlevelError, match="no checkpoints in"):
        find_networks([tmp_path / "nowhere"])


def test_a_model_that_a_table_names_must_be_of_this_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [[*row, "torch.nn:Linear"] for row in rows_of(tmp_path)]
    table = save(tmp_path, rows, f"{HEADING},model")
    text = refused(table, "--data", "digits", *MEASURES, *COLUMNS)
    assert "would run code that is not yours" in text
