"""New interpreters that import the package, against those that import torch alone.

What `import spiritlevel` adds is its ratio minus 1. The modules it loads are counted beside it.
"""

from __future__ import annotations

import functools
import subprocess
import sys

import torch
from harness import Ratio, compare

TORCH = "import torch"
COMMAND = "import sys; sys.argv[1:] = {}; from spiritlevel.cli import main; main()"
WORK = {  # with the goal
    "import torch and spiritlevel": (f"{TORCH}, spiritlevel", 1.1),
    "import torch and a verb": (f"{TORCH}, spiritlevel as sl; sl.measure", None),
    "spiritlevel --help": (COMMAND.format(["--help"]), None),
    "spiritlevel measure --help": (COMMAND.format(["measure", "--help"]), None),
}
COUNT = "; import sys; print(sum(name.startswith('spiritlevel') for name in sys.modules))"


def run(device: torch.device, repeats: int) -> list[Ratio]:
    """On a CPU alone: nothing is computed."""
    if device.type != "cpu":
        return []
    modules = int(_interpreter("import spiritlevel" + COUNT))
    return [
        compare(
            name,
            functools.partial(_interpreter, code),
            functools.partial(_interpreter, TORCH),
            device=device,
            repeats=repeats,
            goal=goal,
            modules_of_the_package=modules,
        )
        for name, (code, goal) in WORK.items()
    ]


def _interpreter(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return done.stdout
