"""Studies on a machine without a network: which start when, and what comes back."""

import argparse
import importlib.util
import pathlib
import subprocess
import sys
import tarfile

import pytest

from spiritlevel.study import Store

SCRIPT = pathlib.Path(__file__).parents[2] / "experiments" / "offline.py"


@pytest.fixture(scope="module")
def offline():
    spec = importlib.util.spec_from_file_location("offline", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["offline"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["offline"]


@pytest.mark.parametrize("text", ["digits", "digits/quick", "digits/quick=a", "digits=2"])
def test_a_job_that_cannot_be_read_is_refused(offline, text):
    with pytest.raises(argparse.ArgumentTypeError, match=f"^'{text}' is not NAME/PRESET=WORKERS"):
        offline.Job.read(text)


def test_jobs_start_in_order_as_far_as_places_are_free(offline):
    a, b, c, last = map(offline.Job.read, ("a/=8", "b/p=9:vmap", "c/=4", "+d/=1"))
    assert offline.startable([a, b, c, last], [], 16) == [a, c]
    assert offline.startable([b, last], [c], 16) == [b]
    assert offline.startable([last], [b], 16) == []
    assert offline.startable([last], [], 16) == [last]
    assert offline.startable([b], [], 4) == [b]  # more than there are: all of them
    assert offline.startable([b, c], [a], 4) == []


def test_what_is_typed_for_a_job(offline):
    command = offline.Job.read("b/p=9:vmap").command(pathlib.Path("s"), "cuda", ["--set", "lr=1"])
    assert " ".join(command[1:]) == (
        "-m spiritlevel study run b --preset p --out s/b-p --quiet --device cuda --workers 9 "
        "--executor vmap --set lr=1"
    )
    assert "--preset" not in offline.Job.read("a/=8").command(pathlib.Path("s"), "cpu", [])


@pytest.mark.nightly
@pytest.mark.parametrize(("seconds", "weights"), [(120, True), (120, False), (6, False)])
def test_two_studies_run_and_their_stores_come_back(tmp_path, seconds, weights):
    (tmp_path / "packages").mkdir()
    command = [sys.executable, SCRIPT, "run", "packages", "digits/glance=1", "+digits/quick=1"]
    command += ["--device", "cpu", "--seconds", str(seconds), "--set", "training.epochs=1"]
    if weights:
        command.append("--weights")
    subprocess.run(command, cwd=tmp_path, check=True, timeout=240)
    with tarfile.open(tmp_path / "build" / "stores.tgz") as packed:
        names = packed.getnames()
        packed.extractall(tmp_path / "back", filter="data")
    assert any(name.endswith(".safetensors") for name in names) == weights
    with Store.open(tmp_path / "back" / "digits-glance") as store:
        counts = store.counts()
    assert counts.running == 0
    if seconds == 120:
        assert counts.done == counts.total == 8
        with Store.open(tmp_path / "back" / "digits-quick") as store:
            assert store.counts().done == 48
