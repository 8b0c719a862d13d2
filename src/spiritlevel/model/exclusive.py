"""Threads take turns: what a measurement switches belongs to the whole process.

TF32, the attention kernels, the stance of the compiler and torch's random state are shared by all
threads. Two measurements at once would each restore what the other had set. So whoever changes them
holds one lock, which the same thread may take again. A model that another thread is measuring is
refused at once: waiting would hide that two threads use the same weights.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from ..ground.errors import SpiritlevelError

Address = tuple[str, int]


class _Turns:
    """The lock, who has it, and the memory that each thread is measuring."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner: int | None = None
        self.depth = 0
        self.claims_lock = threading.Lock()
        self.claims: dict[int, list[frozenset[Address]]] = {}  # by thread, innermost call last

    def keep_only_this_thread(self) -> None:
        """In a forked child: the other threads do not exist there and would never let go."""
        thread = threading.get_ident()
        self.claims_lock = threading.Lock()
        self.claims = {t: claims for t, claims in self.claims.items() if t == thread}
        if self.owner != thread:
            self.lock, self.owner, self.depth = threading.RLock(), None, 0


_turns = _Turns()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turns.keep_only_this_thread)


@contextlib.contextmanager
def process_state() -> Iterator[None]:
    """Only this thread changes torch's process-wide state during the block."""
    lock = _turns.lock
    with lock:
        _turns.owner = threading.get_ident()
        _turns.depth += 1
        try:
            yield
        finally:
            _turns.depth -= 1
            if _turns.depth == 0:
                _turns.owner = None


def of_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, without what other threads do with the model in the meantime."""
    thread = threading.get_ident()

    def call(*args: Any) -> Any:
        return hook(*args) if threading.get_ident() == thread else None

    return call


@contextlib.contextmanager
def claimed(models: Iterable[nn.Module]) -> Iterator[None]:
    """Only this thread measures these models during the block, or any that share their weights."""
    addresses: dict[Address, str] = {}
    for model in models:
        for name, module in model.named_modules():  # weights may be replaced for a moment
            addresses["object", id(module)] = name or type(module).__name__
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            addresses[_address(tensor)] = name
    thread = threading.get_ident()
    claim = frozenset(addresses)
    with _turns.claims_lock:
        for other, claims in _turns.claims.items():
            common = claim.intersection(frozenset().union(*claims))
            if other != thread and common:
                raise SpiritlevelError(
                    "A model must be measured by one thread at a time. Another thread is "
                    f"measuring one with the same {addresses[max(common)]!r}. Wait for that "
                    "thread, or measure copy.deepcopy(model)."
                )
        _turns.claims.setdefault(thread, []).append(claim)
    try:
        yield
    finally:
        with _turns.claims_lock:
            _turns.claims[thread].pop()
            if not _turns.claims[thread]:
                del _turns.claims[thread]


def _address(tensor: Tensor) -> Address:
    """Where the values lie; tensors without memory are told apart by identity."""
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError, ValueError):  # lazy, or wrapping other tensors
        address = 0
    return ("object", id(tensor)) if address == 0 else (str(tensor.device), address)
