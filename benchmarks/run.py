"""Run the benchmarks: `python benchmarks/run.py [names] [--device cuda] [--repeats 7]`."""

from __future__ import annotations

import argparse
import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import catalogue
import compiled
import growth
import head
import hundred_products
import hutchinson
import importing
import lm_head
import recorded
import strangers
import sweep
import training_steps
import vmap
import whole_calls
from harness import RESULTS, machine, record

BENCHMARKS = {
    "head": head.run,
    "sweep": sweep.run,
    "hutchinson": hutchinson.run,
    "growth": growth.run,
    "hundred_products": hundred_products.run,
    "importing": importing.run,
    "lm_head": lm_head.run,
    "training": training_steps.run,
    "catalogue": catalogue.run,
    "vmap": vmap.run,
    "recorded": recorded.run,
    "compiled": compiled.run,
    "whole_calls": whole_calls.run,
    "strangers": strangers.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all if none is given"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--tf32", action="store_true", help="let convolutions use TF32 on a GPU")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmarks {sorted(unknown)}; there are {', '.join(BENCHMARKS)}")
    device = torch.device(arguments.device)
    # Work and floor in the same precision: the contractions are float32, so the convolutions are.
    torch.backends.cudnn.allow_tf32 = arguments.tf32
    print(machine(device))
    for name in arguments.names or BENCHMARKS:
        rows = BENCHMARKS[name](device, arguments.repeats)
        if rows:  # some are for a GPU
            record(name, device, rows, arguments.out)


if __name__ == "__main__":
    main()
