"""Wrong arguments of every kind, for every argument."""

import decimal
import pathlib
from typing import Any

import numpy
import torch
from torch import nn

from spiritlevel.ground.errors import brief

NAN, INF = float("nan"), float("inf")


class Strange:
    """Something that no function here expects."""

    def __repr__(self) -> str:
        return "Strange()"


def values() -> list[Any]:
    """New ones for each call: generators are used up."""
    return [
        *(
            None,
            True,
            False,
            0,
            1,
            -1,
            2**40,
            10**400,
            10**5000,
            3e3,
            0.5,
            -0.5,
            NAN,
            INF,
            -INF,
            1 + 2j,
        ),
        *("", " ", "x", "a.b", "*", "[", "\x00", "\ud800", "a\udc80b", b"", b"x", "9" * 500),
        *("x" * 100_000, numpy.array(["x", "y"]), torch.tensor([1, 2]), torch.device("meta")),
        *([], [None], ["x"], [1, 2], [[]], (), ("x", "y"), set(), {"x"}, frozenset()),
        *({}, {"x": 1}, {1: "x"}, {"x": None}),
        *(numpy.zeros(0), numpy.zeros(3), numpy.array("x"), numpy.float64(0.5), numpy.int64(-1)),
        *(torch.zeros(0), torch.zeros(2, 2), torch.tensor(NAN), torch.empty(3, device="meta")),
        *(nn.ReLU(), nn.Linear, nn.Linear(1, 1, device="meta"), nn.CrossEntropyLoss),
        *(Strange(), Strange, object(), print, len, lambda *a, **k: None, Ellipsis),
        *(range(3), iter([]), (each for each in "x"), pathlib.Path("none"), decimal.Decimal("1")),
    ]


def name(value: Any) -> str:
    return f"{type(value).__name__} {brief(value):.40}".encode("ascii", "backslashreplace").decode()
