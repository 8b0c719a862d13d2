"""The wheels with the oldest and the newest versions, on every Python that is installed here.

`make matrix` runs it; `python tests/version_matrix.py dist newest-3.11` runs one case alone. Each
case gets an empty environment below .venv-matrix, without the repository on its path, and runs
`spiritlevel check` and the tests of the mathematics. What the package index does not have is
skipped, and said so; a failure is a failure.

Nothing is built from source, and no build of torch for CUDA is fetched: either takes longer than
all tests together.
"""

from __future__ import annotations

import functools
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[1]
WORK = ROOT / ".venv-matrix"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TESTED = ("tests/math", "tests/records", "tests/verbs/test_errors.py")
CASES = {"oldest": ROOT / "tests" / "lowest.txt", "newest": ROOT / "constraints.txt"}
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LAST_PLAIN_ARM = "2.10.0"  # on Linux, the last torch for ARM on PyPI that is no build for CUDA
LONGEST = 45 * 60  # seconds for a command: a hanging one is a failure, not a wait


def run(*command: str | pathlib.Path, cwd: pathlib.Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command without this environment's PYTHONPATH, and with one thread."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        return subprocess.run(
            [*map(str, command)],
            cwd=cwd,
            capture_output=True,
            text=True,
            env=kept | {"OMP_NUM_THREADS": "1"},
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(error.cmd, 124, "", f"took over {LONGEST // 60} minutes")


def pythons() -> dict[str, str]:
    """Interpreters by version: the one that runs this, those on the path, and those of pyenv.

    A shim of pyenv is on the path even where no version behind it is chosen, so each is asked.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    working = {}
    for version in PYTHONS:
        kept = sorted((home / "versions").glob(f"{version}.*/bin/python{version}"))
        places = [sys.executable if version == here else None, shutil.which(f"python{version}")]
        asks = (
            f"import sys; sys.exit(sys.version_info[:2] != {tuple(map(int, version.split('.')))})"
        )
        for path in (*places, *kept):
            if path and run(path, "-c", asks).returncode == 0:
                working[version] = str(path)
                break
    return working


def builds_of_torch(constraints: str) -> list[str]:
    """Requests for the torch of the constraints that lead to no build for CUDA, best first.

    Only on Linux does PyPI hold builds for CUDA under the plain version. A request for +cpu is
    answered by PyTorch's own index, or by a folder of wheels that pip is told of.
    """
    (version,) = re.findall(r"^torch==(\S+)", constraints, flags=re.M)
    if platform.system() != "Linux":
        return [f"torch=={version}"]
    requests = [f"torch=={version}+cpu"]
    if platform.machine() == "aarch64":
        numbers = [tuple(map(int, each.split("."))) for each in (version, LAST_PLAIN_ARM)]
        requests.append(f"torch=={'.'.join(map(str, min(numbers)))}")
    return requests


@functools.cache
def cpu_index() -> list[str]:
    """PyTorch's own index as options of pip; none where it cannot be reached, as pip would wait."""
    try:
        urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=10).close()
    except OSError:
        return []
    return ["--extra-index-url", CPU_INDEX]


def installed(inside: pathlib.Path, case: str, wheels: Sequence[pathlib.Path]) -> str:
    """Install everything, and return which torch it is. LookupError where the index lacks it."""
    text = CASES[case].read_text(encoding="utf-8")
    others = inside.parent / "constraints.txt"  # the version of torch stands in the request
    others.write_text(re.sub(r"^torch==.*\n", "", text, flags=re.M), encoding="utf-8")
    instrument, laboratory = wheels
    wanted = (f"{instrument}[cli,scipy,report,plots,frames]", laboratory)
    extra = ("pytest", "pytest-xdist", "scikit-learn")
    why = ""
    for torch in builds_of_torch(text):
        pip = (inside, "-m", "pip", "install", "-q", "--only-binary", ":all:", "-c", others)
        found = run(*pip, *cpu_index(), torch, *wanted, *extra)
        if found.returncode == 0:
            return torch
        lines = [line for line in found.stderr.splitlines() if line.startswith("ERROR")]
        why = lines[0] if lines else found.stderr.strip()[-100:] or "pip failed"
    raise LookupError(why)


def tried(case: str, version: str, python: str, wheels: Sequence[pathlib.Path]) -> str:
    """What became of one case, in a few words; the first is ok, skipped or FAILED."""
    folder = WORK / f"{case}-{version}"
    run(python, "-m", "venv", "--clear", folder)
    inside = folder / "bin" / "python"
    if not inside.exists():  # on Windows
        inside = folder / "Scripts" / "python.exe"
    try:
        torch = installed(inside, case, wheels)
    except LookupError as error:
        return f"skipped: the index has no such set ({str(error)[:120]})"
    checked = run(inside, "-m", "spiritlevel", "check", cwd=WORK)
    if checked.returncode:
        return f"FAILED: spiritlevel check: {checked.stderr.strip()[-200:]}"
    tests = run(inside, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTED)
    last = (tests.stdout.strip().splitlines() or ["no output"])[-1]
    if tests.returncode:
        which = re.findall(r"^(?:FAILED|ERROR) .*", tests.stdout, flags=re.M)
        return "\n  ".join((f"FAILED with {torch}: {last} {tests.stderr.strip()[-200:]}", *which))
    return f"ok with {torch}: {last}"


def main(folder: str, *chosen: str) -> int:
    """Try the cases with the wheels in a folder; 1 if one failed or none could be tried."""
    wheels = sorted(pathlib.Path(folder).resolve().glob("*.whl"))  # "spiritlevel-", "…_lab-"
    WORK.mkdir(exist_ok=True)
    outcomes, found = [], pythons()
    for version, python in found.items():
        for case in CASES:
            if chosen and f"{case}-{version}" not in chosen:
                continue
            started = time.monotonic()
            outcomes.append(tried(case, version, python, wheels))
            shutil.rmtree(WORK / f"{case}-{version}", ignore_errors=True)  # a GB each
            took = f"{time.monotonic() - started:.0f} s"
            print(f"Python {version}, {case} versions: {outcomes[-1]} ({took})", flush=True)
    for version in PYTHONS:
        if version not in found:
            print(f"Python {version}: skipped, not installed here")
    failed = any(outcome.startswith("FAILED") for outcome in outcomes)
    return 1 if failed or not any(outcome.startswith("ok") for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
