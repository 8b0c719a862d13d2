"""Can the derivatives of this model be trusted?

A gradient need not be that of the loss: `detach()` stops it, a hook changes it, a function has a
backward of its own. What autograd then differentiates is not the loss, and its curvature is not the
loss's. So the gradient is compared with a difference of losses, for all parameters at once.

Second derivatives may be wrong where the first are right: torch's own for `weight_norm`, and those
of any function whose backward uses numbers that were saved as constants. Nothing raises then, the
product is just not the Hessian's. So before products are used, two of them are compared with finite
differences of the gradient, one parameter at a time (`product_methods`).

All of that on a few samples, in float64, and at parameters a little beside the model's own: a new
network with biases of 0 is often at a kink, where no difference says anything.

Whatever is as large as the weights is drawn again instead of kept, and let go part by part, and a
large model is looked at group by group: the look is not to take more memory than the measurement.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ...ground.errors import SpiritlevelError, is_out_of_memory
from ...model import batches as _batches
from ...model.batches import BatchLocation
from ...model.distributed import in_group
from ...model.surface import Surface
from ...records.measurements import Cost
from .parameter_space import parameter_groups, restricted_to

SAMPLES = 2  # two may cancel, the same input with opposite targets: one alone is looked at as well
# Relative to the parameters. The smaller ones are for networks with kinks: one that lies within the
# step spoils the difference, and the smallest step has none, but only seven digits left.
STEPS = (1e-5, 1e-7, 1e-9)
# The same where a part of the network computes in float32, or holds a number in it: the rounding of
# that, over a shorter step, would hide any wrong product.
COARSE_STEPS = (1e-2, 1e-3, 1e-4)
COARSE = 1e-10  # a precision above this
BESIDE = 1e-3  # relative to the parameters
# The slope of a large network is a sum of millions of terms of both signs, one for each unit that
# is on. A step switches a share of them that is about the relative change of the weights, which
# changes the slope by about the square root of this share.
KINKS = 5.0
# Where these terms nearly cancel, as in a confident network, one that a kink switches may be as
# large as all of the slope. A shorter step has fewer kinks, as long as rounding leaves a digit of
# the difference. A wrong gradient differs for all steps.
SHORTER = (1.0, 1 / 30, 1 / 1000)
LOST = 0.1
TURNED = 8  # parts of a direction: its entries fall to them in turn
ANOTHER = 1 << 20  # added to a seed for another direction
LONGEST = 1e3  # how many times longer than usual a step along a parameter with a small slope is
MOST_PARAMETERS = 100_000_000  # in float64 they take eight bytes each

Result = TypeVar("Result")


def beside_the_parameters(surface: Surface, seed: int, look: Callable[[], Result]) -> Result:
    """What `look` finds where the parameters are moved a little, in float64 as far as possible.

    It looks at one group of parameters after the other, and the first thing that it finds counts. A
    model that is too large for float64, or whose code insists on another type, stays in its own:
    rounding then hides all but large differences.
    """
    for names in parameter_groups(surface):
        with restricted_to(surface, names):
            found = _look_beside(surface, seed, look)
        if found:
            break
    return found


def _look_beside(surface: Surface, seed: int, look: Callable[[], Result]) -> Result:
    try:
        with _moved(surface, seed):
            return look()
    except (RuntimeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        return look()


@contextlib.contextmanager
def _moved(surface: Surface, seed: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        own = {name: parameter.data for name, parameter in surface.parameters.items()}
        if is_widened(surface):
            stack.enter_context(surface.numbers.computing_in(torch.float64))
        directions = Directions(surface, seed, fixed=False)
        for name, parameter in surface.parameters.items():
            values = parameter.data
            stack.callback(setattr, parameter, "data", own[name])
            parameter.data = directions.of(name, values).mul_(BESIDE).add_(values)
            del values  # a wide copy of it is not needed any more
        yield


def is_widened(surface: Surface) -> bool:
    """Whether the model is looked at in float64: a small one, without hooks that would be lost."""
    return not in_group() and sum(p.numel() for p in surface.model.parameters()) <= MOST_PARAMETERS


def samples_at_once(surface: Surface, chunk: int) -> int:
    """How many samples a look runs together, where the measurement itself runs `chunk`.

    In float64 they take twice the memory.
    """
    wider = is_widened(surface) and surface.dtype != torch.float64
    return max(1, chunk // 2 if wider else chunk)


class Directions:
    """A random direction of each parameter, drawn again whenever it is asked for.

    Kept, they would take as much memory as the weights. The first time they are asked for in the
    order of the parameters.
    """

    def __init__(self, surface: Surface, seed: int, *, fixed: bool = True) -> None:
        """With `fixed`, rows of embeddings that deliberately get no gradient do not move."""
        self._generator = torch.Generator(surface.device).manual_seed(seed)
        self._fixed = padding_rows(surface) if fixed else {}
        self._states: dict[str, Tensor] = {}
        self._factors: dict[str, Tensor] = {}
        self._next = self._generator.get_state()

    def of(self, name: str, parameter: Tensor) -> Tensor:
        """A new tensor, as long as the parameter."""
        is_new = name not in self._states
        state = self._states.setdefault(name, self._next)
        self._generator.set_state(state)
        noise = _noise(parameter, self._generator, self._fixed.get(name))
        if is_new:
            self._next = self._generator.get_state()
            self._factors[name] = _stretch(parameter, noise)
        return noise.mul_(self._factors[name])


def pieces(batch: Any, at_once: int) -> list[Any]:
    """A batch in parts of at most so many samples."""
    count = _batches.num_samples(batch)
    return [
        _batches.take(batch, slice(first, first + at_once)) for first in range(0, count, at_once)
    ]


def check_gradient(
    surface: Surface, batch: Any, where: BatchLocation, seed: int = 0, at_once: int = 1 << 30
) -> None:
    """Raise SpiritlevelError if autograd's gradient is not that of the loss.

    The direction is such that every parameter brings about the same change of the loss. `at_once`
    samples run together.
    """
    parts = pieces(surface.received(batch), at_once)
    for name, *_ in _accused(surface, parts, where, list(surface.parameters), seed):
        # a kink that no step avoids does not matter along another direction, a wrong gradient does
        for _, claimed, truth in _accused(surface, parts, where, [name], seed + ANOTHER):
            _refuse_gradient(name, claimed, truth)


def _accused(
    surface: Surface, parts: list[Any], where: BatchLocation, names: list[str], seed: int
) -> Iterator[tuple[str, float, float]]:
    """Of these parameters, those whose slope differs from the loss: its name and both slopes."""
    directions = Directions(surface, seed)
    start = {name: surface.parameters[name].detach() for name in names}
    # Of several parts of a direction, each then turned uphill: along a random direction as a whole,
    # one of many parameters has a slope that is small by chance, and kinks count for more.
    slopes = torch.zeros(len(start), TURNED, dtype=torch.float64, device=surface.device)

    def outputs_and_loss(part: Any, at: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        outputs, targets = surface.outputs(part, where=where, parameters=at)
        return outputs, surface.loss.values(outputs.double(), targets).sum()

    loss = size_of_outputs = 0.0
    for part in parts:
        leaves = {name: p.detach().requires_grad_() for name, p in start.items()}
        # the backward too: there a model may run a part of itself again
        with surface.substituting(leaves), torch.enable_grad():
            outputs, total = outputs_and_loss(part, {})
            found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
            gradients: list[Tensor | None] = [*found]
            del found
        surface.cost += Cost(backwards=_batches.num_samples(part))
        for i, (name, p) in enumerate(start.items()):
            v, gradient, gradients[i] = directions.of(name, p), gradients[i], None
            if gradient is not None:
                for of_part, share in _shares(slopes[i], v.mul_(gradient)):
                    of_part += share.sum(dim=0).double()
        loss += float(total.detach())
        size_of_outputs += float(outputs.detach().abs().sum())
        del outputs, total
    size_of_loss = abs(loss) + size_of_outputs
    eps = precision(surface)
    step = eps ** (1 / 3) / LONGEST
    claimed = dict(zip(start, slopes.abs().sum(dim=1).tolist(), strict=True))
    uphill = dict(zip(start, torch.where(slopes < 0, -1.0, 1.0), strict=True))
    factors = dict.fromkeys(start, 1.0)
    kinks: dict[str, float] = {}  # by how much kinks within the step may change a slope
    for name, slope in claimed.items():
        kinks[name] = 0.0
        if slope:
            # As much as the others, as far as the step stays small.
            factors[name] = min(1.0 / slope, LONGEST)
            claimed[name] *= factors[name]
            kinks[name] = KINKS * claimed[name] * math.sqrt(step * factors[name])

    def moved(names: Iterable[str], by: float) -> dict[str, Tensor]:
        places = {}
        for name in names:
            v = directions.of(name, start[name]).mul_(by * factors[name])
            for sign, share in _shares(uphill[name].to(v.dtype), v):
                share.mul_(sign)
            places[name] = v.add_(start[name])
        return places

    def loss_at(place: dict[str, Tensor]) -> float:
        with torch.no_grad():
            return sum(float(outputs_and_loss(part, place)[1]) for part in parts)

    def slope_of(names: Iterable[str], by: float = step) -> float:
        return (loss_at(moved(names, by)) - loss_at(moved(names, -by))) / (2 * by)

    def differs(names: list[str]) -> bool:
        size = sum(claimed[name] for name in names) / len(names)
        gap = math.inf
        for shorter in SHORTER:
            rounding = 100 * eps * size_of_loss / (step * shorter)
            if shorter < 1.0 and rounding > LOST * gap:
                break  # it would hide the difference, not explain it
            noise = rounding + math.hypot(*[kinks[name] for name in names]) * math.sqrt(shorter)
            gap = abs(slope_of(names, step * shorter) - sum(claimed[name] for name in names))
            if gap <= 1e-3 * size + noise:
                return False
        return True

    if differs(list(start)):
        for name in start:
            if differs([name]):
                yield name, claimed[name], slope_of([name])


def _shares(of_parts: Tensor, v: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The numbers of the parts beside rows of v, in which its entries fall to the parts in turn."""
    flat, parts = v.view(-1), len(of_parts)
    rest = flat.numel() % parts
    whole = flat.numel() - rest
    if whole:
        yield of_parts, flat[:whole].view(-1, parts)
    if rest:
        yield of_parts[:rest], flat[whole:].view(1, rest)


