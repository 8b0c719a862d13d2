"""Planted breaks: is a wrong line of the library noticed by the tests that should notice it?

    python tests/planted_breaks.py                       every break, one after another
    python tests/planted_breaks.py --only sam-radius     one break; may be given several times
    python tests/planted_breaks.py --jobs 2              two at a time
    python tests/planted_breaks.py --list                what there is, without running anything
    python tests/planted_breaks.py --by-day              without what is left to the night
    python tests/planted_breaks.py --unbroken            the same tests on the library as it is

The breaks are in planted_breaks.json beside this file. Each has an id, what is then wrong, the text
to replace (`old`), what replaces it (`new`), and the tests that must fail: names of test files
without folder and ending, of test functions, or "file::function". A case of them that would be left
to the night runs by day where `by_day` names it (`conftest.py` sees to that). `old` must stand
exactly once in the library, in whatever file, so that a break survives when files are moved. The
checkout is never changed: every break goes into a copy of it, tests included, since some of them
start processes that import the library from beside the tests.

Ends with 1 if a break survived, no longer applies, or led to something other than a failing test
(nothing collected, an import error, no end in time): then repair the break or write the test.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence

HERE = pathlib.Path(__file__).resolve()
ROOT = next(folder for folder in HERE.parents if (folder / "pyproject.toml").is_file())
FOLDERS = ("src/spiritlevel", "experiments/publishing")  # where a break can stand
LEFT_OUT = (".git", ".venv", "venv", "__pycache__", ".*_cache", "build", "dist", "site")
BREAKS = HERE.with_suffix(".json")
TIMEOUT = 300.0  # seconds for one break
UNBROKEN_TIMEOUT = 3600  # seconds for all selected tests together
# exit codes of pytest; the others mean that it could not do its work
PASSED, FAILED, NONE_SELECTED = 0, 1, 5

CAUGHT, SURVIVED, STALE, UNCLEAR = "caught", "SURVIVED", "no longer applies", "no verdict"


@dataclasses.dataclass(frozen=True)
class Break:
    """One wrong line; the fields are explained at the top."""

    id: str
    what: str
    old: str
    new: str
    tests: tuple[str, ...]
    by_day: str = ""  # one of their cases, as "file::function[case]", that is not left to the night


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a break; `detail` is the test that failed, or what went wrong."""

    id: str
    verdict: str
    seconds: float
    detail: str


class Stale(Exception):
    """A break that does not fit the library or its tests any more."""


