"""SGD, Adam, AdamW and RMSprop for many networks at once, with their own numbers, as in torch.

All parameters of a network lie in one row of a matrix, so that a step is a handful of operations
however many layers there are. Whatever changes from step to step is a tensor that is changed in
place: a step can be recorded as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..settings.training import TrainingSettings

Tensors = dict[str, Tensor]
BETAS, EPS, ALPHA = (0.9, 0.999), 1e-8, 0.99  # torch's defaults
ALIGNED = 32  # a parameter starts at a multiple of it: products of matrices on a GPU need 16 bytes


class StackedOptimizer:
    """Members of one kind of optimizer; the first dimension of every tensor is the member.

    Args:
        params: by name, each with the values of all members.
        training: the settings of each member.
    """

    def __init__(self, params: Tensors, training: Sequence[TrainingSettings]) -> None:
        self._kind = training[0].optimizer
        self._numbers = {
            name: torch.tensor([getattr(each, name) for each in training], dtype=torch.float64)
            for name in ("lr", "weight_decay", "momentum")
        }
        self._shapes = {name: value.shape[1:] for name, value in params.items()}
        first = next(iter(params.values()))
        self._zeros = first.new_zeros(len(first), ALIGNED)
        self._weights = self._rows(params)
        has_first = self._any("momentum") if self._kind == "sgd" else self._kind != "rmsprop"
        self._first = torch.zeros_like(self._weights) if has_first else None
        has_second = self._kind != "sgd"
        self._second = torch.zeros_like(self._weights) if has_second else None
        self._done = torch.zeros((), dtype=torch.float64, device=self._weights.device)
        self._place_numbers()

    def _any(self, name: str) -> bool:
        return bool((self._numbers[name] != 0).any())

    def _place_numbers(self) -> None:
        """One number a member, against the member's row of weights."""
        like = self._weights
        placed = {
            name: value.to(like.device, like.dtype, copy=True)[:, None]
            for name, value in self._numbers.items()
        }
        self._rate, self._momentum = placed["lr"], placed["momentum"]
        self._decay = placed["weight_decay"] if self._any("weight_decay") else None

    @property
    def params(self) -> Tensors:
        """The parameters by name, which are views of the rows."""
        return self._parts(self._weights)

    def _parts(self, rows: Tensor) -> Tensors:
        parts, start = {}, 0
        for name, shape in self._shapes.items():
            size = shape.numel()
            part = rows.narrow(1, start, size)
            parts[name] = part.unflatten(1, shape) if shape else part.squeeze(1)
            start += size + -size % ALIGNED
        return parts

    def _rows(self, tensors: Mapping[str, Tensor | None]) -> Tensor:
        """One row a member, with 0 for what is missing and between parameters."""
        pieces = []
        for name, shape in self._shapes.items():
            tensor, size = tensors[name], shape.numel()
            if tensor is None:
                tensor = self._zeros[:, :1].expand(-1, size)
            pieces += [tensor.reshape(-1, size), self._zeros[:, : -size % ALIGNED]]
        return torch.cat(pieces, dim=1)

    def keep(self, members: Tensor) -> None:
        """Go on with these members alone."""
        places = members.to(self._weights.device)
        self._weights, self._zeros = self._weights[places], self._zeros[places]
        self._first = None if self._first is None else self._first[places]
        self._second = None if self._second is None else self._second[places]
        self._numbers = {name: value[members] for name, value in self._numbers.items()}
        self._place_numbers()

    def state(self) -> dict[str, Any]:
        """What the next step depends on, beside the settings."""
        return {
            "done": self._done,
            "weights": self._weights,
            "first": self._first,
            "second": self._second,
        }

    @torch.no_grad()
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same members."""
        for name, mine in self.state().items():
            if mine is not None:
                mine.copy_(state[name])

    def set_rates(self, factors: Sequence[float]) -> None:
        """Each member's learning rate times its own factor."""
        rates = self._numbers["lr"] * torch.tensor(factors, dtype=torch.float64)
        self._rate.copy_(rates[:, None])

    @torch.no_grad()
    def step(self, grads: Mapping[str, Tensor | None]) -> None:
        """One step of every member; a parameter without a gradient stays as it is."""
        self._done += 1
        weights = self._weights
        grad = self._rows(grads)  # without a gradient 0, and so without decay a step of 0
        if self._decay is not None:
            decay = self._decay * self._used(grads)
            if self._kind == "adamw":
                weights.mul_(1 - self._rate * decay)
            else:
                grad = grad.addcmul(decay, weights)
        if self._kind == "sgd":
            self._sgd(weights, grad)
        elif self._kind == "rmsprop":
            self._rmsprop(weights, grad)
        else:
            self._adam(weights, grad)

    def _used(self, grads: Mapping[str, Tensor | None]) -> Tensor | float:
        """1 for the weights that have a gradient, and are to decay; 0 for the others."""
        if all(grad is not None for grad in grads.values()):
            return 1.0
        ones = torch.ones_like(self._weights[:1])
        for name, part in self._parts(ones).items():
            if grads[name] is None:
                part.zero_()
        return ones

    def _sgd(self, weights: Tensor, grad: Tensor) -> None:
        if self._first is not None:
            grad = self._first.mul_(self._momentum).add_(grad)
        weights.addcmul_(self._rate, grad, value=-1)

    def _rmsprop(self, weights: Tensor, grad: Tensor) -> None:
        assert self._second is not None
        second = self._second.mul_(ALPHA).addcmul_(grad, grad, value=1 - ALPHA)
        weights.addcmul_(self._rate, grad / second.sqrt().add_(EPS), value=-1)

    def _adam(self, weights: Tensor, grad: Tensor) -> None:
        assert self._first is not None
        assert self._second is not None
        first = self._first.lerp_(grad, 1 - BETAS[0])
        second = self._second.mul_(BETAS[1]).addcmul_(grad, grad, value=1 - BETAS[1])
        corrections = [1 - torch.pow(beta, self._done) for beta in BETAS]
        scale = second.sqrt().div_(corrections[1].sqrt()).add_(EPS)
        rate = self._rate / corrections[0]
        weights.addcmul_(rate, first / scale, value=-1)