def refuse_hidden_uses(
    surface: Surface, batch: Any, where: BatchLocation, outputs: Tensor, names: Iterable[str]
) -> None:
    """Raise SpiritlevelError if outputs change with parameters that autograd does not see used."""
    generator = torch.Generator(surface.device).manual_seed(0)
    for name in names:
        p = surface.parameters[name].detach()
        with torch.no_grad():
            moved, _ = surface.outputs(
                batch, where=where, parameters={name: p + direction(p, generator)}
            )
        scale = float(outputs.detach().abs().max())
        if float((moved - outputs.detach()).abs().max()) > 1e3 * precision(surface) * scale:
            raise SpiritlevelError(
                f"The outputs depend on {name!r}, and autograd sees no use of it: its module runs "
                "without a graph, so its gradient would count as 0. Look for torch.no_grad(), or "
                "for reentrant checkpointing of the input (pass use_reentrant=False to "
                "torch.utils.checkpoint). If the parameter is meant to be fixed, freeze it: "
                "requires_grad_(False)."
            )


def padding_rows(surface: Surface) -> dict[str, int]:
    """Rows of embeddings that are used and deliberately get no gradient, by parameter."""
    owners = {
        id(module.weight): module.padding_idx
        for module in surface.model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None
    }
    return {name: owners[id(p)] for name, p in surface.parameters.items() if id(p) in owners}


