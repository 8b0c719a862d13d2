"""What surrounds every call that measures a network.

One thread at a time; the same arguments and weights in all processes; an error in one of them is
raised in all; weights and data that stay the same until the end; no autocast, no inference mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..ground.errors import SpiritlevelError
from .arithmetic import full_precision
from .bit_hashes import hash_tensor
from .distributed import Processes, gathered, refuse_sharded, unwrapped
from .exclusive import claimed, process_state
from .fingerprint import DataRecord
from .host import on_a_device_with_float64
from .shards import may_stay_divided
from .weights import fixed_weights


@dataclasses.dataclass
class _CallState:
    """What the outermost call of a thread and the calls within it share."""

    records: dict[int, tuple[Any, DataRecord]] = dataclasses.field(default_factory=dict)
    models: list[nn.Module] = dataclasses.field(default_factory=list)  # whose weights are watched
    settings: dict[str, str] = dataclasses.field(default_factory=dict)


class _Current(threading.local):
    call: _CallState | None = None


_current = _Current()


def data_record(data: Any) -> DataRecord:
    """What this call has read of the data so far; all networks of a call see the same samples."""
    call = _current.call
    if call is None:
        return DataRecord(data)
    if id(data) not in call.records:
        call.records[id(data)] = data, DataRecord(data)  # with the data, so that its id stays taken
    return call.records[id(data)][1]


def call_settings() -> dict[str, str]:
    """What was switched off for this call, for the settings of its result."""
    return {} if _current.call is None else dict(_current.call.settings)


@contextlib.contextmanager
def surrounded(
    verb: str, arguments: Mapping[str, Any], alike: Mapping[str, Any], *, by_products: bool = False
) -> Iterator[None]:
    """Surround a call that measures its argument `model`, or all of its `models`.

    `alike` are those of its arguments that must be the same in all processes. `by_products` says
    that products with the Hessian are all it needs: a model that FSDP2 has divided stays so then.
    """
    models = _models(arguments)
    processes = Processes(join=arguments.get("distributed", True))
    with claimed(map(unwrapped, models)), process_state(), contextlib.ExitStack() as stack:
        call = stack.enter_context(_shared_call())
        stack.enter_context(_plain_modes(call))
        stack.enter_context(full_precision())
        stack.enter_context(processes.together())
        differences = by_products and arguments.get("products") in ("auto", "difference")
        kept = [each for each in models if differences and may_stay_divided(each, processes)]
        if kept:  # vectors are parts of whole ones
            alike = {name: value for name, value in alike.items() if not isinstance(value, Tensor)}
        for model in models:
            if model in kept:
                continue
            stack.enter_context(gathered(model))
            refuse_sharded(model)
            if moved := stack.enter_context(on_a_device_with_float64(model)):
                call.settings["measured_on"] = moved
        if processes.size > 1:
            _check_alike(verb, alike, processes)
        for model in models:
            if not any(model is each for each in call.models):
                call.models.append(model)
                others = Processes(join=False) if model in kept else processes
                stack.enter_context(fixed_weights(model, others))
        yield


def _models(arguments: Mapping[str, Any]) -> list[nn.Module]:
    """The networks of a call; the verb itself refuses what is none."""
    models = arguments.get("models")
    several = list(models.values()) if isinstance(models, Mapping) else []
    return [each for each in [arguments.get("model"), *several] if isinstance(each, nn.Module)]


@contextlib.contextmanager
def _shared_call() -> Iterator[_CallState]:
    outer = _current.call
    _current.call = call = _CallState() if outer is None else outer
    try:
        yield call
    finally:
        _current.call = outer


@contextlib.contextmanager
def _plain_modes(call: _CallState) -> Iterator[None]:
    """Neither autocast nor inference mode: both would change what is measured.

    Autocast rounds to 8 or 11 bits inside of the network, and second derivatives are made of
    differences that vanish in that. The network is measured in the precision of its weights.
    """
    known = filter(torch.amp.is_autocast_available, ("cpu", "cuda", "mps", "xpu"))  # to this torch
    kinds = [kind for kind in known if torch.is_autocast_enabled(kind)]
    for kind in kinds:
        dtype = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
        call.settings["autocast"] = f"{dtype} on {kind} was switched off"
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        yield


def _check_alike(verb: str, arguments: Mapping[str, Any], processes: Processes) -> None:
    mine = {name: _as_text(value) for name, value in arguments.items()}
    for name, values in processes.differing({"function": verb} | mine):
        raise SpiritlevelError(
            f"All processes must call {verb} with the same arguments. {name!r} differs: {values}. "
            "Pass the same in every process; only data, memory and progress may differ."
        )


def _as_text(value: Any) -> str:
    """A value as text that is the same in all processes if the value is."""
    if value is None or isinstance(value, str | int | float | bool):
        return repr(value)
    if isinstance(value, Tensor):
        return f"a tensor with hash {int(hash_tensor(value))}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_as_text(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_as_text, value)) + "]"
    if isinstance(value, nn.Module):
        return repr(value)
    return getattr(value, "__qualname__", type(value).__qualname__)