def read_breaks(path: pathlib.Path = BREAKS) -> list[Break]:
    """All breaks of the file; refuses two of one id and texts that change nothing."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    breaks = [Break(**entry | {"tests": tuple(entry["tests"])}) for entry in entries]
    seen: set[str] = set()
    for each in breaks:
        if each.id in seen:
            raise SystemExit(f"{path.name} has two breaks with the id {each.id!r}.")
        if each.old == each.new or not each.old or not each.tests:
            raise SystemExit(f"{path.name}: {each.id!r} changes nothing or selects no test.")
        seen.add(each.id)
    return breaks


def library_files(checkout: pathlib.Path) -> list[pathlib.Path]:
    """All files in which a break can stand."""
    return [path for folder in FOLDERS for path in sorted((checkout / folder).rglob("*.py"))]


def place_of(old: str, checkout: pathlib.Path) -> pathlib.Path:
    """The only file of the library in which a text stands, and stands once."""
    places = []
    for path in library_files(checkout):
        places += [path] * path.read_text(encoding="utf-8").count(old)
    if len(places) != 1:
        where = ", ".join(sorted({str(path.relative_to(checkout)) for path in places}))
        raise Stale(f"its text stands {len(places)} times in the library ({where or 'nowhere'})")
    return places[0]


def plant(each: Break, checkout: pathlib.Path) -> None:
    """Put a break into a copy of the checkout."""
    path = place_of(each.old, checkout)
    text = path.read_text(encoding="utf-8").replace(each.old, each.new)
    try:
        compile(text, str(path), "exec")
    except SyntaxError as error:
        raise Stale(f"what it leaves in {path.name} is not Python: {error.msg}") from error
    path.write_text(text, encoding="utf-8")


def find_tests(names: Iterable[str], tests: pathlib.Path) -> list[str]:
    """Arguments for pytest; "file", "function" and "file::function" are found in any folder."""
    files = sorted(tests.rglob("test_*.py"))
    arguments: list[str] = []
    for name in names:
        stem, _, function = name.rpartition("::")
        matching = [str(path) for path in files if not stem and path.stem == function]
        if not matching:
            defined = re.compile(rf"^def {re.escape(function)}\(", re.MULTILINE)
            there = [path for path in files if stem in ("", path.stem)]
            holding = [p for p in there if defined.search(p.read_text(encoding="utf-8"))]
            matching = [f"{path}::{function}" for path in holding]
        if not matching:
            raise Stale(f"there is no test {name!r}")
        arguments += matching
    return list(dict.fromkeys(arguments))


def run_pytest(
    names: Iterable[str], copy: pathlib.Path, *options: str, timeout: float, by_day: bool = False
) -> tuple[int | None, str]:
    """Exit code (None: it was stopped, with all that it had started) and what pytest wrote."""
    environment = os.environ | {
        "PYTHONPATH": str(copy / "src"),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # the copy is used once
    }
    tests = find_tests(names, copy / "tests")
    every = ["-q", "-p", "no:cacheprovider"]
    if not by_day:
        every.append("--all-samples")
        if all("::" in test for test in tests):
            every += ["-m", ""]  # a test that is named runs, also one of those for the night
    arguments = [*every, *options, *tests]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        written, _ = process.communicate(timeout=timeout)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return None, ""
        raise
    return process.returncode, written


@contextlib.contextmanager
def copied_checkout() -> Iterator[pathlib.Path]:
    """A copy of the checkout for the block, without what is made or installed in it."""
    with tempfile.TemporaryDirectory(prefix="planted-break-") as folder:
        copy = pathlib.Path(folder, "checkout")
        shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        yield copy


def try_break(each: Break, timeout: float, by_day: bool) -> Outcome:
    """Plant it, run its tests, and see whether one of them fails."""
    start = time.monotonic()

    def outcome(verdict: str, detail: str) -> Outcome:
        return Outcome(each.id, verdict, round(time.monotonic() - start, 1), detail)

    with copied_checkout() as copy:
        try:
            plant(each, copy)
            code, written = run_pytest(each.tests, copy, "-x", timeout=timeout, by_day=by_day)
        except Stale as stale:
            return outcome(STALE, str(stale))
    if code is None:
        return outcome(UNCLEAR, f"no end within {timeout:g} seconds")
    if code == PASSED:
        return outcome(SURVIVED, f"all tests of {', '.join(each.tests)} pass")
    if by_day and code == NONE_SELECTED:
        return outcome(SURVIVED, f"no test of {', '.join(each.tests)} runs by day")
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", written, re.MULTILINE)
    if code == FAILED and failed:
        return outcome(CAUGHT, failed[1])
    return outcome(UNCLEAR, f"pytest ended with {code}: {written.strip()[-300:]}")


def try_unbroken(breaks: Sequence[Break]) -> int:
    """Run all selected tests on the library as it is: a test that fails anyway catches nothing."""
    names = dict.fromkeys(name for each in breaks for name in each.tests)
    with copied_checkout() as copy:
        try:
            code, written = run_pytest(names, copy, timeout=UNBROKEN_TIMEOUT)
        except Stale as stale:
            print(stale)
            return 1
    print(written.strip()[-3000:] if code is not None else "The tests did not end in time.")
    return 0 if code == PASSED else 1


def print_table(breaks: Sequence[Break], outcomes: Sequence[Outcome]) -> None:
    """One line a break, what is wrong with those that were not caught, and the counts."""
    width = max(len(each.id) for each in breaks)
    print()
    for each, outcome in zip(breaks, outcomes, strict=True):
        print(f"{each.id:<{width}}  {outcome.verdict:<17}  {outcome.seconds:6.1f} s  {each.what}")
    for outcome in outcomes:
        if outcome.verdict != CAUGHT:
            print(f"\n{outcome.id}: {outcome.verdict}; {outcome.detail}")
    caught = sum(outcome.verdict == CAUGHT for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    print(f"\n{caught} of {len(outcomes)} breaks caught, in {seconds:.0f} s")


def chosen_breaks(only: Sequence[str]) -> list[Break]:
    """Those with the given ids, or all."""
    breaks = read_breaks()
    ids = [each.id for each in breaks]
    if unknown := [id_ for id_ in only if id_ not in ids]:
        raise SystemExit(f"--only must be the id of a break. Got {unknown[0]!r}. See --list.")
    return [each for each in breaks if not only or each.id in only]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; the exit code."""
    parser = argparse.ArgumentParser(description="Plant breaks and see whether tests catch them.")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this break")
    parser.add_argument("--list", action="store_true", help="print the breaks and run nothing")
    parser.add_argument(
        "--unbroken", action="store_true", help="run the selected tests on the library as it is"
    )
    parser.add_argument(
        "--by-day", action="store_true", help="leave the night's cases out, as `make test` does"
    )
    parser.add_argument("--jobs", type=int, default=1, help="breaks at a time (default: 1)")
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT, help=f"seconds for a break (default: {TIMEOUT:g})"
    )
    parser.add_argument("--json", type=pathlib.Path, help="also write the outcomes to this file")
    options = parser.parse_args(arguments)
    breaks = chosen_breaks(options.only)
    if options.list:
        for each in breaks:
            print(f"{each.id}: {each.what} [{', '.join(each.tests)}]")
        return 0
    if options.unbroken:
        return try_unbroken(breaks)
    outcomes = []
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        for outcome in pool.map(
            lambda each: try_break(each, options.timeout, options.by_day), breaks
        ):
            print(f"{outcome.id}: {outcome.verdict}, {outcome.detail}", flush=True)
            outcomes.append(outcome)
            if options.json is not None:
                rows = [dataclasses.asdict(each) for each in outcomes]
                options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print_table(breaks, outcomes)
    return 0 if all(outcome.verdict == CAUGHT for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