def precision(surface: Surface) -> float:
    """The precision of the outputs: some models compute in another type than their own."""
    return torch.finfo(surface.numbers.coarsest(surface.trial)).eps


def steps_of(surface: Surface) -> tuple[tuple[float, ...], float]:
    """The steps of differences of gradients, the largest first, and how far they may be off.

    Both are relative. A wrong derivative is wrong by its own size.
    """
    # differences over the short steps have five digits, those over the long ones two
    return (COARSE_STEPS, 2e-2) if precision(surface) > COARSE else (STEPS, 1e-3)


def gradient_rounding(surface: Surface, outputs: Tensor) -> dict[str, float]:
    """How accurate a gradient can be, by parameter.

    The signal at the outputs is a difference of numbers of the outputs' size, or of 1 and a
    probability, and has their rounding even where it is tiny itself, as in a confident network.
    """
    size = 1.0 + float(outputs.detach().abs().max())
    pulled = surface.pull(outputs, torch.ones_like(outputs), list(surface.parameters.values()))
    unit = 100 * precision(surface) * size
    zero = outputs.new_zeros((), dtype=torch.float64)
    lengths = torch.stack([zero if g is None else g.norm().double() for g in pulled]).tolist()
    return {name: unit * length for name, length in zip(surface.parameters, lengths, strict=True)}


def _refuse_gradient(name: str, claimed: float, truth: float) -> None:
    raise SpiritlevelError(
        f"The gradient that autograd gives for {name!r} is not that of the loss: along a random "
        f"direction the loss changes by {truth:.4g} and the gradient says {claimed:.4g}. So its "
        "second derivatives say nothing about the loss. Look for detach(), no_grad(), a hook that "
        "changes gradients, or an autograd function whose backward is not its derivative. If the "
        "parameter is meant to be fixed, freeze it: requires_grad_(False)."
    )


@dataclasses.dataclass(frozen=True)
class Slopes:
    """First derivatives a step ahead and a step behind, and how far rounding may move them."""

    step: float
    ahead: float
    behind: float
    rounding: float


def stable_difference(slopes: Iterable[Slopes]) -> float | None:
    """The second derivative by differences with several steps; None if they do not settle.

    The largest step comes first. Two steps in a row must agree: a kink within one of them would
    show in their difference.
    """
    before: float | None = None
    for at in slopes:
        difference = (at.ahead - at.behind) / (2 * at.step)
        if at.rounding / at.step > 1e-3 * abs(difference):
            return None
        if before is not None and abs(difference - before) <= 1e-3 * abs(difference):
            return difference
        before = difference
    return None


def direction(
    parameter: Tensor, generator: torch.Generator, fixed_row: int | None = None
) -> Tensor:
    """Random, and as long as the parameter itself; drawn where the parameter is."""
    noise = _noise(parameter, generator, fixed_row)
    return noise.mul_(_stretch(parameter, noise))


def _noise(parameter: Tensor, generator: torch.Generator, fixed_row: int | None) -> Tensor:
    noise = torch.randn(
        parameter.shape, generator=generator, dtype=parameter.dtype, device=parameter.device
    )
    if fixed_row is not None:
        noise[fixed_row] = 0.0
    return noise


def _stretch(parameter: Tensor, noise: Tensor) -> Tensor:
    """What makes the noise as long as the parameter, or 1 long if that is 0."""
    length = parameter.norm()
    return (length + (length == 0)) / noise.norm()
