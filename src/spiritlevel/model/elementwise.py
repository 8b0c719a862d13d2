"""Where a network bends element by element: tanh, SiLU, GELU and the like, however they are called.

Each element of such a result depends on one element of one tensor, the site. A parameter behind it
that meets no other kind of bend has the Hessian

    GGN + Σ over sites of Jᵀ diag(c) J,   c = Σ over functions of φ''(y) ∘ ∂ℓ/∂φ(y),

with J the Jacobian of the site in the parameter. φ'' is the derivative of what autograd recorded.
So x · sigmoid(x), x / (1 + |x|) and an activation written out in several operations are one
function of their site like any other. Formulas stand in for torch's only where these lose digits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from .linearity import bending_nodes, note_reasons, operation_of
from .node_results import result_of
from .saturation import saturating

# Older versions do not start a backward in the middle of a graph.
STARTS_ANYWHERE = torch.__version__ >= torch.torch_version.TorchVersion("2.5")

# Each element of the result depends on one element of each argument.
_OPERATIONS = """
Add Sub Rsub Neg Mul Div Addcmul Addcdiv
Abs Relu Threshold LeakyRelu Clamp ClampMin ClampMax Hardtanh Hardsigmoid Hardshrink Softshrink
Maximum Minimum
Tanh Sigmoid Silu Gelu Softplus Elu Celu Mish LogSigmoid Hardswish
Exp Exp2 Expm1 Log Log2 Log10 Log1P Pow Sqrt Rsqrt Reciprocal
Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Atan2 Erf Erfc Sinc Hypot Logaddexp
"""
_ELEMENTWISE = frozenset(_OPERATIONS.split())

Place = tuple[Any, int]  # a node, and which of its results


@dataclasses.dataclass
class Site:
    """A tensor that elementwise functions bend, and the nodes of these functions."""

    edge: GradientEdge
    nodes: list[Any]
    behind: int  # parameters that they bend, one bit each
    share: float  # of the counted nodes: how much of the network a backward from here may pass

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor."""
        return torch.Size(result_of(self.edge.node, self.edge.output_nr).shape)

    @property
    def dtype(self) -> torch.dtype:
        """Its type."""
        dtype: torch.dtype = result_of(self.edge.node, self.edge.output_nr).dtype
        return dtype


@dataclasses.dataclass
class ElementwiseBends:
    """The sites behind some outputs, and what else bends parameters."""

    sites: list[Site]
    bends: dict[str, str]  # all parameters that bend the outputs, each with a function that does
    others: dict[str, str]  # those bent by another kind of function as well, and by which


def elementwise_bends(
    outputs: Tensor,
    parameters: dict[int, str],
    *,
    linear_slices: bool = False,
    counted: Collection[Any] = (),
) -> ElementwiseBends:
    """Where the outputs bend; arguments are those of `linearity.bends`.

    A site's share is that of the `counted` nodes which come before it.
    """
    found = ElementwiseBends([], {}, {})
    starts: dict[Place, Place] = {}  # of what each result is a function, element by element
    sites: dict[Place, Site] = {}
    passed = 0
    for node, bent in bending_nodes(outputs, parameters, linear_slices=linear_slices):
        passed += node in counted
        start = _start(node, starts)
        if start is not None:
            starts[node, 0] = start
        note_reasons(found.bends, parameters, bent, node.name())
        if start is None or not STARTS_ANYWHERE:
            note_reasons(found.others, parameters, bent, node.name())
        elif bent:
            share = passed / max(len(counted), 1)
            site = sites.setdefault(start, Site(GradientEdge(*start), [], 0, share))
            site.nodes.append(node)
            site.behind |= bent
    found.sites = list(sites.values())
    return found


def _start(node: Any, starts: dict[Place, Place]) -> Place | None:
    """The one tensor of which a result is a function element by element; None if there is none."""
    if operation_of(node) not in _ELEMENTWISE:
        return None
    places = [(before, number) for before, number in node.next_functions if before is not None]
    tensors = {starts.get(place, place) for place in places}
    if len(tensors) != 1:
        return None
    (start,) = tensors
    here, there = result_of(node), result_of(*start)
    same = here.shape == there.shape and here.dtype == there.dtype
    return start if same and here.dtype.is_floating_point else None


@dataclasses.dataclass(frozen=True)
class Bend:
    """How much the functions of a site bend, and what of that may be rounding."""

    curvature: Tensor  # Σ φ'' ∘ signal, float64, in the shape of the site
    lost: Tensor  # how far rounding may be off in it
    lost_slope: Tensor  # and in Σ φ' ∘ signal, which columns of later sites pass


def bend_of(site: Site, signals: dict[Any, Tensor]) -> Bend:
    """Sums over the site's functions, each with its signal.

    A function of several arguments, each of which follows from an element y of the site, has
    φ'' = Σ_j d(∂φ/∂x_j)/dy · dx_j/dy, to which ∂φ/∂x_j · d²x_j/dy² of other nodes add up.
    """
    zero = torch.zeros(site.shape, dtype=torch.float64, device=next(iter(signals.values())).device)
    found = Bend(zero, zero, zero)
    for node, signal in signals.items():
        ones, signal = torch.ones_like(signal), signal.double()
        if (known := saturating(node)) is not None:
            inner = _along(site, GradientEdge(*node.next_functions[0]), ones)
            if inner is not None:
                along, size = inner.double(), (signal * inner).abs()
                found = Bend(
                    found.curvature + signal * known.second * along.square(),
                    found.lost + known.lost_of_second * size * along.abs(),
                    found.lost_slope + known.lost_of_first * size,
                )
            continue
        with torch.enable_grad():
            slopes = node(ones)
        slopes = slopes if isinstance(slopes, tuple) else (slopes,)
        for slope, place in zip(slopes, node.next_functions, strict=True):
            if place[0] is None or slope is None or not slope.requires_grad:
                continue
            bend = _along(site, slope, ones)
            inner = _along(site, GradientEdge(*place), ones)
            if bend is not None and inner is not None:
                added = signal * bend.double() * inner.double()
                found = dataclasses.replace(found, curvature=found.curvature + added)
    return found


def _along(site: Site, result: Tensor | GradientEdge, ones: Tensor) -> Tensor | None:
    """The derivative of each element of a result by its element of the site."""
    (found,) = torch.autograd.grad(
        [result],  # type: ignore[arg-type]
        [site.edge],
        [ones],
        retain_graph=True,
        allow_unused=True,
    )
    return found
