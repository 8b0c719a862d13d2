"""Gradients of a network's outputs, at its own weights changed at random again and again.

A symmetry holds for every choice of the weights. So each choice gives further equations for it, and
a few samples are enough to have as many equations as there are unknowns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from .precision import Ideal
from .tracing import Diverged, Run, differentiable

_NOISE = 0.3  # of a parameter's root mean square
_VIVID = 1.5  # a row's norm in random weights: large enough that no part of a network fades away
_BIASES = 0.2  # the noise of biases and gains beside random weights
_FOR_ZEROS = 0.1  # the noise of a parameter that is zero throughout
_BATCHED_UP_TO = 20_000  # parameters: beyond, one backward pass at a time is faster
_ATTEMPTS = 3  # for each choice of the weights: some functions have no value everywhere


@dataclasses.dataclass(frozen=True)
class Gradients:
    """Of random sums of the outputs, which come first, in the parameters that they depend on."""

    sums: Tensor  # shape: (num_sums,)
    values: dict[str, Tensor]  # the parameters themselves
    gradients: dict[str, Tensor]  # shape: (num_sums, *shape of the parameter)


class Jiggler:
    """Changes the parameters of a model of its own, and takes gradients there."""

    def __init__(self, model: nn.Module, run: Run, generator: torch.Generator) -> None:
        """`model` is changed in place, so it must be a copy, in float64."""
        self.model, self._run, self._generator = model, run, generator
        named = model.named_parameters()
        self.parameters = {name: p for name, p in named if p.is_floating_point() and p.numel()}
        for parameter in self.parameters.values():
            parameter.requires_grad_()
        self._home = {name: p.detach().clone() for name, p in self.parameters.items()}
        count = sum(p.numel() for p in self.parameters.values())
        self._batched = count <= _BATCHED_UP_TO

    def draws(self, num_rows: int, at_once: int) -> Iterator[Gradients]:
        """Gradients of `num_rows` random sums in all, `at_once` at most for each new weights.

        The weights are near the model's own, then with other signs, then all new: a unit that is
        dead comes to life, and what hardly matters in this network matters then.
        """
        done = tried = 0
        changes = (self.near, self.flipped, self.vivid)
        while done < num_rows:
            changes[tried % len(changes)]()
            tried += 1
            with Ideal():
                outputs = differentiable(self._run, self.model)
            if not bool(outputs.isfinite().all()):
                if tried > _ATTEMPTS * (done + 1):
                    raise Diverged("with other weights its outputs are not finite")
                continue
            count = min(outputs.numel(), at_once, num_rows - done)
            yield self.gradients(outputs, count)
            done += count

    def near(self) -> None:
        """New weights around the model's own."""
        self._set(lambda home: home + self._noise(home))

    def flipped(self) -> None:
        """New weights around the model's own, with random signs."""
        self._set(lambda home: self._normal(home).sign() * home + self._noise(home))

    def vivid(self) -> None:
        """Random weights; biases and gains around the model's own."""
        self._set(self._vivid)

    def _set(self, weights: Callable[[Tensor], Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(weights(self._home[name]))

    def _noise(self, home: Tensor) -> Tensor:
        size = home.square().mean().sqrt()
        return self._normal(home) * torch.where(size > 0, _NOISE * size, _FOR_ZEROS)

    def _vivid(self, home: Tensor) -> Tensor:
        if home.dim() < 2:  # a large bias would leave its unit on one side of the kink
            return home.clamp(-1, 1) + _BIASES * self._normal(home)
        return _VIVID / (home.numel() / len(home)) ** 0.5 * self._normal(home)

    def _normal(self, like: Tensor) -> Tensor:
        device = self._generator.device
        return torch.randn(like.shape, generator=self._generator, device=device).to(like)

    def gradients(self, outputs: Tensor, count: int) -> Gradients:
        """The gradients of `count` random sums of these outputs."""
        mixes = self._normal(outputs.new_empty(count, outputs.numel()))
        sums = mixes @ outputs.flatten()
        names, leaves = list(self.parameters), list(self.parameters.values())
        found = self._batch(sums, leaves) if self._batched else None
        if found is None:
            self._batched = False
            try:
                rows = [
                    torch.autograd.grad(each, leaves, retain_graph=True, allow_unused=True)
                    for each in sums
                ]
            except RuntimeError as error:
                raise Diverged(f"its gradient fails: {error}") from error
            found = [
                None if column[0] is None else torch.stack(column)
                for column in zip(*rows, strict=True)
            ]
        used = {n: g.detach() for n, g in zip(names, found, strict=True) if g is not None}
        return Gradients(sums.detach(), {n: self.parameters[n].detach() for n in used}, used)

    def _batch(self, sums: Tensor, leaves: list[nn.Parameter]) -> list[Tensor | None] | None:
        """All rows in one backward pass; None if an operation of the network does not allow it."""
        rows = torch.eye(len(sums), dtype=sums.dtype, device=sums.device)
        try:
            found = torch.autograd.grad(
                sums, leaves, rows, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
        except RuntimeError:
            return None
        return list(found)
