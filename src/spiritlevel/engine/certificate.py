"""The exactness certificate: is a layer's Hessian block its Gauss–Newton block?

H = GGN + Σ_c ∂ℓ/∂z_c · ∇²z_c. The second part vanishes where the outputs are piecewise linear in
the layer's weights (ReLU, max pooling, eval-mode BatchNorm, residual sums). That is not assumed
from the kinds of layers but computed on samples of the data.

A layer used once acts through its output y, which is linear in its weights; so the outputs z bend
along the weights only if z bends along y. All layers are tested together: with δ_l = ∂⟨c, z⟩/∂y_l
for a random c, and random directions d_l, the gradient of Σ_l ⟨δ_l, d_l⟩ in y_m is zero for the
layers m behind which everything is piecewise linear: one double backward certifies them all. A
layer that fails is tested again alone, since layers that multiply each other only bend together.

Parameters that act in another way (tied, recurrent, attention, bare ones) are tested one layer at a
time: D²z[v, v] along a random direction v of the parameters, by two nested forward derivatives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.func import jvp

from ..model import batches as _batches
from ..model.batches import BatchLocation
from ..model.layer_hooks import LayerUse, lacks_second_derivative, recording_uses
from ..model.layers import Layout
from ..model.surface import Surface
from ..records import Cost
from .plan import Plan


@dataclasses.dataclass(frozen=True)
class Certificate:
    """The outcome for a parameter; `curvature` is the bend of the outputs over their slope."""

    linear: bool
    curvature: float
    reason: str = ""


def certify_parameters(
    surface: Surface, plan: Plan, batches: list[Any], seed: int
) -> dict[str, Certificate]:
    """One certificate per parameter, over all the given batches."""
    single = [name for name, route in plan.routes.items() if route == "single"]
    together = _bends_together(surface, plan, batches, seed) if single else {}
    certificates = {
        name: Certificate(True, 0.0) for name, r in plan.routes.items() if r == "unused"
    }
    if together is not None:
        for name in single:
            certificates[name] = _judge(together[surface.layer_of(name)], surface.dtype)
    for names in surface.layers().values():
        rest = [name for name in names if name not in certificates]
        if rest:
            certificates |= _certify_alone(surface, rest, batches, seed)
    return {name: certificates[name] for name in surface.parameters}


def _judge(bend: float, dtype: torch.dtype) -> Certificate:
    # The round-off of two derivatives; a smaller bend changes the value by no more than that.
    if bend <= 100 * torch.finfo(dtype).eps:
        return Certificate(True, bend)
    return Certificate(False, bend, f"the outputs bend along it (by {bend:.2g} of their slope)")


def _bends_together(
    surface: Surface, plan: Plan, batches: list[Any], seed: int
) -> dict[str, float] | None:
    """The largest bend of any sample, by layer; None if the model has no double backward."""
    generator = torch.Generator().manual_seed(seed)
    modules = {layer: surface.module(layer) for layer in plan.layouts}
    bends = dict.fromkeys(modules, 0.0)
    for batch in batches:
        with torch.enable_grad(), recording_uses(modules, inputs=frozenset()) as recorded:
            outputs, _ = surface.outputs(batch, where=BatchLocation(0))
            try:
                _add_bends(
                    bends, outputs, [use for use in recorded.uses if use.edge], plan, generator
                )
            except RuntimeError:
                return None  # fused attention and cuDNN's recurrent kernels have no second backward
            finally:
                recorded.close()
        surface.cost += Cost(forwards=len(outputs), backwards=3 * len(outputs))
    return bends


def _add_bends(
    bends: dict[str, float],
    outputs: Tensor,
    uses: list[LayerUse],
    plan: Plan,
    generator: torch.Generator,
) -> None:
    """Raise each layer's entry in `bends` to the largest bend of these samples."""
    edges: list[Any] = [use.edge for use in uses]
    layouts = [
        dataclasses.replace(plan.layouts[use.layer], num_samples=len(outputs)) for use in uses
    ]
    cotangent = _noise(outputs, generator)
    deltas = torch.autograd.grad(outputs, edges, cotangent, create_graph=True, allow_unused=True)
    if lacks_second_derivative(deltas):
        raise RuntimeError("a function in the model is differentiable only once")
    parts = []  # ⟨δ_l, d_l⟩
    slope = outputs.new_zeros(len(outputs))
    for use, layout, delta in zip(uses, layouts, deltas, strict=True):
        # as long as y itself, so that neither the weights' scale nor the layer's size matters
        direction = _noise(use.output, generator)
        direction = direction * (use.output.norm() / direction.norm())
        parts.append(outputs.new_zeros(()) if delta is None else (delta * direction).sum())
        if delta is not None:
            slope += _sample_norms(delta.detach(), layout) * _sample_norms(direction, layout)

    def bend(i: int, second: Tensor | None) -> float:
        if second is None:
            return 0.0
        size = _sample_norms(uses[i].output, layouts[i])
        tiny = torch.finfo(outputs.dtype).tiny
        return float((_sample_norms(second, layouts[i]) * size / (slope + tiny)).max())

    for i, second in enumerate(_gradient(torch.stack(parts).sum(), edges)):
        layer, largest = uses[i].layer, bend(i, second)
        if not _judge(largest, outputs.dtype).linear and _judge(bends[layer], outputs.dtype).linear:
            # Layers that multiply each other bend together and not alone: look at this one alone.
            largest = bend(i, _gradient(parts[i], [edges[i]])[0])
        bends[layer] = max(bends[layer], largest)


