"""Several processes that measure one network together, each on its own part of the data.

Every process has the whole model. Sums over samples are added up over the processes; everything
else is the same in all of them, so all arrive at the same report.

An error in one process is raised in all of them: otherwise the others would wait for it forever.
Blocks of code that all processes run are marked by `Processes.together`. A process that leaves a
block with an error says so in place of what the others wait for, and they leave the same block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
import signal
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ground.errors import NotApplicable, SpiritlevelError
from ..records.measurements import Cost

SHORT = 1000  # bytes of a message that is sent in one round
HEADER = 8  # bytes before it, which say how long it is


@dataclasses.dataclass(frozen=True)
class _Message:
    """What a process tells the others: what it is about to do, or that it leaves a block."""

    step: str
    content: Any = None
    error: str | None = None
    applicable: bool = True  # False: the error only says that a measure does not apply
    level: int = 0  # of the block that the process leaves with its error, from 1 for the outermost


class _Blocks(threading.local):
    """The blocks that this thread is in."""

    level = 0
    left: int | None = None  # the level of a block that another process has left with an error
    error: SpiritlevelError | None = None  # the error that says so


_blocks = _Blocks()


class Processes:
    """The default group of `torch.distributed`, or this process alone."""

    def __init__(self, *, join: bool = True) -> None:
        """`join=False` is this process alone, even under torch.distributed."""
        together = join and dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size() if together else 1
        self.rank = dist.get_rank() if together else 0

    def sum_(self, *tensors: Tensor) -> None:
        """Add up each tensor over the processes, in place."""
        if self.size > 1:
            with _uninterrupted(), self._connected():
                self._exchange(_Message(f"sum of {[tuple(t.shape) for t in tensors]}"))
                for tensor in tensors:
                    dist.all_reduce(tensor)

    def gather(self, thing: Any) -> list[Any]:
        """One object from every process, in the order of their ranks."""
        if self.size == 1:
            return [thing]
        with _uninterrupted():
            return self._exchange(_Message("gather", thing))

    def total_cost(self, cost: Cost) -> Cost:
        """The counted work, added up over all processes."""
        return sum(self.gather(cost), Cost())

    def differing(self, things: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Names of things that are not the same in all processes, with who has what."""
        of_processes = self.gather(things)
        for name in dict.fromkeys(name for part in of_processes for name in part):
            values = [part.get(name) for part in of_processes]
            for rank, value in enumerate(values):
                if value != values[0]:
                    yield name, f"process 0 has {values[0]}, process {rank} has {value}"
                    break

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """If the block fails in one process, raise in all of them with the text of that error."""
        if self.size == 1:
            yield
            return
        _blocks.level += 1
        try:
            yield
        except GeneratorExit:  # a loop over the data ended early, as it does in all processes
            _blocks.level -= 1
            raise
        except BaseException as error:  # of any kind: the other processes must be told
            self._leave(error)
            raise
        else:
            self._leave(None)

    def _leave(self, error: BaseException | None) -> None:
        """End the innermost block; raises if another process has failed in it."""
        level = _blocks.level
        _blocks.level -= 1
        if _blocks.left is not None and level >= _blocks.left:  # the others know already
            told = _blocks.error
            if level == _blocks.left:
                _blocks.left = _blocks.error = None
            if error is None and told is not None:  # it was caught on its way
                raise told
            return
        if error is None:
            message = _Message("end of a block")
        else:
            text = type(error).__name__ + (f": {error}" if str(error) else "")
            applicable = not isinstance(error, NotApplicable)
            message = _Message("error", error=text, applicable=applicable, level=level)
        with _uninterrupted():
            self._exchange(message)

    def _exchange(self, message: _Message) -> list[Any]:
        """The contents of all processes; raises if one of them tells of an error."""
        if _blocks.left is not None and _blocks.error is not None:
            raise _blocks.error
        with self._connected():
            messages = self._told_by_all(message)
        if failed := [rank for rank, each in enumerate(messages) if each.error is not None]:
            left = min(messages[rank].level for rank in failed)
            first = messages[failed[0]]
            kind = SpiritlevelError if first.applicable else NotApplicable
            error = kind(f"Process {failed[0]} could not measure its part. {first.error}")
            self._abandon(left, error)
            if message.error is None:
                raise error
        elif len({each.step for each in messages}) > 1:
            steps = ", ".join(f"{rank}: {each.step}" for rank, each in enumerate(messages))
            error = SpiritlevelError(
                f"All processes must do the same, and they do not ({steps}). Call this with the "
                "same model and arguments in every process, and in one thread of each."
            )
            self._abandon(1, error)
            raise error
        return [each.content for each in messages]

    def _told_by_all(self, message: _Message) -> list[Any]:
        """As `all_gather_object`, whose two rounds only a long message needs."""
        if dist.get_backend() != "gloo":  # it may not send from the memory of the host
            messages: list[Any] = [None] * self.size
            dist.all_gather_object(messages, message)
            return messages
        own = pickle.dumps(message)
        parcels = self._bytes_of_all(len(own).to_bytes(HEADER, "big") + own[:SHORT], HEADER + SHORT)
        lengths = [int.from_bytes(parcel[:HEADER], "big") for parcel in parcels]
        if max(lengths) <= SHORT:
            parcels = [parcel[HEADER:] for parcel in parcels]
        else:
            parcels = self._bytes_of_all(own, max(lengths))
        return [pickle.loads(parcel) for parcel in parcels]  # which ends before the padding

    def _bytes_of_all(self, own: bytes, length: int) -> list[bytes]:
        """The bytes of every process, padded to a length that is the same in all of them."""
        sent = torch.frombuffer(bytearray(own.ljust(length, b"\0")), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(received, sent)
        return [bytes(part.tolist()) for part in received]

    @contextlib.contextmanager
    def _connected(self) -> Iterator[None]:
        """If the others cannot be reached any more, do not try that again in outer blocks."""
        try:
            yield
        except RuntimeError as cause:
            error = SpiritlevelError(
                f"Process {self.rank} cannot reach the other processes. Look for one that was "
                f"killed, or that does not make this call. torch.distributed said: {cause}"
            )
            self._abandon(1, error)
            raise error from cause

    def _abandon(self, left: int, error: SpiritlevelError) -> None:
        """From now on all blocks down to level `left` end with this error, without a word."""
        if _blocks.level >= left:
            _blocks.left, _blocks.error = left, error


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block ends: half an exchange would leave the others waiting."""
    pressed: list[Any] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    signal.signal(signal.SIGINT, lambda *event: pressed.append(event))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            before(*pressed[0])


def refuse_sharded(model: torch.nn.Module) -> None:
    """Raise SpiritlevelError if each process holds only a part of the model.

    What `fully_shard` has divided was gathered before.
    """
    kinds = {type(module).__name__ for module in model.modules()}
    parameters = {type(parameter).__name__ for parameter in model.parameters()}
    if "FullyShardedDataParallel" in kinds or "DTensor" in parameters:
        how = "by FullyShardedDataParallel (FSDP1)" if "DTensor" not in parameters else ""
        raise SpiritlevelError(
            f"The model's weights are divided among processes {how or 'by tensor parallelism'}: no "
            "process holds a whole weight, so the norms, products and per-sample gradients of a "
            "layer cannot be formed. Models sharded by torch.distributed.fsdp.fully_shard can be "
            "measured as they are. Others: gather the weights into an unwrapped copy first: "
            "state = torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True)), then "
            "load them into the plain model in every process and measure that; its data may stay "
            "split over the processes."
        )


def in_group() -> bool:
    """Whether this is one of several processes, so that hooks may add up gradients over them.

    torch drops such hooks from a parameter whose values are replaced by ones of another type, and
    nothing tells from outside whether a parameter has them.
    """
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The user's module inside DataParallel, DistributedDataParallel and torch.compile."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), torch.nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


_FSDP_HOOKS = (
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
)


@contextlib.contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Whole weights in every process during the block, if the model is sharded by FSDP2.

    A measurement needs whole weights: their norms, products with them, directions in their space.
    So they are gathered for the time of a call, as the model itself does layer by layer, and
    divided again afterwards. Every process then holds the whole model, though neither its gradients
    nor the state of an optimizer. The hooks that gather and divide around each layer rest
    meanwhile: they would be parts of the graph of which nothing is known.
    """
    sharded: list[Any] = [module for module in model.modules() if is_sharded(module)]
    if not sharded or not any(type(p).__name__ == "DTensor" for p in model.parameters()):
        yield
        return
    with contextlib.ExitStack() as stack:
        for module in sharded:
            module.unshard()
            stack.callback(module.reshard)
            _rest(module, stack)
        yield


def is_sharded(module: nn.Module) -> bool:
    """By its base class, which `fully_shard` adds; without importing torch.distributed."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def _rest(module: nn.Module, stack: contextlib.ExitStack) -> None:
    """Take the hooks of FSDP off a module until the stack is closed."""
    for table in _FSDP_HOOKS:
        stack.callback(setattr, module, table, getattr(module, table).copy())
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for key, hook in list(hooks.items()):
            if type(getattr(hook, "__self__", None)).__name__ == "FSDPState":
                del hooks[key]
