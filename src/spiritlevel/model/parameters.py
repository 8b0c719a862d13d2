"""Which parameters are measured, and how other tensors take the place of a model's own."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..ground.errors import SpiritlevelError, suggestion
from .model_state import ROOT

MOST_NAMED = 12  # layers in an error: large networks have hundreds
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


def select_parameters(
    model: nn.Module, layers: str | Sequence[str] | None
) -> dict[str, nn.Parameter]:
    """Trainable parameters, all or those of the modules that match `layers`; no empty ones."""
    named = model.named_parameters()
    trainable = {name: p for name, p in named if p.requires_grad and p.numel()}
    if not trainable:
        raise SpiritlevelError(
            "The model must have at least one parameter with requires_grad=True. Got none. "
            "Unfreeze what you want to measure: parameter.requires_grad_(True)."
        )
    if layers is None:
        return _all_real(trainable)
    patterns = [layers] if isinstance(layers, str) else list(layers)
    owners = {name: name.rpartition(".")[0] or ROOT for name in trainable}
    for pattern in patterns:
        if not fnmatch.filter(owners.values(), pattern):
            _refuse_tied(model, pattern, trainable)
            _refuse_frozen(model, pattern)
            raise SpiritlevelError(
                "The 'layers' argument must name modules with trainable parameters. Nothing "
                f"matches {pattern!r}.{_instead(pattern, list(dict.fromkeys(owners.values())))}"
            )
    return _all_real(
        {
            name: parameter
            for name, parameter in trainable.items()
            if any(fnmatch.fnmatchcase(owners[name], pattern) for pattern in patterns)
        }
    )


def _all_real(chosen: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """The same parameters; refuses complex ones."""
    for name, parameter in chosen.items():
        if parameter.is_complex():
            raise SpiritlevelError(
                f"The measured parameters must be real. {name!r} is {parameter.dtype}. Keep it as "
                "a real one, nn.Parameter(torch.view_as_real(w)), and let forward read it by "
                "torch.view_as_complex: then its real and imaginary parts are measured. Or leave "
                "it out: freeze it with requires_grad_(False), or name other 'layers'."
            )
    return chosen


def _instead(pattern: str, names: list[str]) -> str:
    """What to write: the layers in a block, names that look like it, and the first of all."""
    if inside := [name for name in names if name.startswith(f"{pattern}.")]:
        return f" It holds {len(inside)} of them: '{pattern}.*' names all."
    more = len(names) - MOST_NAMED
    rest = f" and {more} more" if more > 0 else ""
    close = suggestion(pattern, names, most=3) if more > 0 else ""
    return f"{close} Available: {', '.join(names[:MOST_NAMED])}{rest}."


def frozen_text(model: nn.Module) -> str | None:
    """How much of a network is frozen and so not measured; None if nothing is."""
    parameters = list(model.parameters())
    frozen = [p for p in parameters if not p.requires_grad]
    if not frozen:
        return None
    entries, of = (sum(p.numel() for p in each) for each in (frozen, parameters))
    return f"{len(frozen)} of {len(parameters)} parameters, {entries:,} of {of:,} entries"


def _refuse_frozen(model: nn.Module, pattern: str) -> None:
    """Raise SpiritlevelError if the pattern names a layer whose parameters are all frozen."""
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    owners = {name.rpartition(".")[0] or ROOT for name in frozen}
    if matching := sorted(fnmatch.filter(owners, pattern)):
        adapted = callable(getattr(model, "merge_and_unload", None))
        remedy = (
            "Measure the weights that its adapters change with spiritlevel.merged(model)."
            if adapted
            else "Unfreeze it for the time of the call: module.requires_grad_(True)."
        )
        raise SpiritlevelError(
            "The 'layers' argument must name modules with trainable parameters. All parameters of "
            f"{matching[0]!r} are frozen (requires_grad=False). {remedy}"
        )


def _refuse_tied(model: nn.Module, pattern: str, trainable: dict[str, nn.Parameter]) -> None:
    """Raise SpiritlevelError if the pattern names a weight that is measured under another name."""
    measured_names = {id(p): name for name, p in trainable.items()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner, measured = name.rpartition(".")[0] or ROOT, measured_names.get(id(parameter))
        if measured is not None and fnmatch.fnmatchcase(owner, pattern):
            raise SpiritlevelError(
                f"The 'layers' argument names {owner!r}, whose weight {name!r} is the same tensor "
                f"as {measured!r} (tied). It is measured once, with both uses: pass "
                f"layers={measured.rpartition('.')[0] or ROOT!r}. head.* measure the last use "
                "alone."
            )


@contextlib.contextmanager
def substituted(model: nn.Module, values: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Let the model compute with `values` in place of the tensors they belong to, in the block.

    `torch.func.functional_call` goes by names. A module that is registered under two names is then
    replaced twice and restored once, which leaves a plain tensor where a Parameter was. Here every
    module is visited once, and a tensor is recognized by identity, wherever it is registered.
    """
    replaced: list[tuple[dict[str, Any], str, Tensor]] = []
    by_identity = {id(tensor): value for tensor, value in values.items()}
    modules = list(model.modules())
    # recurrent layers notice other weights and list them anew
    listed = [
        (module, module._flat_weights, module._flat_weight_refs)
        for module in modules
        if isinstance(module, nn.RNNBase)
    ]
    try:
        for module in modules:
            # not by setattr, which refuses what is not a Parameter
            tables: list[dict[str, Any]] = [module._parameters, module._buffers]
            for registered in tables:
                for name, tensor in registered.items():
                    if id(tensor) in by_identity:
                        replaced.append((registered, name, tensor))
                        registered[name] = by_identity[id(tensor)]
        yield
    finally:
        for registered, name, tensor in replaced:
            registered[name] = tensor
        for recurrent, weights, references in listed:
            recurrent._flat_weights = weights
            recurrent._flat_weight_refs = references


class KeptData(TorchFunctionMode):
    """Refuses, under torch.func, that a model's code gives its weights other data.

    `self.router.to(torch.float32)` in a forward would leave a tensor of the transformation in the
    weight itself, and the process crashes when it is used after the transformation has ended.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """All but a new `tensor.data` passes."""
        if func == _SET_DATA:
            wrapped = [torch._C._functorch.is_functorch_wrapped_tensor(each) for each in args[:2]]
            if wrapped == [False, True]:
                raise RuntimeError("the model's forward gives its own weights other data")
        return func(*args, **(kwargs or {}))
