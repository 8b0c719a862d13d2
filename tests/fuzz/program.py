"""A case as a short program that needs nothing but torch and spiritlevel."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

from fuzz.case import Case
from fuzz.namespace import MODULES, names_for_setup

IMPORTS = {  # the line that brings a name, in the order of the lines
    "Any": "from typing import Any",
    "copy": "import copy",
    "torch": "import torch",
    "F": "import torch.nn.functional as F",
    "Tensor": "from torch import Tensor",
    "nn": "from torch import nn",
    "once_differentiable": "from torch.autograd.function import once_differentiable",
    "functional_call": "from torch.func import functional_call",
    "parametrize": "from torch.nn.utils import parametrize",
    "pack_padded_sequence": "from torch.nn.utils.rnn import pack_padded_sequence",
    "pad_packed_sequence": "from torch.nn.utils.rnn import pad_packed_sequence",
    "checkpoint": "from torch.utils.checkpoint import checkpoint",
    "sl": "import spiritlevel as sl",
}

TRUTH = """\
# The truth: differences of the gradients of a copy in float64.
exact = copy.deepcopy(model).double()
parameters = [p for p in exact.parameters() if p.requires_grad]


def double(value):
    if isinstance(value, dict):
        return {key: double(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(double(part) for part in value)
    return value.double() if value.is_floating_point() else value


def gradient():
    exact.zero_grad(set_to_none=True)
    z, y = zip(*(run(exact, double(batch)) for batch in data))
    truth(torch.cat(z), torch.cat(y)).backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters]


gradient()
for name, p in exact.named_parameters():
    if p.requires_grad:
        number = [q is p for q in parameters].index(True)
        rows = []
        for i in range(p.numel()):
            sides = []
            for step in (1e-5, -1e-5):
                before = p.detach().clone()
                p.data.view(-1)[i] += step
                sides.append(gradient()[number])
                p.data.copy_(before)
            rows.append(((sides[0] - sides[1]) / 2e-5).flatten())
        H = torch.stack(rows)
        print(f"{name}: trace {H.trace():.8g}, lambda_max {torch.linalg.eigvalsh(H)[-1]:.8g}")
"""


def as_program(case: Case, failures: list[str] = ()) -> str:  # type: ignore[assignment]
    """The text; `failures` are shown at the top."""
    call = _call_text(case)
    setup = case.setup()
    parts = _sources(setup)
    body = "\n\n\n".join([*parts, setup + call + "\n" + TRUTH])
    used = _names(body)
    lines = [line for name, line in IMPORTS.items() if name in used]
    comments = [f"# {line}" for failure in failures for line in textwrap.wrap(failure, 95)]
    return "\n".join([*comments, f"# {case.to_json()}", *lines, "", "", body])


def _call_text(case: Case) -> str:
    measures = [name for name in case.measures if name != "eigenvalues"]
    common = f"loss=loss, forward=forward, seed={case.call_seed}"
    common += f", memory={case.memory}" if case.memory else ""
    text = ""
    if measures:
        text += (
            f"report = sl.measure(model, data, measures={measures}, method={case.method!r},\n"
            f"                    max_passes={case.max_passes}, {common})\n"
            "print(report)\n"
            "for name, rows in report.layers.items():\n"
            "    for layer, m in rows.items():\n"
            "        print(f'{name} of {layer}: {m.value:.8g} {m.mark}')\n"
        )
    if "eigenvalues" in case.measures:
        text += f"print(sl.eigenvalues(model, data, num=2, max_passes=300, {common}))\n"
    return text


def _names(source: str) -> set[str]:
    """All names that a program reads."""
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


def _sources(setup: str) -> list[str]:
    """The classes and functions that a program uses, those that others need first."""
    available: dict[str, Any] = names_for_setup()
    ordered: dict[str, str] = {}

    def add(name: str) -> None:
        value = available.get(name)
        if name in ordered or getattr(value, "__module__", "") not in HOMES:
            return
        source = inspect.getsource(value)
        for other in sorted(_names(source) - {name}):
            add(other)
        ordered[name] = source.rstrip()

    for name in sorted(_names(setup)):
        add(name)
    return list(ordered.values())


HOMES = {module.__name__ for module in MODULES}
