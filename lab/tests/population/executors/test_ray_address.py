"""A cluster that was there before, and a driver that is killed: its runs are not lost."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import fresh
from population.executors.ray_turns import ray_turn
from population.tiny_study import lasting
from spiritlevel_lab import Store, execute, find

LONG = 300.0  # seconds; a busy machine takes them, a free one does not
NETS = """
import pathlib, sys, time
from spiritlevel.inputs.models import mlp

def make(waits):
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        pathlib.Path("clusters").open("a").write(ray.get_runtime_context().gcs_address + "\\n")
    while waits and not pathlib.Path("go").exists():
        time.sleep(0.05)
    return mlp(hidden=4)
"""
STUDY = """
name: tiny
model: {name: "waiting_nets:make"}
data: {name: digits, samples: 60}
training: {epochs: 2, batch_size: 20, momentum: 0.9}
grid: {model.waits: [false, true]}
seeds: 2
measures: [head.trace, norms.weight]
measure_every: 1
"""


@contextlib.contextmanager
def head_node(environment):
    """A real one with ports and a folder of its own; its address."""
    # The paths of sockets must be short. `ray` of the same environment need not be on the path.
    start = "import sys; from ray.scripts.scripts import main; sys.exit(main())"
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        options = ["--head", "--block", "--port=0", "--num-cpus=1"]
        options += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
        options += ["--object-store-memory=80000000"]
        with open(pathlib.Path(folder) / "said", "w+") as said:
            head = subprocess.Popen(
                [sys.executable, "-c", start, "start", *options],
                env=environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                until(lambda: "Ray runtime started" in (text := read(said)) or stopped(head, text))
                yield (pathlib.Path(folder) / "ray_current_cluster").read_text().strip()
            finally:
                head.terminate()  # it stops the processes that it started
                try:
                    head.wait(30)
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(head.pid, signal.SIGKILL)


def read(file) -> str:
    file.seek(0)
    return file.read()


def stopped(process, text: str) -> bool:
    assert process.poll() is None, text
    return False


def until(happened) -> None:
    end = time.monotonic() + LONG
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.nightly  # test_ray.py has the rows of a cluster that loses workers
def test_a_driver_killed_with_its_cluster_going_on_resumes_to_the_rows_of_an_undisturbed_study(
    tmp_path, monkeypatch
):
    pytest.importorskip("ray", reason="the ray executor needs ray: pip install 'spiritlevel[ray]'")
    (tmp_path / "waiting_nets.py").write_text(NETS)
    (tmp_path / "tiny.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    environment = os.environ | {"PYTHONPATH": fresh.PATH, "RAY_AUTH_MODE": "disabled"}
    with ray_turn(), head_node(environment) as address:
        command = [sys.executable, "-m", "spiritlevel.cli", "study", "run", "tiny.yaml"]
        command += ["--out", "cluster", "--executor", "ray", "--address", address]
        with open("said", "w+") as said:
            driver = subprocess.Popen(
                command, env=environment, stdout=said, stderr=subprocess.STDOUT
            )
            # Two are done, one waits for the file `go`, one was sent ahead.
            until(lambda: states("cluster") == (2, 2) or stopped(driver, read(said)))
        driver.kill()
        driver.wait()
        pathlib.Path("go").touch()
        again = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=LONG, check=False
        )
        assert again.returncode == 0, again.stderr
        assert "4 of 4 runs done; 2 of them now" in " ".join(again.stdout.split())
    assert set(pathlib.Path("clusters").read_text().split()) == {address}
    with Store.create("here", find("tiny.yaml")) as store:
        execute(store)
    assert lasting("cluster") == lasting("here")
    with Store.open("cluster") as store:
        assert [row["attempt"] for row in store.rows("runs")] == [1, 1, 2, 2]
        assert [row["deaths"] for row in store.rows("runs")] == [0, 0, 1, 1]


def states(folder: str) -> tuple[int, int]:
    """Runs that are done and at work."""
    if not pathlib.Path(folder, "study.json").exists():
        return 0, 0
    with Store.open(folder) as store:
        return store.counts().done, store.counts().running
