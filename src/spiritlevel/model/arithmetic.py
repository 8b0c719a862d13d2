"""Faster arithmetic where a user asks for it: TF32 or bfloat16 instead of float32.

Everything is computed in the model's own precision unless something else was asked for. Then the
passes over the data use the faster arithmetic, and sums over samples are in float64 as ever. What
is found out about a model first, whether its derivatives can be trusted and where its samples are,
is always found out in full precision: there rounding would look like a mistake.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch

from ..errors import SpiritlevelError
from ..need import need, one_of
from .exclusive import process_state

Arithmetic = Literal["full", "tf32", "bf16"]


def check_arithmetic(arithmetic: str, device: torch.device) -> None:
    """Raise SpiritlevelError for an arithmetic that does not exist there."""
    known = get_args(Arithmetic)
    then = "'full' computes in the model's own precision."
    need("arithmetic", arithmetic, one_of(known), f"one of {', '.join(known)}", then)
    if arithmetic == "tf32" and device.type != "cuda":
        raise SpiritlevelError(
            "The 'arithmetic' argument 'tf32' needs an NVIDIA GPU, where it is the tensor cores' "
            f"way of multiplying float32 numbers. The model is on {device.type!r}. "
            "Use 'full', or move the model."
        )


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """No TF32 during the block: results are compared there to the last digits of float32."""
    with _tf32(False):
        yield


@contextlib.contextmanager
def computing_fast(arithmetic: Arithmetic) -> Iterator[None]:
    """TF32 during the block if TF32 or less was asked for."""
    if arithmetic == "full":
        yield
        return
    with _tf32(True):
        yield


def calling(arithmetic: Arithmetic, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context for a call of the model; a backward takes after the call.

    Each use of a weight gets its own rounded copy, so that its uses can be told apart.
    """
    if arithmetic != "bf16":
        return contextlib.nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    backends: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    with process_state():
        before = [backend.allow_tf32 for backend in backends]
        try:
            for backend in backends:
                backend.allow_tf32 = allowed
            yield
        finally:
            for backend, was in zip(backends, before, strict=True):
                backend.allow_tf32 = was
