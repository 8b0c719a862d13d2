"""Leave a model as it was; refuse one whose loss is not a fixed function of its weights."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..ground.errors import SpiritlevelError
from .attributes import attributes_kept
from .embedding_flags import plain_embeddings
from .exclusive import process_state

ROOT = "(model)"  # the layer name for parameters of the outermost module itself


def check_model(model: nn.Module) -> None:
    """Refuse random or batch-dependent modules and non-finite parameters."""
    for name, module in model.named_modules():
        label = name or ROOT
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or module.running_mean is None
        ):
            _refuse_batch_statistics(label, module)
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p:
            raise SpiritlevelError(
                f"The module {label!r} ({type(module).__name__}, p={module.p}) is in train "
                "mode, so the loss is random. Call model.eval() before measuring."
            )
    for name, parameter in model.named_parameters():
        bad = int((~torch.isfinite(parameter.detach())).sum())
        if bad:
            raise SpiritlevelError(
                f"The parameter {name!r} has {bad} NaN or infinite values of "
                f"{parameter.numel()}. The training run diverged or the checkpoint is damaged: "
                "load an earlier checkpoint."
            )


def _refuse_batch_statistics(label: str, module: nn.Module) -> None:
    kind = type(module).__name__
    if module.training:
        raise SpiritlevelError(
            f"The module {label!r} ({kind}) is in train mode: its outputs depend on the other "
            "samples of the batch, so there is no loss of one sample to measure. Call model.eval() "
            "before measuring."
        )
    raise SpiritlevelError(
        f"The module {label!r} ({kind}) keeps no running statistics and normalizes by the batch "
        "even in eval mode. Use track_running_stats=True, or GroupNorm."
    )


@contextlib.contextmanager
def preserved(
    model: nn.Module, device: torch.device, look_up_all: Callable[[], None] | None = None
) -> Iterator[None]:
    """Restore buffers, other tensors and random states on leaving; inside nothing is compiled.

    `look_up_all` is what `plain_embeddings` asks for.
    """
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = [device] if device.type == "cuda" else []
    random = torch.random.fork_rng(devices=devices)
    with process_state(), random, _uncompiled(), attributes_kept(model):
        try:
            with _differentiable_kernels(model), plain_embeddings(model, look_up_all):
                yield
        finally:
            with torch.no_grad():
                for module, name, buffer, _ in buffers:
                    module._buffers[name] = buffer
                for buffer, before in _changed([(b, before) for _, _, b, before in buffers]):
                    buffer.copy_(before)


def _changed(pairs: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The pairs that differ; a device is asked once for all of them."""
    changed = []
    for device in {buffer.device for buffer, _ in pairs}:
        here = [pair for pair in pairs if pair[0].device == device]
        flags = torch.stack([(buffer != before).any() for buffer, before in here]).tolist()
        changed += [pair for pair, flag in zip(here, flags, strict=True) if flag]
    return changed


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Run compiled parts eagerly: then hooks are called and second derivatives exist."""
    set_stance = getattr(torch.compiler, "set_stance", None)  # torch 2.6 and later
    if set_stance is None or "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()  # nothing was compiled, and the import takes seconds
    return set_stance("force_eager")


@contextlib.contextmanager
def _differentiable_kernels(model: nn.Module) -> Iterator[None]:
    """Avoid kernels that refuse a backward, or crash in it.

    cuDNN's recurrent ones refuse it in eval mode. The CPU's GroupNorm crashes for inputs with their
    channels last if only the gradients of its own parameters are wanted.
    """
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    enabled = torch.backends.cudnn.enabled
    handles = [
        module.register_forward_pre_hook(_contiguous)
        for module in model.modules()
        if isinstance(module, nn.GroupNorm)
    ]
    try:
        torch.backends.cudnn.enabled = enabled and not recurrent
        yield
    finally:
        torch.backends.cudnn.enabled = enabled
        for handle in handles:
            handle.remove()


def _contiguous(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(arg.contiguous() if isinstance(arg, torch.Tensor) else arg for arg in args)


@contextlib.contextmanager
def twice_differentiable() -> Iterator[None]:
    """Use plain attention during the block: the fused kernels have no second derivative."""
    with process_state():
        fast = torch.backends.mha.get_fastpath_enabled()
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