def _gradient(value: Tensor, edges: list[Any]) -> tuple[Tensor | None, ...]:
    if not value.requires_grad:
        return (None,) * len(edges)
    return torch.autograd.grad(value, edges, retain_graph=True, allow_unused=True)


def _sample_norms(x: Tensor, layout: Layout) -> Tensor:
    return layout.split(x).flatten(1).norm(dim=1)


def _certify_alone(
    surface: Surface, names: list[str], batches: Iterable[Any], seed: int
) -> dict[str, Certificate]:
    """A layer's parameters together, and one at a time if that fails.

    The trace contains only diagonal blocks, so it is enough if each parameter alone is linear.
    """
    batches = list(batches)
    together = _worst(surface, names, batches, seed)
    if together.linear or len(names) == 1:
        return dict.fromkeys(names, together)
    return {name: _worst(surface, [name], batches, seed) for name in names}


def _worst(surface: Surface, names: list[str], batches: list[Any], seed: int) -> Certificate:
    certificates = [_bend_along(surface, names, batch, seed) for batch in batches]
    return max(certificates, key=lambda c: (not c.linear, c.curvature))


def _bend_along(surface: Surface, names: list[str], batch: Any, seed: int) -> Certificate:
    """‖D²z[v,v]‖ / ‖Dz[v]‖, with v as long as the parameters themselves."""
    generator = torch.Generator().manual_seed(seed)
    start = {name: surface.parameters[name].detach() for name in names}
    direction = {name: _direction(value, generator) for name, value in start.items()}
    outputs = surface.function(batch)

    def along(t: Tensor) -> Tensor:
        return outputs({name: start[name] + t * direction[name] for name in names})

    zero = torch.zeros((), dtype=surface.dtype, device=surface.device)
    one = torch.ones_like(zero)

    def slope(t: Tensor) -> Tensor:
        return jvp(along, (t,), (one,))[1]

    try:
        first, second = (x.detach().flatten(1) for x in jvp(slope, (zero,), (one,))[:2])
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        return Certificate(False, float("inf"), f"its derivative could not be taken: {reason}")
    # a forward with two nested derivatives carries four numbers in place of one
    surface.cost += Cost(forwards=4 * _batches.num_samples(batch))
    scale = first.norm(dim=1) + torch.finfo(first.dtype).tiny
    return _judge(float((second.norm(dim=1) / scale).max()), surface.dtype)


def _noise(like: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    return noise.to(dtype=like.dtype, device=like.device)


def _direction(value: Tensor, generator: torch.Generator) -> Tensor:
    noise = _noise(value, generator)
    length = value.norm()
    return noise * (torch.where(length > 0, length, torch.ones_like(length)) / noise.norm())
