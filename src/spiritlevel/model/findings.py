"""What earlier calls found out about a network, so that later ones need not find it out again.

Whether derivatives can be trusted is a question about a network's code, not about the values of
its weights: a monitor that asks after every epoch has the same answer. It is kept for as long as
the model lives, and used only while nothing has changed that can be seen from outside: modules,
their settings and hooks, parameters, loss, and the graph that autograd records.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from torch import nn

Found = TypeVar("Found")

MOST = 4  # versions of one network that are kept apart: other losses, other modules
_SETTING = (bool, int, float, str, type(None))
_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs"),
)
_records: weakref.WeakKeyDictionary[nn.Module, list[Findings]] = weakref.WeakKeyDictionary()


class Findings:
    """Findings about a network with one loss, by what they depend on besides."""

    def __init__(self, structure: Hashable, arguments: tuple[Any, ...]) -> None:
        """`arguments` are the user's; they are not kept alive."""
        self.structure = structure
        self._arguments = [_reference(argument) for argument in arguments]
        self._findings: dict[Hashable, Any] = {}

    def about(self, structure: Hashable) -> Findings:
        """The same findings, of another network that does the same."""
        other = Findings(structure, ())
        other._arguments, other._findings = self._arguments, self._findings
        return other

    def is_about(self, structure: Hashable, arguments: tuple[Any, ...]) -> bool:
        """Whether this is the network and the loss."""
        if structure != self.structure:
            return False
        then = [reference() for reference in self._arguments]
        return all(a is b for a, b in zip(then, arguments, strict=True))

    def __contains__(self, key: Hashable) -> bool:
        return key in self._findings

    def get(self, key: Hashable) -> Any:
        """What was found before, or None."""
        return self._findings.get(key)

    def put(self, key: Hashable, found: Any) -> None:
        """Keep a finding. It must not refer to the model, or the model would never go."""
        self._findings[key] = found

    def recall(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """What was found before, or is found now."""
        if key not in self._findings:
            self._findings[key] = find()
        found: Found = self._findings[key]
        return found


def findings_about(model: nn.Module, *arguments: Any) -> Findings:
    """The findings of earlier calls with these arguments on the network as it is now."""
    records, structure = _records.setdefault(model, []), _structure(model)
    for record in records:
        if record.is_about(structure, arguments):
            return record
    records.insert(0, Findings(structure, arguments))
    del records[MOST:]
    return records[0]


def share(original: nn.Module, copied: nn.Module) -> None:
    """Let a copy with other weights recall what is known about the original."""
    if _kinds(original) != _kinds(copied):
        return
    before, now = _structure(original), _structure(copied)
    records = [each for each in _records.get(original, ()) if each.structure == before]
    # before those of its own: what has run on the copy already began an empty record
    _records.setdefault(copied, [])[:0] = [record.about(now) for record in records]


def _structure(model: nn.Module) -> Hashable:
    """Everything that can be seen from outside, and which objects it consists of."""
    modules = tuple((id(m), id(m.__dict__.get("forward"))) for m in model.modules())
    return modules, tuple(map(id, model.parameters())), _kinds(model)


def _kinds(model: nn.Module) -> Hashable:
    """What the modules and parameters of a network are, whichever objects they are."""
    modules = tuple(
        (
            type(module),
            "forward" in module.__dict__,
            tuple((k, v) for k, v in module.__dict__.items() if isinstance(v, _SETTING)),
            tuple(len(module.__dict__.get(hooks) or ()) for hooks in _HOOKS),
        )
        for module in model.modules()
    )
    parameters = tuple(
        (name, p.shape, p.dtype, p.device, p.requires_grad, len(p._backward_hooks or ()))
        for name, p in model.named_parameters()
    )
    return modules, parameters


def _reference(argument: Any) -> Callable[[], Any]:
    """The argument itself, or None once it is gone: a loss may hold the model."""
    if isinstance(argument, _SETTING):
        return lambda: argument
    try:
        return weakref.ref(argument)
    except TypeError:  # it will never be recognized
        return object
