"""Embeddings as plain functions of their tables, while a model is measured.

Three options of `nn.Embedding` and `nn.EmbeddingBag` belong to training and not to the function:

    max_norm            shortens the rows that are looked up, in place, in every forward
    scale_grad_by_freq  divides a row's gradient by how often the row occurs in the batch
    sparse              gives the gradient in another format

They are switched off during a measurement. Rows that the model would shorten are shortened before
anything is measured, and put back at the end. In calls of the functions behind these modules
nothing can be switched off; such calls are refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..ground.errors import SpiritlevelError

OFF: dict[str, Any] = {"max_norm": None, "scale_grad_by_freq": False, "sparse": False}
# By how much a row may be longer than max_norm, in units of eps: torch shortens rows to round-off.
ROUND_OFF = 10

# The names of the positional arguments of the functions that look rows up.
_LOOKUPS: dict[Any, tuple[str, ...]] = {
    F.embedding: (),  # torch passes on all options by name
    F.embedding_bag: (),
    torch.embedding: ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse"),
}


@contextlib.contextmanager
def plain_embeddings(
    model: nn.Module, look_up_all: Callable[[], None] | None = None
) -> Iterator[None]:
    """Switch the options off in the block; flags and tables are restored at its end.

    `look_up_all` runs the model on all data, so that the rows which it would shorten anyway are
    shortened before anything is measured. Without it, looking up a row that is too long is refused.
    """
    tables = [
        _EmbeddingTable(name or "(model)", module, {flag: getattr(module, flag) for flag in OFF})
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    ]
    changing = [table for table in tables if bool(table.too_long().any())]
    saved = [table.module.weight.detach().clone() for table in changing] if look_up_all else []
    handles: list[Any] = []
    try:
        for table in tables:
            table.set(OFF)
        if changing and look_up_all is not None:
            handles += [table.on_lookup(table.shorten) for table in changing]
            with torch.no_grad():
                look_up_all()
            _remove(handles)
        for table in changing:
            if bool(table.too_long().any()):
                handles.append(table.on_lookup(table.refuser()))
        yield
    finally:
        _remove(handles)
        for table in tables:
            table.set(table.flags)
        with torch.no_grad():
            for table, values in zip(changing, saved, strict=False):
                table.module.weight.copy_(values)


@dataclasses.dataclass(frozen=True)
class _EmbeddingTable:
    """An embedding and its options before they were switched off."""

    name: str
    module: nn.Embedding | nn.EmbeddingBag
    flags: dict[str, Any]

    def set(self, flags: dict[str, Any]) -> None:
        for flag, value in flags.items():
            setattr(self.module, flag, value)

    def too_long(self) -> Tensor:
        """Which rows the module would shorten when they are looked up."""
        weight, longest = self.module.weight.detach(), self.flags["max_norm"]
        if longest is None:
            return torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
        wide = weight.to(torch.promote_types(weight.dtype, torch.float32))
        limit = longest * (1 + ROUND_OFF * torch.finfo(weight.dtype).eps)
        return wide.norm(p=self.module.norm_type, dim=1) > limit

    def on_lookup(self, act: Callable[[Tensor], None]) -> Any:
        """Call `act` with the indices of every lookup, until the handle is removed."""

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            act(args[0] if args else kwargs["input"])

        return self.module.register_forward_pre_hook(hook, with_kwargs=True)

    def shorten(self, indices: Tensor) -> None:
        """What the module's forward does to these rows."""
        weight = self.module.weight.detach()
        longest, kind = self.flags["max_norm"], self.module.norm_type
        torch.embedding_renorm_(weight, indices.contiguous(), longest, kind)

    def refuser(self) -> Callable[[Tensor], None]:
        """Refuses lookups of the rows that are too long now."""
        too_long = self.too_long()

        def refuse(indices: Tensor) -> None:
            if bool(too_long[indices].any()):
                raise SpiritlevelError(
                    f"The rows of the embedding {self.name!r} must be no longer than "
                    f"max_norm={self.flags['max_norm']}. Got a lookup of a longer one: the "
                    "module's forward would shorten it in place, so the model has no fixed weights "
                    "yet. Run the model on the data once, or set max_norm=None."
                )

        return refuse


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    handles.clear()


class PlainLookups(TorchFunctionMode):
    """Refuses calls of the functions themselves with one of these options, before they run."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Look at the arguments of a lookup; everything else passes."""
        kwargs = kwargs or {}
        if func in _LOOKUPS:
            given = dict(zip(_LOOKUPS[func], args, strict=False)) | kwargs
            for flag, plain in OFF.items():
                if given.get(flag, plain) != plain:
                    raise _refusal_of_call(func, flag, given[flag])
        return func(*args, **kwargs)


def _refusal_of_call(func: Any, flag: str, value: Any) -> SpiritlevelError:
    reasons = {
        "max_norm": "it changes the weights in place",
        "scale_grad_by_freq": "its gradient is then not that of the loss",
        "sparse": "its gradient is then sparse, and has no second derivative",
    }
    return SpiritlevelError(
        f"The model must not call {func.__name__} with {flag}={value!r}: {reasons[flag]}. Call it "
        f"without {flag}, or use nn.Embedding or nn.EmbeddingBag, whose options are switched off "
        "while the model is measured."
    )
