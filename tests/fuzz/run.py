"""Attack the library with random cases, and print what fails as short programs.

    python -m fuzz.run --cases 5000 --offset 20260101 --jobs 2

Run it in tests/. Case number i is the same everywhere. `--offset` is the first number; without
it the numbers follow from today's date, so that every night is different. Ends with 1 if something
failed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import multiprocessing
import pathlib
import sys
import time
from collections.abc import Sequence

import torch

from fuzz.case import Case
from fuzz.generate import random_case
from fuzz.judge import Verdict, judge
from fuzz.program import as_program
from fuzz.shrink import failure_kinds, shrink
from fuzz.tally import Tally

CHUNK = 25  # cases handed to a worker at a time


def attack(numbers: Sequence[int]) -> tuple[Tally, list[tuple[int, Case, Verdict]]]:
    """Judge the cases of these numbers; the failing ones come back."""
    torch.set_num_threads(1)
    tally, failed = Tally(), []
    for number in numbers:
        case = random_case(number)
        verdict = judge(case)
        tally.add(case, verdict)
        if verdict.outcome == "failed":
            failed.append((number, case, verdict))
    return tally, failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; the exit code."""
    parser = argparse.ArgumentParser(description="Attack the library with random networks.")
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument(
        "--offset", type=int, default=int(f"{datetime.date.today():%Y%m%d}") * 10000
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--shrink", type=int, default=5, help="how many failures are made small")
    parser.add_argument("--out", type=pathlib.Path, help="a folder for the programs that fail")
    options = parser.parse_args(arguments)
    end = options.offset + options.cases
    print(f"cases {options.offset} to {end - 1}", flush=True)
    chunks = [range(i, min(i + CHUNK, end)) for i in range(options.offset, end, CHUNK)]
    total, failed, start = Tally(), [], time.monotonic()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.jobs, context) as pool:
        for tally, wrong in pool.map(attack, chunks):
            total.merge(tally)
            failed += wrong
            for number, case, verdict in wrong:
                print(f"{number}: {verdict.failures[0]}\n    {case.model_text()}", flush=True)
    print(f"{time.monotonic() - start:.0f} s\n{total.text()}")
    show_programs(failed, options.shrink, options.out)
    return 1 if failed or total.complaints() else 0


def show_programs(
    failed: list[tuple[int, Case, Verdict]], most: int, out: pathlib.Path | None
) -> None:
    """Print one small program for each way to fail, up to `most`."""
    seen: set[frozenset[str]] = set()
    for number, case, verdict in failed:
        kinds = frozenset(failure_kinds(verdict))
        if kinds in seen or len(seen) >= most:
            continue
        seen.add(kinds)
        small, outcome = shrink(case)
        program = as_program(small, outcome.failures)
        print(f"\n---- case {number}, made small ----\n{program}")
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"case_{number}.py").write_text(program, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
