"""The wheel with the oldest and the newest versions, on every Python that is installed here.

`make matrix` runs it. Each case gets an empty environment below .venv-matrix, without the
repository on its path, and runs `spiritlevel check` and the tests of the mathematics. What the
package index does not have is skipped, and said so; a failure is a failure.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
WORK = ROOT / ".venv-matrix"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
TESTED = ("tests/math", "tests/results")
CASES = {"oldest": ROOT / "tests" / "lowest.txt", "newest": ROOT / "constraints.txt"}


def run(*command: str | pathlib.Path, cwd: pathlib.Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command; nothing of this environment reaches it but the path to programs."""
    return subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True)


def pythons() -> dict[str, str]:
    """Interpreters by version: those on the path, and the one that runs this."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = {version: shutil.which(f"python{version}") for version in PYTHONS}
    found[here] = found.get(here) or sys.executable
    working = {}
    for version, path in found.items():
        if path and run(path, "-c", "import sys").returncode == 0:
            working[version] = path
    return working


def tried(case: str, version: str, python: str, wheel: pathlib.Path) -> str:
    """What became of one case, in a few words; the first is ok, skipped or FAILED."""
    folder = WORK / f"{case}-{version}"
    run(python, "-m", "venv", "--clear", folder)
    inside = folder / "bin" / "python"
    if not inside.exists():  # on Windows
        inside = folder / "Scripts" / "python.exe"
    wanted = f"{wheel}[cli,study,report,plots,frames]"
    extra = ("pytest", "pytest-xdist", "scikit-learn")
    install = (inside, "-m", "pip", "install", "-q", "-c", CASES[case], wanted, *extra)
    installed = run(*install)
    if installed.returncode:
        lines = [line for line in installed.stderr.splitlines() if line.startswith("ERROR")]
        return f"skipped: the index has no such set ({lines[0][:90] if lines else 'pip failed'})"
    checked = run(inside, "-m", "spiritlevel", "check", cwd=WORK)
    if checked.returncode:
        return f"FAILED: spiritlevel check: {checked.stderr.strip()[-200:]}"
    tests = run(inside, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTED)
    last = (tests.stdout.strip().splitlines() or ["no output"])[-1]
    return f"{'FAILED' if tests.returncode else 'ok'}: {last}"


def main(folder: str) -> int:
    """Try all cases with the wheel in a folder; 1 if one failed or none could be tried."""
    [wheel] = pathlib.Path(folder).resolve().glob("*.whl")
    WORK.mkdir(exist_ok=True)
    outcomes = []
    for version, python in pythons().items():
        for case in CASES:
            outcomes.append(tried(case, version, python, wheel))
            print(f"Python {version}, {case} versions: {outcomes[-1]}", flush=True)
    for version in PYTHONS:
        if version not in pythons():
            print(f"Python {version}: skipped, not installed here")
    failed = any(outcome.startswith("FAILED") for outcome in outcomes)
    return 1 if failed or not any(outcome.startswith("ok") for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
