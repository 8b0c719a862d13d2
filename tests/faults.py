"""Faults at chosen moments of a call, and everything that must be as it was afterwards.

A call is run once to count its moments, and then again with a fault at one of them. Moments at
which the library is putting something back do not count: Python has no way to finish a `finally`
that is interrupted itself.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import pathlib
import random
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import spiritlevel

STEP = "torch/optim/sgd.py"
SOURCE = str(pathlib.Path(spiritlevel.__file__).parent)
HOOK_DICTS = [
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
]


class Planted(Exception):
    """A fault that nobody expects."""


def stop() -> None:
    """Press Ctrl-C."""
    signal.raise_signal(signal.SIGINT)
    for _ in range(1000):  # until Python looks at signals
        pass


def fail() -> None:
    """Raise what no code of the library catches by its kind."""
    raise Planted("planted")


class Moments:
    """Counts the moments of a call, and does something at one of them."""

    def __init__(self, at: int | None = None, act: Callable[[], None] = fail) -> None:
        self.at, self.act, self.count = at, act, 0

    def __call__(self, *_: Any) -> None:
        if restoring(sys._getframe()):
            return
        self.count += 1
        if self.count == self.at:
            self.act()


def restoring(frame: FrameType | None) -> bool:
    """Whether the library is putting something back: in a `finally`, or leaving a context.

    Or torch's own optimizer makes a step, which it does not take back.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(SOURCE) and (
            code.co_name == "__exit__" or frame.f_lineno in put_back(code.co_filename)
        ):
            return True
        if code.co_filename.endswith(STEP):
            return True
        if code.co_name == "__exit__" and pathlib.Path(code.co_filename).stem == "contextlib":
            return True
        frame = frame.f_back
    return False


@functools.cache
def put_back(path: str) -> set[int]:
    """The lines of a file that are in a `finally`, or in an `except` that raises again."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(pathlib.Path(path).read_text("utf-8"))):
        if isinstance(node, ast.Try):
            raising = [h for h in node.handlers if isinstance(h.body[-1], ast.Raise)]
            parts: list[ast.stmt | ast.excepthandler] = [*node.finalbody, *raising]
            for part in parts:
                lines.update(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    return lines


# -- where faults come from: each counts the moments of the block that are its own -------------


class _Operations(TorchDispatchMode):
    def __init__(self, moments: Moments) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moments = moments

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.moments()
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def in_operations(model: nn.Module, moments: Moments) -> Iterator[None]:
    """Every operation of torch, forward or backward, the library's own or the network's."""
    with _Operations(moments):
        yield


@contextlib.contextmanager
def in_forwards(model: nn.Module, moments: Moments) -> Iterator[None]:
    """Every call of a module of the network."""
    handles = [module.register_forward_hook(moments) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def in_backwards(model: nn.Module, moments: Moments) -> Iterator[None]:
    """Every gradient that arrives at the output of a module."""

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.requires_grad:
            output.register_hook(moments)

    handles = [module.register_forward_hook(hook) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class Loader:
    """Batches, each of which is a moment."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.moments = batches, Moments()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.moments()
            yield batch


PLACES: dict[str, Callable[[nn.Module, Moments], contextlib.AbstractContextManager[None]]] = {
    "operation": in_operations,
    "forward": in_forwards,
    "backward": in_backwards,
}
KINDS: dict[str, tuple[Callable[[], None], type[BaseException]]] = {
    "error": (fail, Planted),
    "Ctrl-C": (stop, KeyboardInterrupt),
}


def moment(key: str, count: int) -> int:
    """One of `count` moments, the same for the same key in every run."""
    return random.Random(key).randint(1, count)


# -- what must be as it was ---------------------------------------------------------------------


def state_of(
    model: nn.Module, data: Any = (), optimizer: torch.optim.Optimizer | None = None
) -> dict[str, Any]:
    """Everything a measurement could disturb, as copies; tensors by identity as well."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    return {
        "values": {name: t.detach().clone() for name, t in tensors.items()},
        "identities": {name: id(t) for name, t in tensors.items()},
        "storages": {name: t.data_ptr() for name, t in tensors.items()},
        "grads": {
            name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
        },
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        "modes": {name: m.training for name, m in model.named_modules()},
        "hooks": {
            (name, kind): list(getattr(m, kind))
            for name, m in model.named_modules()
            for kind in HOOK_DICTS
        },
        "attributes": {name: sorted(vars(m)) for name, m in model.named_modules()},
        "switches": {
            name: {key: value for key, value in vars(m).items() if isinstance(value, bool)}
            for name, m in model.named_modules()
        },
        "data": copy.deepcopy(data),
        "torch rng": torch.random.get_rng_state(),
        "python rng": random.getstate(),
        "numpy rng": [str(part) for part in numpy.random.get_state()],
        "grad mode": torch.is_grad_enabled(),
        "torch modes": (
            len(_get_current_function_mode_stack()),
            len(_get_current_dispatch_mode_stack()),
            torch.backends.mha.get_fastpath_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.flash_sdp_enabled(),
            torch.get_float32_matmul_precision(),
        ),
        "optimizer": {} if optimizer is None else _held(optimizer),
    }


def _held(optimizer: torch.optim.Optimizer) -> dict[Any, Tensor]:
    """The numbers in an optimizer's state, by parameter number and name."""
    state = optimizer.state_dict()["state"]
    return {
        (number, key): torch.as_tensor(value).clone()
        for number, entries in state.items()
        for key, value in entries.items()
        if value is not None
    }


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for part, expected in before.items():
        if part in ("values", "grads", "optimizer"):
            assert expected.keys() == after[part].keys()
            for name, value in expected.items():
                found = after[part][name]
                assert (found is None) == (value is None), (part, name)
                assert value is None or torch.equal(found, value), (part, name)
        elif part == "data":
            flat = [t for batch in expected for t in batch]
            assert all(
                torch.equal(a, b)
                for a, b in zip(flat, (t for b in after[part] for t in b), strict=True)
            )
        elif isinstance(expected, torch.Tensor):
            assert torch.equal(after[part], expected), part
        else:
            assert after[part] == expected, part
