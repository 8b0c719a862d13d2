"""Run a network with chosen values in place of every layer's output.

Between two layers of a known kind lies whatever the user wrote: activations, pooling, views,
additions. To learn what that does with the units, each layer's output is replaced by random
values, then by changed ones, and what the next layers read is compared. Nothing but these parts
is tested then, all of them in one run, and a unit that is dead on the samples is alive here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..ground.errors import SpiritlevelError, is_out_of_memory
from .ports import Port

_SMALLEST = 0.05  # nothing so near zero that a change of it could not be seen

Run = Callable[[nn.Module], Tensor]
View = Callable[[Tensor], Tensor]
Change = Callable[[Port, Tensor], Tensor]
Check = Callable[[int, list[Tensor]], None]
_SUMS = ("AddBackward", "SubBackward")
_PRODUCTS = ("MulBackward", "DivBackward", "MaximumBackward", "MinimumBackward", "WhereBackward")
_FUSED_ATTENTION = "ScaledDotProduct"
_SOFTMAX, _MATMUL = "SoftmaxBackward", "BmmBackward"


class Diverged(Exception):
    """With other values the network stopped, or took another path through its code."""


@dataclasses.dataclass
class Call:
    """One call of a port in the reference run."""

    port: Port
    inputs: list[Tensor]
    values: Tensor  # what its output was replaced with


class Trace:
    """The reference run of a model, and runs that change the layers' outputs."""

    def __init__(
        self, model: nn.Module, run: Run, ports: dict[str, Port], generator: torch.Generator
    ) -> None:
        self._model, self._run, self.ports = model, run, ports
        self._generator = generator
        self.calls: list[Call] = []
        self.reach: Reach
        self._reference()

    def replay(self, change: Change, check: Check) -> None:
        """Run with changed outputs and show `check` what each call reads."""
        position = 0

        def hook(port: Port, inputs: list[Tensor], output: Tensor) -> Tensor:
            nonlocal position
            if position == len(self.calls) or self.calls[position].port is not port:
                raise Diverged("other layers are called")
            call = self.calls[position]
            if [x.shape for x in inputs] != [x.shape for x in call.inputs]:
                raise Diverged("layers are called with other shapes")
            check(position, inputs)
            position += 1
            # a copy: an activation may work in place
            return change(port, call.values).to(output, copy=True)

        with torch.no_grad(), self._hooked(hook):
            _run(self._run, self._model)
        if position < len(self.calls):
            raise Diverged("fewer layers are called")

    def _reference(self) -> None:
        nodes: list[list[Any]] = []
        leaves: dict[int, str] = {}
        alive: list[Tensor] = []  # an id means something only while its tensor lives

        def hook(port: Port, inputs: list[Tensor], output: Tensor) -> Tensor:
            count = sum(call.port is port for call in self.calls)
            values = _values(output, port.axis, count, self._generator)
            self.calls.append(Call(port, [x.detach().clone() for x in inputs], values))
            nodes.append([x.grad_fn for x in inputs])
            leaf = values.clone().requires_grad_()
            leaves[id(leaf)] = port.path
            alive.append(leaf)
            return leaf.clone()  # a leaf could not be worked on in place

        with self._hooked(hook), _recorded(self._model) as given:
            outputs = _run(self._run, self._model)
        if self.calls and not any(tensor.requires_grad for tensor in given):
            raise SpiritlevelError(
                "The 'run' argument must call the model it is given, outside of "
                "torch.inference_mode(), so that it can be seen which layer reads which. No "
                "output with a gradient was seen. Return model(inputs), with or without no_grad()."
            )
        returned = [tensor.grad_fn for tensor in _returned(given, outputs)]
        self.reach = reach_of(nodes, returned, leaves)

    @contextlib.contextmanager
    def _hooked(self, hook: Callable[[Port, list[Tensor], Tensor], Tensor]) -> Iterator[None]:
        def attach(port: Port) -> Any:
            def after(
                module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
            ) -> Any:
                given = [*args, *kwargs.values()][: port.num_inputs]
                inputs = [x for x in given if isinstance(x, Tensor)]
                if isinstance(output, tuple):  # attention also returns its weights
                    return (hook(port, inputs, output[0]), *output[1:])
                return hook(port, inputs, output)

            module = self._model.get_submodule(port.path)
            return module.register_forward_hook(after, with_kwargs=True)

        handles = [attach(port) for port in self.ports.values()]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def viewed(run: Run, view: View | None) -> Run:
    """The run, of whose outputs only a part is looked at."""
    return run if view is None else lambda model: view(run(model))


@contextlib.contextmanager
def _recorded(model: nn.Module) -> Iterator[list[Tensor]]:
    """Turn gradients on inside the model, whatever `run` does, and collect its outputs."""
    modes: list[bool] = []
    given: list[Tensor] = []

    def before(module: nn.Module, args: Any) -> None:
        modes.append(torch.is_grad_enabled())
        torch.set_grad_enabled(True)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        torch.set_grad_enabled(modes.pop())
        given.extend(x for x in tree_leaves(output) if isinstance(x, Tensor))

    handles = [
        model.register_forward_pre_hook(before),
        model.register_forward_hook(after, always_call=True),
    ]
    try:
        yield given
    finally:
        for handle in handles:
            handle.remove()


