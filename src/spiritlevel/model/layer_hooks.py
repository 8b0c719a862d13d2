"""Hooks that record what goes into layers, and pass on the gradients that come back.

The gradient at a layer's output is taken by a tensor hook set right after the layer ran, so that a
later in-place operation (ReLU(inplace=True), out += x) does not change its meaning. The gradient at
its input is taken on an alias that only this layer uses, so that a residual branch that uses the
same tensor does not add to it. Gradients are passed on as they arrive and freed at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .autograd_graph import inside_transform
from .exclusive import of_this_thread
from .layers.layer_rule import AbstractRule
from .operands import Operand
from .operation_watch import OperationWatch
from .operations import Operation


@dataclasses.dataclass
class LayerUse:
    """One use of parameters: a call of a module, or an operation that the graph shows."""

    layer: str  # or the parameter, if no layer of a known kind owns it
    module: Any  # or what the rules need to know of an operation
    input: Tensor
    output: Tensor  # detached, without a graph; of an operation only shape and type
    edge: GradientEdge | None  # None if the output depends on nothing trainable
    # ids of what the module had as its parameters during the call
    parameters: frozenset[int] = frozenset()
    hidden: bool = False  # whether it ran without a graph, as in a reentrant checkpoint
    input_edge: GradientEdge | None = None
    live_input: Tensor | None = None  # with its graph, where that was asked for
    rule: AbstractRule | None = None  # None until all uses of a run are known
    names: dict[str, str] = dataclasses.field(default_factory=dict)  # of parameters, by short name
    operands: dict[str, Operand] = dataclasses.field(default_factory=dict)  # of an operation
    on_output: Callable[[Tensor], None] | None = None
    on_input: Callable[[Tensor], None] | None = None

    @property
    def is_operation(self) -> bool:
        """Whether it was found in the graph, not by a hook of a module."""
        return bool(self.operands)

    def placed(self, key: str, G: Tensor) -> Tensor:
        """A gradient of what was used as one of the whole parameter."""
        return self.operands[key].placed(G) if key in self.operands else G


def of_plain_calls(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, without the calls of other threads and those that the model's code transforms.

    What a model computes by torch.func is read off the graph that is left when it ends.
    """

    def call(*args: Any) -> Any:
        return None if inside_transform() else hook(*args)

    return of_this_thread(call)


