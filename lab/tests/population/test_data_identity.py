"""A study goes on with the data it was begun with, or says that they are others."""

import hashlib
import json
import math
import os
import sqlite3

import numpy
import pytest

import spiritlevel as sl
from population.tiny_study import lasting, seal, tiny
from spiritlevel_lab import Store, execute, resume, run
from spiritlevel_lab.population.checks import content
from spiritlevel_lab.population.runs import training_snapshots


def write(path, seed: int = 0) -> dict:
    """Forty samples; what the entry for the file must be."""
    draw = numpy.random.default_rng(seed)
    x, y = draw.standard_normal((40, 64)).astype("float32"), numpy.arange(40) % 10
    numpy.savez(path, x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    return entry(path)


def entry(path) -> dict:
    text = path.read_bytes()
    return {"bytes": len(text), "sha256": hashlib.sha256(text).hexdigest()}


def study(seeds: int):
    return tiny(data="identity.npz", grid={}, seeds=seeds, measures=["norms.weight"])


def kept(folder) -> dict | None:
    with sqlite3.connect(folder / "runs.sqlite") as connection:
        row = connection.execute("SELECT value FROM meta WHERE key = 'data'").fetchone()
    connection.close()
    return None if row is None else json.loads(row[0])


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """The folder of a study that made two of its three runs."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "identity.npz")
    run(study(2), "begun").close()
    Store.create("begun", study(3)).close()
    return tmp_path / "begun"


def test_the_same_content_goes_on(begun):
    file = begun.parent / "identity.npz"
    assert kept(begun) == {"identity.npz": entry(file)}
    os.utime(file, (0, 0))  # when it was written does not count
    with resume(begun) as store:
        assert store.counts().done == 3


def test_other_content_is_refused_and_both_are_named(begun):
    file = begun.parent / "identity.npz"
    then, now = entry(file), write(file, seed=1)
    with pytest.raises(sl.SpiritlevelError) as caught:
        resume(begun)
    text = str(caught.value)
    assert "The data 'identity.npz' have other content than when 2 runs" in text
    for found, when in ((then, "then"), (now, "now")):
        assert f"{found['bytes']:,} bytes with SHA-256 {found['sha256'][:16]}… {when}" in text
    with pytest.raises(sl.SpiritlevelError, match="other content"):
        run(study(3), begun)
    with Store.open(begun) as store:
        assert (store.counts().done, store.counts().pending) == (2, 1)
    assert kept(begun) == {"identity.npz": then}


def test_a_store_without_an_entry_is_not_checked_and_gets_one(begun):
    with sqlite3.connect(begun / "runs.sqlite") as connection:
        connection.execute("DELETE FROM meta WHERE key = 'data'")
    connection.close()
    seal(begun)
    now = write(begun.parent / "identity.npz", seed=1)
    with resume(begun) as store:
        assert store.counts().done == 3
    assert kept(begun) == {"identity.npz": now}


def test_data_may_change_before_the_first_run_is_made_and_after_the_last(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "identity.npz")
    broken = tiny(model={"name": "mlp", "inputs": 63}, data="identity.npz", grid={}, seeds=1)
    with Store.create("study", broken) as store:
        assert execute(store).failed == 1
    mended = write(tmp_path / "identity.npz", seed=1)
    resume("study").close()
    assert kept(tmp_path / "study") == {"identity.npz": mended}
    run(study(1), "whole").close()
    write(tmp_path / "identity.npz", seed=2)
    resume("whole").close()


@pytest.mark.parametrize("executor", ["local", "vmap"])
def test_no_network_is_trained_on_two_files(executor, tmp_path, monkeypatch):
    """Interrupted before a run was finished: what was saved is of the former data."""
    monkeypatch.setattr(training_snapshots, "EVERY", 0.0)
    monkeypatch.setattr(training_snapshots, "SHARE", math.inf)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "identity.npz")

    save = training_snapshots.SnapshotFile.save

    def save_and_stop(file, snapshot):
        save(file, snapshot)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training_snapshots.SnapshotFile, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            run(study(2), "cut", executor=executor)
    assert any((tmp_path / "cut" / training_snapshots.UNFINISHED).iterdir())
    write(tmp_path / "identity.npz", seed=1)
    resume("cut", executor=executor).close()
    run(study(2), "whole", executor=executor).close()
    assert lasting("cut") == lasting("whole")


def test_a_file_of_the_same_name_in_another_folder_is_another(tmp_path, monkeypatch):
    found = []
    for seed, name in enumerate(("one", "two")):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        write(tmp_path / name / "identity.npz", seed=seed)
        with run(study(1), "study") as store:
            found.append(store.rows("epochs")[0]["train_loss"])
    assert found[0] != found[1]


def test_what_a_name_stands_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "mnist", "identity.npz", "cifar.tar.gz"):
        (tmp_path / name).write_bytes(name.encode())
    assert content("digits") is content("mnist") is content("mnist:.") is None
    assert content("gone.npz") is None  # the run itself says so
    assert content("identity.npz") == entry(tmp_path / "identity.npz")
    assert content("cifar10:cifar.tar.gz") == entry(tmp_path / "cifar.tar.gz")


def test_an_image_folder_is_its_images_and_their_classes(tmp_path):
    for name, text in (("cat/1.png", b"one"), ("cat/2.PNG", b"two"), ("dog/3.jpg", b"three")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text)
    before = content(f"folder:{tmp_path}")
    assert before["bytes"] == 11
    (tmp_path / "cat" / "notes.txt").write_text("beside the images")
    (tmp_path / "cat" / ".1.png").write_text("hidden")
    (tmp_path / "page.png").write_text("of no class")
    assert content(f"folder:{tmp_path}") == before
    (tmp_path / "cat" / "2.PNG").rename(tmp_path / "dog" / "2.PNG")
    moved = content(f"folder:{tmp_path}")
    assert moved["bytes"] == 11
    assert moved != before