def differentiable(run: Run, model: nn.Module) -> Tensor:
    """What `run` gives, with the graph that leads to the parameters, whatever `run` does to it."""
    with torch.enable_grad(), _recorded(model) as given:
        outputs = _run(run, model)
    if outputs.requires_grad:
        return outputs
    parts = [t.flatten() for t in _returned(given, outputs) if t.requires_grad]
    if not parts:
        raise Diverged("its outputs have no gradient")
    return torch.cat(parts)


def _returned(given: list[Tensor], outputs: Tensor) -> list[Tensor]:
    """Those of the model's outputs that `run` returned: it may detach, the memory is the same."""
    memory = outputs.untyped_storage().data_ptr()
    return [tensor for tensor in given if tensor.untyped_storage().data_ptr() == memory]


def _run(run: Run, model: nn.Module) -> Tensor:
    try:
        return run(model)
    except Diverged:
        raise
    except Exception as error:  # the user's code met numbers it was not written for
        if is_out_of_memory(error):
            raise
        raise Diverged(f"{type(error).__name__}: {error}") from error


def along(axis: int, vector: Tensor, tensor: Tensor) -> Tensor:
    """The vector shaped to run along an axis of the tensor."""
    shape = [1] * tensor.dim()
    shape[axis] = -1
    return vector.to(tensor).view(shape)


def by_entry(axis: int, tensor: Tensor) -> Tensor:
    """A row for each entry along the axis."""
    return tensor.movedim(axis, 0).reshape(tensor.shape[axis], -1)


def _values(like: Tensor, axis: int, count: int, generator: torch.Generator) -> Tensor:
    """Random values, whose signs let every unit pass a ReLU somewhere and fail it elsewhere.

    Signs alternate along every dimension but the units', and from call to call, so that both are
    left where the network reads a single position. They are the same for every layer, so that sums
    keep them and no product is negative throughout. Averages over positions could still come out
    negative: of images, the first is positive throughout and the second negative.
    """
    draws = torch.randn(like.shape, generator=generator, device=generator.device).to(like)
    parity = torch.full((), count, device=like.device)
    for dim, size in enumerate(like.shape):
        if dim != axis % like.dim():
            shape = [-1 if other == dim else 1 for other in range(like.dim())]
            parity = parity + torch.arange(size, device=like.device).view(shape)
    signs = 1 - 2 * (parity % 2)
    if axis != -1:
        signs = signs.expand(like.shape).clone()
        signs[0], signs[1:2] = 1, -1
    return (draws.abs() + _SMALLEST) * signs


@dataclasses.dataclass(frozen=True)
class Reach:
    """For each call the layers it reads from; which layers meet in a sum or a product."""

    behind: list[frozenset[str]]
    behind_outputs: frozenset[str]
    attends: list[bool]  # is there attention between a call and the layers behind it?
    sums: set[frozenset[str]]
    products: set[frozenset[str]]


@dataclasses.dataclass(frozen=True)
class _View:
    layers: frozenset[str] = frozenset()
    operations: frozenset[str] = frozenset()


def reach_of(calls: list[list[Any]], outputs: list[Any], leaves: dict[int, str]) -> Reach:
    """Survey the graph behind each call's inputs and the outputs; leaves name a layer by id."""
    views_by_node: dict[Any, _View] = {None: _View()}
    sums: set[frozenset[str]] = set()
    products: set[frozenset[str]] = set()
    for root in (*(node for nodes in calls for node in nodes), *outputs):
        for node in _children_first(root, views_by_node):
            name = node.name()
            variable = getattr(node, "variable", None)
            if variable is not None:
                layer = leaves.get(id(variable))
                views_by_node[node] = _View(frozenset() if layer is None else frozenset({layer}))
                continue
            behind = [views_by_node[following] for following, _ in node.next_functions]
            views_by_node[node] = _merged(behind, name)
            if sum(bool(view.layers) for view in behind) > 1:
                if name.startswith(_SUMS):
                    sums.add(views_by_node[node].layers)
                elif name.startswith(_PRODUCTS):
                    products.add(views_by_node[node].layers)
    views = [_merged([views_by_node[node] for node in nodes], "") for nodes in calls]
    return Reach(
        [view.layers for view in views],
        frozenset().union(*(views_by_node[node].layers for node in outputs)),
        [_FUSED_ATTENTION in v.operations or {_SOFTMAX, _MATMUL} <= v.operations for v in views],
        sums,
        products,
    )


def _merged(views: Iterable[_View], name: str) -> _View:
    views = list(views)
    marks = {mark for mark in (_FUSED_ATTENTION, _SOFTMAX, _MATMUL) if mark in name}
    return _View(
        frozenset().union(*(view.layers for view in views)),
        frozenset(marks).union(*(view.operations for view in views)),
    )


def _children_first(root: Any, visited: dict[Any, _View]) -> Iterable[Any]:
    stack = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if node in visited:
            continue
        if expanded:
            yield node
        else:
            stack.append((node, True))
            stack.extend((following, False) for following, _ in node.next_functions)