def with_alias(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments of a module with an alias of its input that nothing else uses."""
    if not args or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
        return None
    a = args[0]
    alias = a.view_as(a) if a.requires_grad else a.detach().requires_grad_()
    return (alias, *args[1:])


class LayerUses:
    """The recorded uses of modules; `close` breaks their reference cycle through the graph."""

    def __init__(self, live: bool = False, num_samples: int = 1) -> None:
        """Start without any use; `live` keeps inputs with their graph.

        A lookup that all samples share is repeated for each of the `num_samples` samples.
        """
        self.live, self.num_samples = live, num_samples
        self.uses: list[LayerUse] = []
        self.replayed: list[Any] = []  # hooks that stay until `close`
        self._hooks: list[Any] = []
        self._aliases: dict[int, Tensor] = {}
        self._paused = False

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Give the module an alias of its input that nothing else uses."""
        args_with_alias = with_alias(module, args)
        if args_with_alias is not None:
            self._aliases[id(module)] = args_with_alias[0]
        return args_with_alias

    def again(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The same in the backward, where a checkpointed part of the model runs again."""
        is_backward = torch._C._current_graph_task_id() != -1
        is_plain = not self._paused and not inside_transform()
        return with_alias(module, args) if is_backward and is_plain else None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The model may run otherwise in the block, where nothing was recorded."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def after(
        self, layer: str, module: nn.Module, args: tuple[Any, ...], output: Any
    ) -> Tensor | None:
        """Record the call and set the hooks for its gradients; returns what replaces the output."""
        alias = self._aliases.pop(id(module), None)
        if not args or not isinstance(args[0], Tensor) or not isinstance(output, Tensor):
            return None
        a, replaced = args[0], None
        if isinstance(module, nn.Embedding) and a.dim() > 1 and len(a) == 1 < self.num_samples:
            a = a.expand(self.num_samples, *a.shape[1:])
            output = replaced = output.expand(self.num_samples, *output.shape[1:])
        parameters = frozenset(id(p) for p in module._parameters.values() if p is not None)
        use = LayerUse(layer, module, a.detach(), output.detach(), None, parameters)
        use.hidden = not torch.is_grad_enabled()
        use.live_input = a if self.live else None
        self.uses.append(use)
        if not output.requires_grad:
            return replaced
        use.edge = get_gradient_edge(output)
        self._hooks.append(output.register_hook(lambda g: use.on_output and use.on_output(g)))
        if alias is not None:
            use.input_edge = get_gradient_edge(alias)
            self._hooks.append(alias.register_hook(lambda g: use.on_input and use.on_input(g)))
        return replaced

    def add(self, layer: str, operation: Operation) -> None:
        """Add an operation that the graph shows, and hook the gradient of its result."""
        output = torch.empty((), dtype=operation.dtype, device=operation.input.device)
        use = LayerUse(
            layer,
            operation.geometry,
            operation.input.detach(),
            output.expand(operation.shape),
            operation.edge,
            live_input=operation.input if self.live else None,
            rule=operation.rule,
            names={key: operand.name for key, operand in operation.operands.items()},
            operands=operation.operands,
        )
        self.uses.append(use)

        def arrived(gradients: tuple[Tensor | None, ...]) -> None:
            if use.on_output is not None and gradients[0] is not None:
                use.on_output(gradients[0])

        self._hooks.append(operation.edge.node.register_prehook(arrived))

    def close(self) -> None:
        """Remove the hooks and release the graph."""
        for hook in [*self._hooks, *self.replayed]:
            hook.remove()
        self.replayed.clear()
        for use in self.uses:
            use.on_output = use.on_input = use.edge = use.input_edge = use.live_input = None
            use.operands = {}
        self.uses.clear()
        self._hooks.clear()
        self._aliases.clear()


@contextlib.contextmanager
def recording_uses(
    modules: Mapping[str, nn.Module],
    *,
    inputs: frozenset[str] = frozenset(),
    live: bool = False,
    num_samples: int = 1,
) -> Iterator[LayerUses]:
    """Record the uses of modules by layer name.

    Those in `inputs` are hooked at their input too; `live` keeps inputs with their graph. A
    lookup that all samples share, such as that of positions, is repeated for each of the
    `num_samples` samples, so that each has its own.
    """
    recorded = LayerUses(live, num_samples)
    handles = []
    try:
        for layer, module in modules.items():
            if layer in inputs:
                handles.append(module.register_forward_pre_hook(of_plain_calls(recorded.before)))
            handles.append(
                module.register_forward_hook(
                    of_plain_calls(functools.partial(recorded.after, layer)),
                    prepend=True,  # before any hook of the user that replaces the output
                )
            )
        yield recorded
    except BaseException:
        recorded.close()  # nobody else will: the caller has not seen a use yet
        raise
    else:
        for layer in inputs & modules.keys():
            recorded.replayed.append(modules[layer].register_forward_pre_hook(recorded.again))
    finally:
        for handle in handles:
            handle.remove()


def saved_bytes() -> tuple[contextlib.AbstractContextManager[Any], dict[int, int]]:
    """A context, and the sizes by address of the storages that autograd saves during it.

    In it torch refuses what a model's own code does by torch.func: `result_bytes` takes its place.
    """
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        _note_storage(tensor, sizes)
        # The tensor itself would be kept by its own graph: a cycle that the collector cannot see.
        return tensor.detach()

    return torch.autograd.graph.saved_tensors_hooks(note, lambda t: t), sizes


def result_bytes() -> tuple[contextlib.AbstractContextManager[Any], dict[int, int]]:
    """The same for all results of operations, saved or not: at least what autograd saves."""
    watch = _Results()
    return watch, watch.sizes


class _Results(OperationWatch):
    """Notes the storages of all results."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, list | tuple) else [result]:
            if isinstance(part, Tensor):
                _note_storage(part, self.sizes)
        return result


def _note_storage(tensor: Tensor, sizes: dict[int, int]) -> None:
    if tensor._is_zerotensor():  # a tangent of 0, which has no memory
        return
    storage = tensor.untyped_storage()
    sizes[storage.data_ptr()] = max(storage.nbytes(), sizes.get(storage.data_ptr(), 0))


@contextlib.contextmanager
def recording_calls(module: nn.Module | None) -> Iterator[list[tuple[Tensor, Any]]]:
    """Collect the input and the output of every call of a module during the block."""
    calls: list[tuple[Tensor, Any]] = []
    if module is None:
        yield calls
        return

    def note(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        calls.append((args[0].detach(), output.detach()))

    handle = module.register_forward_hook(of_plain_calls(note), prepend=True)
    try:
        yield calls
    finally:
        handle.remove()


@contextlib.contextmanager
def returning_zeros(head: nn.Module) -> Iterator[None]:
    """Let the head return zeros of the right shape, which take no memory, during the block."""
    weight: Tensor = head.weight  # type: ignore[assignment]

    forward, thread = head.forward, threading.get_ident()

    def zeros(a: Tensor) -> Tensor:
        if threading.get_ident() != thread:  # somebody else uses the model in the meantime
            result: Tensor = forward(a)
            return result
        return a.new_zeros(()).expand(*a.shape[:-1], len(weight))

    instance_forward = head.__dict__.get("forward")
    head.forward = zeros
    try:
        yield
    finally:
        if instance_forward is None:
            del head.forward
        else:
            head.forward = instance_forward
