"""Tensors that modules hold beside parameters and buffers, and those that a call leaves there.

Some models keep tensors on their modules from one call to the next: a table made of weights, the
state of a recurrence. Left there they would hold the graph of a measurement, and a table that was
made of one set of weights would be used for another.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

_TORCHS_OWN = frozenset(vars(nn.Module()))


@dataclasses.dataclass(frozen=True)
class _Value:
    """An attribute as it was: the object itself, and a copy of what it held."""

    module: nn.Module
    name: str
    value: Any
    held: Any = None
    is_there: bool = True

    @classmethod
    def of(cls, module: nn.Module, name: str) -> _Value:
        """The attribute as it is now."""
        if name not in vars(module):
            return cls(module, name, None, is_there=False)
        value = vars(module)[name]
        if isinstance(value, Tensor) and not value.is_inference():
            return cls(module, name, value, (value._version, value.detach().clone()))
        return cls(module, name, value, copy.copy(value) if type(value) in (dict, list) else None)

    def has_changed(self, now: _Value) -> bool:
        """Whether it holds other tensors than before; other values are the user's own affair."""
        if not any(map(_is_tensor, [*_parts(self), *_parts(now)])):
            return False
        if self.value is not now.value or self.is_there != now.is_there:
            return True
        if isinstance(self.value, Tensor):
            return self.held is not None and self.held[0] != self.value._version
        before, parts = _parts(self), _parts(now)
        return len(before) != len(parts) or any(
            a is not b for a, b in zip(before, parts, strict=True)
        )

    def put_back(self) -> None:
        """Make it what it was."""
        if not self.is_there:
            del vars(self.module)[self.name]
            return
        vars(self.module)[self.name] = self.value
        if isinstance(self.value, dict):
            self.value.clear()
            self.value.update(self.held)
        elif isinstance(self.value, list):
            self.value[:] = self.held
        elif isinstance(self.value, Tensor) and self.held is not None:
            version, content = self.held
            if version != self.value._version:
                with torch.no_grad():
                    self.value.copy_(content)


def _parts(value: _Value) -> list[Any]:
    """What an attribute holds: itself, or what its container held."""
    if type(value.value) is dict:
        return list(value.held.values())
    return list(value.held) if type(value.value) is list else [value.value]


def _is_tensor(part: Any) -> bool:
    return isinstance(part, Tensor)


class Attributes:
    """Attributes of modules as they are now, all or those that a call was seen to change."""

    def __init__(self, model: nn.Module) -> None:
        """Of all modules, but for what every module of torch has."""
        self._values = {
            (id(module), name): _Value.of(module, name)
            for module in model.modules()
            for name in vars(module)
            if name not in _TORCHS_OWN
        }
        self._modules: list[nn.Module] | None = list(model.modules())

    def restore(self) -> Attributes:
        """Put back what holds other tensors now, and return these attributes alone."""
        values = dict(self._values)
        for module in self._modules or ():
            for name in vars(module).keys() - _TORCHS_OWN:
                values.setdefault((id(module), name), _Value(module, name, None, is_there=False))
        changed = {
            key: value
            for key, value in values.items()
            if value.has_changed(_Value.of(value.module, value.name))
        }
        for value in changed.values():
            value.put_back()
        found = copy.copy(self)
        found._values, found._modules = changed, None
        return found


@contextlib.contextmanager
def attributes_kept(model: nn.Module) -> Iterator[None]:
    """Put back on leaving what holds other tensors than before."""
    attributes = Attributes(model)
    try:
        yield
    finally:
        attributes.restore()
