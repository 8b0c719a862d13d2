"""A case: a few choices, in plain types, from which a network, its data and a call are written.

`Case.setup()` is a program. Running it gives the names that the judge needs:

    model, data, loss, forward     what a user would pass to spiritlevel
    run                            (model, batch) -> outputs and targets, one row a prediction
    truth                          (all outputs, all targets) -> the mean loss, by plain torch
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from fuzz.losses import LED, LOSSES
from fuzz.productions import CHANNELS, ODD_STEMS, PRODUCTIONS, READOUTS, SEQUENCE, STEMS

TIME = 2  # positions of a sequence, where batches do not differ
INPUTS = {  # what is done to normal inputs; tokens are left as they are where numbers are changed
    "normal": "",
    "first_blank": "x[0] = 0",
    "second_blank": "x[1:2] = 0",
    "all_blank": "x[:] = 0",
    "duplicates": "x[1:3] = x[0]",
    "constant": "x[:] = x[:1].clone()",
    "large": "x *= 30",
    "tiny": "x *= 1e-3",
    "first_three_left": "x[:3] = -x[:3].abs()",
    "first_five_left": "x[:5] = -x[:5].abs()",
    "first_five_right": "x[:5] = x[:5].abs()",
}
ON_TOKENS = ("normal", "first_blank", "second_blank", "all_blank", "duplicates", "constant")
LAYOUTS = ("pair", "dict", "forward", "mask")
DTYPES = ("float64", "float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Node:
    """One part of a network, with what it holds inside."""

    kind: str
    choices: dict[str, Any] = dataclasses.field(default_factory=dict)
    inner: tuple[tuple[Node, ...], ...] = ()

    def text(self, stream: str) -> str:
        """The expression that makes it."""
        parts = [chain_text(chain, stream) for chain in self.inner]
        production = PRODUCTIONS[self.kind]
        return production.text.format(*parts, **self.choices, channels=CHANNELS[stream])

    def kinds(self) -> Iterator[str]:
        """Its kind and those of everything inside."""
        yield self.kind
        for chain in self.inner:
            for node in chain:
                yield from node.kinds()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Node:
        """The inverse of `dataclasses.asdict`."""
        inner = tuple(tuple(cls.from_dict(node) for node in chain) for chain in data["inner"])
        return cls(data["kind"], data["choices"], inner)


def chain_text(chain: tuple[Node, ...], stream: str) -> str:
    """Several parts, one after the other, as one module."""
    if not chain:
        return "nn.Identity()"
    if len(chain) == 1:
        return chain[0].text(stream)
    return f"nn.Sequential({', '.join(node.text(stream) for node in chain)})"


@dataclasses.dataclass(frozen=True)
class Case:
    """One network, one data set, one call; `seed` draws the weights and the data."""

    seed: int
    stem: str
    body: tuple[Node, ...]
    readout: str
    loss: str = "cross_entropy"
    dtype: str = "float64"
    inputs: str = "normal"
    sizes: tuple[int, ...] = (5,)
    lengths: tuple[int, ...] = ()  # of the sequences of each batch; empty: all alike
    layout: str = "pair"
    measures: tuple[str, ...] = ("curvature.trace",)
    method: str = "auto"
    max_passes: int = 8
    call_seed: int = 0
    memory: int | None = None  # 1: every sample is a chunk of its own
    lead: float = 0.0  # of the output of class 0 before the others; if not 0, all labels are 0

    def to_json(self) -> str:
        """As text; `Case.from_json` reads it back."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        """The inverse of `to_json`."""
        data = json.loads(text)
        data["body"] = tuple(Node.from_dict(node) for node in data["body"])
        for key in ("sizes", "lengths", "measures"):
            data[key] = tuple(data[key])
        return cls(**data)

    @property
    def stream(self) -> str:
        """What passes through the network."""
        return STEMS[self.stem][0]

    def kinds(self) -> list[str]:
        """The kinds of all parts of the body."""
        return [kind for node in self.body for kind in node.kinds()]

    def features(self) -> set[str]:
        """Everything about it that failures and refusals are counted by."""
        return {
            *self.kinds(),
            f"stem {self.stem}",
            f"readout {self.readout}",
            f"loss {self.loss}",
            f"inputs {self.inputs}",
            f"layout {self.layout}",
            f"method {self.method}",
            *([f"dtype {self.dtype}"] if self.dtype != "float64" else []),
            *(["varying lengths"] if self.lengths else []),
            *(["chunks of one sample"] if self.memory else []),
            *(["one sample"] if sum(self.sizes) == 1 else []),
            *(["confident"] if self.lead else []),
            *(f"measure {name}" for name in self.measures),
        }

    def odd(self) -> str:
        """Why a refusal is a good answer; empty if the case must be measured."""
        reasons = [PRODUCTIONS[kind].odd for kind in self.kinds()]
        reasons += [ODD_STEMS.get(self.stem, ""), LOSSES[self.loss].odd]
        return next((reason for reason in reasons if reason), "")

    def straight(self) -> bool:
        """Whether the outputs are sure to be piecewise linear in every single layer."""
        body = all(PRODUCTIONS[kind].straight for kind in self.kinds())
        ends = self.readout not in ("two_layers", "cosine", "bounded") and self.stem != "bag_max"
        return body and ends and not LOSSES[self.loss].last and not self.lead

    # -- the program -------------------------------------------------------------------------

    def model_text(self) -> str:
        """The expression that makes the network."""
        _, _, readout = READOUTS[self.readout]
        parts = [STEMS[self.stem][2], *(node.text(self.stream) for node in self.body)]
        parts += [readout.format(C=3)]
        parts += [last] if (last := LOSSES[self.loss].last) else []
        parts += [f"Leading({self.lead})"] if self.lead else []
        return f"nn.Sequential({', '.join(part for part in parts if part != 'nn.Identity()')})"

    def setup(self) -> str:
        """The lines that make model, data, loss, forward, run and truth."""
        lines = [f"dtype = torch.{self.dtype}", f"torch.manual_seed({self.seed})"]
        lines += [f"model = randomize({self.model_text()}).to(dtype)"]
        lines += [f"g = torch.Generator().manual_seed({self.seed})"]
        lines += [*self._data_lines(), *self._call_lines()]
        return "\n".join(lines) + "\n"

    def _data_lines(self) -> list[str]:
        n, loss, time = sum(self.sizes), LOSSES[self.loss], max(self.lengths, default=TIME)
        numbers = STEMS[self.stem][1] == "numbers"
        if numbers:
            shape = {"rows": (n, 4), SEQUENCE: (n, time, 4), "image": (n, 2, 4, 4)}[self.stream]
            lines = [f"x = torch.randn({shape}, generator=g, dtype=torch.float64)"]
        else:
            lines = [f"x = torch.randint(5, {(n, time)}, generator=g)"]
        if INPUTS[self.inputs] and (numbers or self.inputs in ON_TOKENS):
            lines.append(INPUTS[self.inputs])
        rows = (n, time) if self.per_token else (n,)
        lines.append(f"y = {loss.targets.format(C=3, rows=rows, cells=(*rows, 3))}")
        lines += ["y = torch.zeros_like(y)"] if self.lead else []
        lines.append("x, y = (t.to(dtype) if t.is_floating_point() else t for t in (x, y))")
        if self.layout == "mask":
            lines.append(f"shown = torch.rand({rows}, generator=g) < 0.7")
            lines.append("shown.view(-1)[0] = True")
        lines.append(f"data = [{', '.join(self._batch_texts())}]")
        return lines

    @property
    def per_token(self) -> bool:
        """Whether every position has outputs and a target of its own."""
        return READOUTS[self.readout][1] == "tokens"

    def _batch_texts(self) -> Iterator[str]:
        start = 0
        for number, size in enumerate(self.sizes):
            cut = f"{start}:{start + size}"
            if self.lengths:
                length = f", :{self.lengths[number]}"
                x = f"x[{cut}{length}]"
                rows = f"[{cut}{length if self.per_token else ''}]"
            else:
                x, rows = f"x[{cut}]", f"[{cut}]"
            pair = {"mask": f"({x}, y{rows}, shown{rows})"}
            pair["pair"] = f"({x}, y{rows})"
            pair["dict"] = f"{{'input': {x}, 'labels': y{rows}}}"
            pair["forward"] = f"{{'seen': {x}, 'wanted': y{rows}}}"
            yield pair[self.layout]
            start += size

    def _call_lines(self) -> list[str]:
        loss = LOSSES[self.loss]
        x, y = {
            "pair": ("batch[0]", "batch[1]"),
            "dict": ("batch['input']", "batch['labels']"),
            "forward": ("batch['seen']", "batch['wanted']"),
            "mask": ("batch[0]", "batch[1]"),
        }[self.layout]
        forward = {
            "pair": "None",
            "dict": "None",
            "forward": f"lambda model, batch: (model({x}), {y})",
            "mask": f"lambda model, batch: (model({x}), {y}, batch[2])",
        }[self.layout]
        flat = ".flatten(0, 1)" if self.per_token and self.layout != "mask" else ""
        shown = "[batch[2]]" if self.layout == "mask" else ""
        return [
            f"loss = {loss.given}",
            f"forward = {forward}",
            f"run = lambda model, batch: (model({x}){shown}{flat}, {y}{shown}{flat})",
            f"truth = lambda z, y: {LED if self.lead else loss.truth}",
        ]
