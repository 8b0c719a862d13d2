"""SGD, Adam, AdamW and RMSprop for many networks at once, with their own numbers, as in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..settings.training import TrainingSettings

Tensors = dict[str, Tensor]
BETAS, EPS, ALPHA = (0.9, 0.999), 1e-8, 0.99  # torch's defaults


class StackedOptimizer:
    """Members of one kind of optimizer; the first dimension of every tensor is the member."""

    def __init__(self, params: Tensors, training: Sequence[TrainingSettings]) -> None:
        self.params = params
        self._kind = training[0].optimizer
        self._numbers = {
            name: torch.tensor([getattr(each, name) for each in training], dtype=torch.float64)
            for name in ("lr", "weight_decay", "momentum")
        }
        self._step = 0
        self._base_rates = self._numbers["lr"]
        self._cast: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}
        has_first = self._any("momentum") if self._kind == "sgd" else self._kind != "rmsprop"
        self._first = self._state() if has_first else {}
        self._second = self._state() if self._kind != "sgd" else {}

    def _state(self) -> Tensors:
        return {name: torch.zeros_like(value) for name, value in self.params.items()}

    def _any(self, name: str) -> bool:
        return bool((self._numbers[name] != 0).any())

    def keep(self, members: Tensor) -> None:
        """Go on with these members alone."""
        for tensors in (self.params, self._first, self._second):
            for name, value in tensors.items():
                tensors[name] = value.detach().index_select(0, members.to(value.device))
        for name, value in self._numbers.items():
            self._numbers[name] = value[members]
        self._base_rates = self._base_rates[members]
        self._cast.clear()

    def state(self) -> dict[str, Any]:
        """What the next step depends on, beside the settings."""
        return {
            "step": self._step,
            "params": {name: value.detach() for name, value in self.params.items()},
            "first": self._first,
            "second": self._second,
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same members."""
        self._step = state["step"]
        places = {"params": self.params, "first": self._first, "second": self._second}
        for key, tensors in places.items():
            for name, value in tensors.items():
                value.copy_(state[key][name])

    def set_rates(self, factors: Sequence[float]) -> None:
        """Each member's learning rate times its own factor."""
        self._numbers["lr"] = self._base_rates * torch.tensor(factors, dtype=torch.float64)
        self._cast.clear()

    def step(self, grads: Mapping[str, Tensor | None]) -> None:
        """One step of every member; a parameter without a gradient stays as it is."""
        self._step += 1
        for name, param in self.params.items():
            grad = grads[name]
            if grad is None:
                continue
            if self._any("weight_decay"):
                decay = self._shaped("weight_decay", param)
                if self._kind == "adamw":
                    param.mul_(1 - self._shaped("lr", param) * decay)
                else:
                    grad = grad.addcmul(decay, param)
            if self._kind == "sgd":
                self._sgd(name, param, grad)
            elif self._kind == "rmsprop":
                self._rmsprop(name, param, grad)
            else:
                self._adam(name, param, grad)

    def _sgd(self, name: str, param: Tensor, grad: Tensor) -> None:
        if self._first:
            grad = self._first[name].mul_(self._shaped("momentum", param)).add_(grad)
        param.addcmul_(self._shaped("lr", param), grad, value=-1)

    def _rmsprop(self, name: str, param: Tensor, grad: Tensor) -> None:
        second = self._second[name].mul_(ALPHA).addcmul_(grad, grad, value=1 - ALPHA)
        param.addcmul_(self._shaped("lr", param), grad / second.sqrt().add_(EPS), value=-1)

    def _adam(self, name: str, param: Tensor, grad: Tensor) -> None:
        first = self._first[name].lerp_(grad, 1 - BETAS[0])
        second = self._second[name].mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
        corrections = [1 - beta**self._step for beta in BETAS]
        scale = second.sqrt().div_(corrections[1] ** 0.5).add_(EPS)
        rate = self._shaped("lr", param) / corrections[0]
        param.addcmul_(rate, first / scale, value=-1)

    def _shaped(self, name: str, like: Tensor) -> Tensor:
        """One number a member, against the member's whole tensor."""
        key = (name, like.device, like.dtype)
        if key not in self._cast:  # a copy to a GPU for every tensor would cost more than the step
            self._cast[key] = self._numbers[name].to(like.device, like.dtype)
        return self._cast[key].view(-1, *(1,) * (like.dim() - 1))
