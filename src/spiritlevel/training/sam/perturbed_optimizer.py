"""An optimizer that steps with the gradient at displaced weights: what SAM and its variants share.

It wraps a torch optimizer and can be used as one: groups, state and defaults *are* those of the
wrapped one. All that changes between steps is in the groups ("rho", "steps_taken") or in one
`_Phase`, because Lightning calls these methods on a proxy, which keeps nothing that is assigned.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableSet
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ...ground.errors import SpiritlevelError
from ...ground.need import need, number, whole
from ...model.running_statistics import untouched_statistics
from .perturbation import Block, Displacement, blocks_of, displaced

_COUNT = "steps_taken"  # in every parameter group, beside the radius
_GENERATOR = "generator"  # in the state dict


@dataclasses.dataclass
class _Phase:
    """What happened since the last step."""

    inside: bool = False  # the weights are displaced right now
    cleared: bool = False  # gradients were cleared since the step began
    done: int = 0  # passes made at displaced weights
    sums: dict[Tensor, Tensor] = dataclasses.field(default_factory=dict)  # gradients of all but one
    # For a second set of weights. Kept, since fresh memory costs a CPU more than the copying.
    memory: dict[Tensor, Tensor] = dataclasses.field(default_factory=dict)

    # Whatever was called in the first displaced pass, where the optimizer was not told the model.
    models: MutableSet[nn.Module] = dataclasses.field(default_factory=weakref.WeakSet)

    def spares(self, blocks: list[Block]) -> dict[Tensor, Tensor]:
        for weight in (weight for block in blocks for weight in block.weights):
            spare = self.memory.get(weight)
            if spare is None or _layout(spare) != _layout(weight):
                self.memory[weight] = torch.empty_like(weight, requires_grad=False)
        return self.memory

    def restart(self) -> None:
        self.done = 0
        self.sums.clear()


def _of_base(name: str) -> property:
    """An attribute that is the wrapped optimizer's."""

    def get(self: AbstractPerturbedOptimizer) -> Any:
        return getattr(self.base, name)

    def put(self: AbstractPerturbedOptimizer, value: Any) -> None:
        setattr(self.base, name, value)

    return property(get, put, doc=f"`{name}` of the wrapped optimizer.")


