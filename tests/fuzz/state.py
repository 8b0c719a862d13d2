"""Everything about a model and a process that a measurement must leave as it was."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn


def _bits(tensor: Tensor | None) -> Any:
    """The values, bit by bit."""
    if tensor is None:
        return None
    return (
        str(tensor.dtype),
        tuple(tensor.shape),
        tensor.detach().cpu().double().numpy().tobytes(),
    )


def snapshot(model: nn.Module) -> dict[str, Any]:
    """By what would be named as changed."""
    state: dict[str, Any] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        state[f"parameter {name}"] = (id(parameter), type(parameter), _bits(parameter))
        state[f"requires_grad of {name}"] = parameter.requires_grad
        state[f"grad of {name}"] = _bits(parameter.grad)
        state[f"hooks of {name}"] = len(parameter._backward_hooks or ())
    for name, buffer in model.named_buffers(remove_duplicate=False):
        state[f"buffer {name}"] = (id(buffer), _bits(buffer))
    for name, module in model.named_modules(remove_duplicate=False):
        state[f"mode of {name!r}"] = module.training
        state[f"attributes of {name!r}"] = sorted(module.__dict__)
        state[f"parameters of {name!r}"] = sorted(module._parameters)
        state[f"children of {name!r}"] = [(n, id(m)) for n, m in module._modules.items()]
        hooks = [key for key in module.__dict__ if key.endswith("hooks")]
        state[f"hooks of {name!r}"] = {key: len(getattr(module, key)) for key in hooks}
    state["torch's random state"] = torch.get_rng_state().numpy().tobytes()
    state["Python's random state"] = random.getstate()
    state["flags"] = (
        torch.backends.cudnn.enabled,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.mha.get_fastpath_enabled(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_default_dtype(),
    )
    return state


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is not as it was."""
    return [
        key
        for key in {**before, **after}
        if key not in before or key not in after or before[key] != after[key]
    ]
