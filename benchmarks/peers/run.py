"""Every library, every question, every network, side by side in one run.

    make bench-peers                      on the CPU, in an environment of its own
    make bench-peers DEVICE=cuda          on a GPU
    python benchmarks/peers/run.py --networks VGG-small --questions "exact trace"

The networks have learned their data; one is as initialized. Every library answers in the ways that
its documentation names, at equal accuracy: one that stops by itself or is exact is called as it is;
one that is told how many products to take is given as many as the tolerance asks for, by the
measured spread of one product, or by the measured error of several seeds. What it does by default
is a question of its own. `cells.py` says how a call is timed.

The first questions are asked about all networks before the others. The file is written after every
cell. With `--seconds` no cell is begun after that time; the next run goes on where this one ended.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import pathlib
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from cells import Cell, Examiner, told
from diagonals import BackPack, Laplace, NNGeometry
from harness import RESULTS, machine
from ours import Spiritlevel
from products import Curvlinops, Eigenthings, PyHessian
from subjects import SUBJECTS, Made
from tools import DEFAULT, DENSITY, DIAGONAL, EXACT, GGN, LARGEST, LAYERS, TRACES, Network

LIBRARIES = (Spiritlevel, BackPack, NNGeometry, Laplace, PyHessian, Curvlinops, Eigenthings)
TO_10, TO_3, TO_1 = TRACES
FIRST = (EXACT, TO_10, LARGEST, LAYERS)
THEN = (TO_1, TO_3, DEFAULT, GGN, DIAGONAL, DENSITY)
ON_CPU = ("MLP", "tanh-MLP", "MLP, untrained", "VGG-small")
CLOCKS = {"cuda": "wall", "cpu": "processor"}
LAST = ("ResNet-50", "head of GPT-2")  # where time allows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", nargs="*", default=None, choices=SUBJECTS)
    parser.add_argument("--questions", nargs="*", default=[*FIRST, *THEN])
    parser.add_argument("--libraries", nargs="*", default=None)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for one cell's calls")
    parser.add_argument("--seconds", type=float, default=None, help="begin no cell after these")
    parser.add_argument("--out", type=pathlib.Path, default=None)
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # the same precision for all
    torch.backends.mha.set_fastpath_enabled(False)  # its kernel has no forward derivative
    out = options.out or RESULTS / f"peers-{device.type}.json"
    record = Record(out, device)
    end = time.monotonic() + (options.seconds or float("inf"))
    chosen = options.networks or (ON_CPU if device.type == "cpu" else list(SUBJECTS))
    made: dict[str, Examiner] = {}
    failed: set[str] = set()
    libraries = options.libraries or [library.name for library in LIBRARIES]
    for questions in (FIRST, THEN):
        for network in chosen:
            for question in [q for q in questions if q in options.questions]:
                missing = [each for each in libraries if not record.has(network, question, each)]
                if not asked(network, question) or not missing or network in failed:
                    continue
                if time.monotonic() > end:
                    return
                try:  # what is ours to provide must not fail as an answer of others
                    if network not in made:
                        made[network] = Examiner(network, Made(network, device), options.limit)
                        record.begin(made[network])
                    made[network].prepare(question)
                except Exception as raised:
                    failed.add(network)
                    print(f"{network}, {question}: no truth, {told(raised)}", flush=True)
                    continue
                for library in LIBRARIES:
                    if library.name not in missing:
                        continue
                    if time.monotonic() > end:
                        return
                    examiner = made[network]
                    if device.type == "cuda":
                        record.find_part(examiner)
                    record.put(examiner, list(examiner.ask(library, question)))


def asked(network: str, question: str) -> bool:
    """Whether the question has an answer there: nobody has the exact trace of a GPT-2."""
    is_exact = SUBJECTS[network].is_certified or network == LAST[1]
    return is_exact or question not in (EXACT, DIAGONAL)


class Record:
    """The file, written after every cell."""

    def __init__(self, path: pathlib.Path, device: torch.device) -> None:
        self.path, self.device = path, device
        held = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        self.networks: dict[str, dict[str, object]] = held.get("networks", {})
        self.cells = [Cell(**row) for row in held.get("cells", [])]

    def has(self, network: str, question: str, library: str) -> bool:
        wanted = (network, question, library)
        return any((c.network, c.question, c.library) == wanted for c in self.cells)

    def begin(self, examiner: Examiner) -> None:
        """Drop what was recorded of a network that did not turn out the same in training."""
        held = self.networks.get(examiner.name)
        if held is not None and held["loss"] != examiner.made.loss:
            self.cells = [cell for cell in self.cells if cell.network != examiner.name]

    def put(self, examiner: Examiner, found: list[Cell]) -> None:
        new = {(c.network, c.question, c.library) for c in found}
        kept = [c for c in self.cells if (c.network, c.question, c.library) not in new]
        self.cells = kept + found
        made = examiner.made
        self.networks[examiner.name] = {
            "loss": made.loss,
            "accuracy": made.accuracy,
            "parameters": made.parameters,
            "data": list(made.data[0].shape),
            "spread of one product": made.spread,
            "truth known to": made.known_to,
        }
        content = {
            "machine": machine(self.device) | {"clock": CLOCKS[self.device.type]},
            "versions": {each.name: version(each.package) for each in LIBRARIES},
            "networks": self.networks,
            "cells": [dataclasses.asdict(cell) for cell in self.cells],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        for cell in found:
            print(cell, flush=True)

    def find_part(self, examiner: Examiner) -> None:
        """Samples at a time with which BackPACK takes no more memory than our exact trace."""
        made = examiner.made
        of_ours = (examiner.name, EXACT, "spiritlevel")
        ours = [c.peak_bytes for c in self.cells if (c.network, c.question, c.library) == of_ours]
        if made.part is not None or not ours or ours[0] is None:
            return
        count = made.part = len(made.data[0])
        while made.part > 1:
            data = (made.data[0][: made.part], made.data[1][: made.part])
            is_linear = made.subject.is_piecewise_linear
            base = torch.cuda.memory_allocated(self.device)
            library = BackPack(Network(made.fresh(), data, is_linear, None))
            torch.cuda.reset_peak_memory_stats(self.device)
            try:
                library.ways(DIAGONAL)[0].call(0, 0)
            except Exception:
                made.part = count
                return
            if torch.cuda.max_memory_allocated(self.device) - base <= ours[0]:
                return
            made.part //= 2


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "this commit" if package == "spiritlevel" else "unknown"


if __name__ == "__main__":
    main()