class AbstractPerturbedOptimizer(Optimizer, abc.ABC):
    """The base of SAM, ASAM and NoiseSAM; see SAM for how it is used."""

    def __init__(
        self,
        optimizer: Optimizer,
        rho: float,
        *,
        every: int,
        draws: int = 1,
        generator: torch.Generator | None = None,
        model: nn.Module | None,
        gradient_first: bool,  # whether the displacement follows from the gradient at the weights
    ) -> None:
        name = type(self).__name__
        check_wrappable(name, optimizer)
        check_radius(name, rho)
        for argument, count in (("every", every), ("draws", draws)):
            need(argument, count, whole(least=1), "a whole number ≥ 1", of=name)
        for group in optimizer.param_groups:
            check_radius(name, group.get(RADIUS, rho))
            if any(type(weight).__name__ == "DTensor" for weight in group["params"]):
                raise SpiritlevelError(
                    f"{name} needs whole weights in every process, and these are sharded (FSDP). "
                    "Use DistributedDataParallel."
                )
        for group in optimizer.param_groups:
            group.setdefault(RADIUS, rho)
            group.setdefault(_COUNT, 0)
        self.base, self.every, self.draws = optimizer, every, draws
        self._rho, self._generator, self._gradient_first = rho, generator, gradient_first
        self._model, self._phase = model, _Phase()
        # The wrapped optimizer makes and loads the state dict, so it runs the hooks around that.
        # For the rest of what Optimizer's constructor does this is the entry that leaves groups
        # and state alone.
        shared = {key: hooks for key, hooks in vars(optimizer).items() if "state_dict" in key}
        super().__setstate__(shared)

    @abc.abstractmethod
    def _displacement(self, blocks: list[Block]) -> Displacement:
        """How far to move each weight. The gradients may be overwritten: they are cleared next."""

    # How a step is made

    @property
    def due(self) -> bool:
        """Whether the next step uses displaced weights, as one in `every` does."""
        first = self.param_groups[0]
        its_turn = first[_COUNT] % self.every == 0
        return its_turn and any(group[RADIUS] > 0 for group in self.param_groups)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one step; returns the loss at the weights (NoiseSAM: the mean over its draws).

        With a closure (zero_grad, forward, backward, return the loss) it makes all passes itself.
        Without one they were made before, in a loop over `passes()` or a block of `perturbed()`.
        """
        phase = self._phase
        self._refuse_displaced("step()")
        if not self.due or phase.done == self.draws:
            loss = self.base.step(closure)
        elif closure is None:
            name = type(self).__name__
            raise SpiritlevelError(
                f"{name}.step() needs a gradient at displaced weights, and none was computed since "
                "the last step. Call step(closure), or write `for _ in optimizer.passes():` around "
                "forward and backward before step(). A plain loop, the Hugging Face Trainer and "
                f"Lightning's automatic 16-bit mode call step() alone: there {name} would be the "
                "plain optimizer."
            )
        else:
            losses, weights = [], self._weights()
            before = {id(w): (w.grad, w.grad._version) for w in weights if w.grad is not None}
            phase.cleared = False
            with contextlib.closing(self.passes()) as passes, torch.enable_grad():
                for _ in passes:
                    losses.append(closure())
                    if not phase.cleared:
                        refuse_accumulated(type(self).__name__, self._weights(), before)
                    before = {}
            self.base.step()
            loss = losses[0] if self._gradient_first else _mean(losses)
        for group in self.param_groups:
            group[_COUNT] += 1
        phase.restart()
        return loss

    def passes(self) -> Generator[None, None, None]:
        """The forward and backward passes of one step; the body of the loop is one of them.

        SAM, ASAM: at the weights, then displaced. NoiseSAM: at each draw. On a step that is not
        `due`: once, at the weights. Leaving the loop early or by an error puts the weights back.
        """
        self._refuse_displaced("passes()")
        self._phase.restart()
        if not self.due:
            yield
            return
        if self._gradient_first:
            yield
            if not any(w.grad is not None for w in self._weights()):
                self._phase.done = self.draws  # as plain optimizers: no gradient, no step
                return
        for _ in range(self.draws):
            with self.perturbed():
                yield

    @contextlib.contextmanager
    def perturbed(self) -> Iterator[None]:
        """The weights are displaced in the block; afterwards they are the same, bit for bit.

        Gradients are cleared on entering, so that those computed in the block (of one batch, or
        summed over several) are the ones `step()` uses. Running statistics do not change in the
        block.
        """
        phase = self._phase
        self._refuse_displaced("perturbed()")
        if phase.done >= self.draws:  # of a step that a GradScaler skipped
            phase.restart()
        blocks = self._blocks()
        tracked = not self._gradient_first and phase.done == 0  # statistics of one pass count
        models = phase.models if self._model is None else {self._model}
        phase.inside, length = True, None
        try:
            with contextlib.ExitStack() as stack:
                if blocks:
                    displacement = self._displacement(blocks)
                    length = displacement.length
                    stack.enter_context(displaced(blocks, displacement, phase.spares(blocks)))
                    del displacement  # freed before the next backward pass needs memory
                self.zero_grad()
                torch.clear_autocast_cache()  # half-precision copies of the weights as they were
                if not tracked:
                    stack.enter_context(untouched_statistics(models))
                yield
        except BaseException:
            phase.restart()
            raise
        finally:
            torch.clear_autocast_cache()
            phase.inside = False
        self._finish_pass(length)

    @torch.no_grad()
    def _finish_pass(self, length: Tensor | None) -> None:
        """Keep the gradients of this draw; after the last one, their mean is the gradient."""
        phase = self._phase
        with_gradient = [weight for weight in self._weights() if weight.grad is not None]
        if not with_gradient:
            phase.restart()
            raise SpiritlevelError(
                f"The pass of {type(self).__name__} at displaced weights left no gradient. The "
                "closure, the loop over passes() or the block of perturbed() must run forward and "
                "backward each time. The weights are back where they were."
            )
        phase.done += 1
        if length is not None:
            # A first gradient that overflowed must show in the one that a GradScaler looks at:
            # 0·length is 0, or NaN. Nothing waits for the device to find out which.
            smallest = min(with_gradient, key=Tensor.numel)
            smallest.grad.add_(0.0 * length.to(smallest.device))  # type: ignore[union-attr]
        if self.draws == 1:
            return
        if phase.done < self.draws:
            for weight in with_gradient:
                assert weight.grad is not None
                if weight in phase.sums:
                    phase.sums[weight].add_(weight.grad)
                else:
                    phase.sums[weight] = weight.grad.clone()
            return
        for weight, total in phase.sums.items():
            weight.grad = total if weight.grad is None else weight.grad.add_(total)
        gradients = [weight.grad for weight in self._weights() if weight.grad is not None]
        torch._foreach_div_(gradients, float(self.draws))
        phase.sums.clear()

    def _weights(self) -> Iterable[Tensor]:
        return (weight for group in self.param_groups for weight in group["params"])

    def _blocks(self) -> list[Block]:
        """The weights to displace; in SAM and ASAM a weight without gradient stays."""
        name = type(self).__name__
        weights = []
        for group in self.param_groups:
            check_radius(name, group[RADIUS])
            for weight in group["params"]:
                if weight.requires_grad and not (self._gradient_first and weight.grad is None):
                    weights.append((weight, group[RADIUS]))
        if self._gradient_first and not weights:
            raise SpiritlevelError(
                f"{name}.perturbed() needs the gradient at the weights, and no weight has one. "
                "Call loss.backward() before it."
            )
        if any(weight.grad is not None and weight.grad.is_sparse for weight, _ in weights):
            raise SpiritlevelError(
                f"{name} needs dense gradients, and one is sparse. Make the embedding with "
                "sparse=False."
            )
        return blocks_of(weights)

    def _refuse_displaced(self, call: str) -> None:
        if self._phase.inside:
            raise SpiritlevelError(
                f"{type(self).__name__}.{call} was called while the weights are displaced. Leave "
                "the block of perturbed(), or end the loop over passes(), first."
            )

    # What makes it a torch optimizer

    param_groups: Any = _of_base("param_groups")  # the same objects; each has its own "rho"
    state: Any = _of_base("state")
    defaults: Any = _of_base("defaults")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all parameters."""
        self._phase.cleared = True
        self.base.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; it may have its own "rho"."""
        name = type(self).__name__
        radius = param_group.get(RADIUS, self._rho)
        check_radius(name, radius)
        taken = self.param_groups[0][_COUNT]
        self.base.add_param_group({**param_group, RADIUS: radius, _COUNT: taken})

    def state_dict(self) -> dict[str, Any]:
        """That of the wrapped optimizer; radii and the step count are in its groups."""
        state = self.base.state_dict()
        if self._generator is not None:
            state[_GENERATOR] = self._generator.get_state()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state dict; that of the plain optimizer works as well."""
        self._refuse_displaced("load_state_dict()")
        radii = [group[RADIUS] for group in self.param_groups]
        for group in state_dict["param_groups"]:
            check_radius(type(self).__name__, group.get(RADIUS, self._rho))
        rest = {key: value for key, value in state_dict.items() if key != _GENERATOR}
        self.base.load_state_dict(rest)
        for group, radius in zip(self.param_groups, radii, strict=True):
            group.setdefault(RADIUS, radius)
            group.setdefault(_COUNT, 0)
        if self._generator is not None and _GENERATOR in state_dict:
            self._generator.set_state(state_dict[_GENERATOR].cpu())
        self._phase.restart()

    def __getstate__(self) -> dict[str, Any]:
        # A scheduler's wrapper around `step` stays behind, as it does with torch's optimizers.
        passing = ("step", "_phase")
        return {key: value for key, value in self.__dict__.items() if key not in passing}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({"_phase": _Phase(), **state})


def _layout(x: Tensor) -> tuple[Any, ...]:
    return x.device, x.dtype, x.shape, x.stride()


def _mean(losses: list[Any]) -> Any:
    return None if any(loss is None for loss in losses) else sum(losses) / len(losses)


RADIUS = "rho"  # the name of a group's own radius


def check_wrappable(name: str, optimizer: object) -> None:
    """Refuse what is not an optimizer, or does not step from one gradient."""
    is_one = isinstance(optimizer, Optimizer)
    then = f"Write {name}(torch.optim.SGD(model.parameters(), lr=0.1))."
    need("optimizer", optimizer, lambda _: is_one, "a torch optimizer", then, of=name)
    assert isinstance(optimizer, Optimizer)
    if isinstance(optimizer, LBFGS) or hasattr(optimizer, "perturbed"):
        kind = type(optimizer).__name__
        raise SpiritlevelError(
            f"The 'optimizer' argument of {name} must make one step from one gradient. Got {kind}, "
            "which evaluates the loss at several places itself. Use SGD, Adam or AdamW."
        )
    if RADIUS in optimizer.defaults:
        kind = type(optimizer).__name__
        raise SpiritlevelError(
            f"The 'optimizer' argument of {name} must not have its own 'rho': {name} "
            f"keeps its radius under that name. Got {kind}, which has one. Use SGD, Adam or AdamW."
        )


def check_radius(name: str, rho: Any) -> None:
    """Refuse a radius that is not a finite number of at least 0."""
    of = f"{name}, and that of each parameter group,"
    need("rho", rho, number(least=0), "a number ≥ 0", "Typical: 0.05 (SAM), 0.5 (ASAM).", of=of)


Leftovers = Mapping[int, tuple[Tensor, int]]  # by weight: its gradient, and how often it changed


def refuse_accumulated(name: str, weights: Iterable[Tensor], before: Leftovers) -> None:
    """Raise if a backward pass was added to gradients from before, which nobody had cleared.

    That changes a gradient once, in place. Clearing replaces it, or changes it once more.
    """
    for weight in weights:
        grad, version = before.get(id(weight), (None, 0))
        if grad is not None and weight.grad is grad and grad._version == version + 1:
            raise SpiritlevelError(
                f"{name}.step(closure) needs a closure that clears the gradients first, and this "
                "one added to those of other batches: the second pass would see the last batch "
                "alone. With Lightning, set accumulate_grad_batches=1 and use larger batches, or "
                "use manual optimization with `for _ in optimizer.passes():` around all batches. "
                "In a loop of your own, call optimizer.zero_grad() at the start of the closure."
            )
