"""Which outputs of rectifiers are 0, and how large the inputs of layers are, over all data.

Only sums are kept, and one bit per output: whether it was nonzero for any sample. A rectifier is
found wherever it is called, as a module, a function or a method, because it is searched for among
the operators that torch runs, not among the modules. It is named after the module whose forward
calls it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..ground.errors import SpiritlevelError
from ..model import batches as _batches
from ..model.batches import BatchLocation
from ..model.distributed import Processes
from ..model.layer_hooks import of_plain_calls
from ..model.layers import Layout, candidate_layouts
from ..model.model_state import ROOT
from ..model.operation_watch import OperationWatch
from ..model.surface import Surface
from .moments import Moments

Note = Callable[[str, int, Tensor], None]  # module path, number of the call, tensor

# Operators that cut off below: the index and name of that argument; None if they always cut at 0.
_LOWER_END = {
    "relu": None,
    "relu6": None,
    "clamp_min": (1, "min"),
    "clamp": (1, "min"),
    "hardtanh": (1, "min_val"),
    "threshold": (2, "value"),
}
ActivityKind = Literal["rectifiers", "inputs"]


def label_of(path: str, call: int) -> str:
    """A module's path, with the number of the call from its second call on."""
    return path if call == 1 else f"{path} ({call})"


@contextlib.contextmanager
def observed(
    surface: Surface, observer: Callable[[], contextlib.AbstractContextManager[object]] | None
) -> Iterator[None]:
    """Enter the observer around every plain call of the model during the block."""
    surface.observer = observer or contextlib.nullcontext
    try:
        yield
    finally:
        surface.observer = contextlib.nullcontext


@contextlib.contextmanager
def watching(surface: Surface, rectified: Note, entered: Note) -> Iterator[None]:
    """Report every rectifier's output and every weight layer's input during the block."""
    paths: list[str] = []  # of the modules whose forward is running
    calls: dict[tuple[str, str], int] = {}
    layers = surface.layers.matrix_rules

    def count(kind: str, path: str) -> int:
        calls[kind, path] = calls.get((kind, path), 0) + 1
        return calls[kind, path]

    def enter(path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        paths.append(path)
        a = args[0] if args else kwargs.get("input")
        if path in layers and isinstance(a, Tensor) and a.is_floating_point():
            entered(path, count("layer", path), a.detach())

    def leave() -> None:
        paths.pop()

    def note(output: Tensor) -> None:
        path = paths[-1] if paths else ROOT
        rectified(path, count("rectifier", path), output)

    handles: list[Any] = []
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        # the fast path runs a whole layer as one kernel that hides its rectifier
        torch.backends.mha.set_fastpath_enabled(False)
        for name, module in surface.model.named_modules():
            path = name or ROOT
            handles += [
                module.register_forward_pre_hook(
                    of_plain_calls(lambda _, args, kwargs, path=path: enter(path, args, kwargs)),
                    with_kwargs=True,
                ),
                module.register_forward_hook(of_plain_calls(lambda *_: leave()), always_call=True),
            ]
        with _Rectifiers(note):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for handle in handles:
            handle.remove()


class _Rectifiers(OperationWatch):
    """Sees every operator that runs, and reports the outputs of those that cut off at 0."""

    def __init__(self, note: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if _cuts_at_zero(func, args, kwargs or {}) and output.is_floating_point():
            self._note(output.detach())
        return output


def _cuts_at_zero(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    name = func.overloadpacket.__name__.removesuffix("_")
    if func.namespace != "aten" or name not in _LOWER_END:
        return False
    lower_end = _LOWER_END[name]
    if lower_end is None:
        return True
    position, keyword = lower_end
    end = args[position] if len(args) > position else kwargs.get(keyword)
    return isinstance(end, int | float) and end == 0


@dataclasses.dataclass(frozen=True)
class ActivationSites:
    """Where the model applies rectifiers and calls layers, and where the samples are there."""

    rectifiers: dict[str, Layout]
    inputs: dict[str, Layout | None]  # by call; None if all samples share the input
    constant: frozenset[str]  # rectifiers of weights, which have no activity
    layers: tuple[str, ...]  # the layers that are called, each listed once


def find_activation_sites(surface: Surface, head: nn.Module | None = None) -> ActivationSites:
    """Run two samples, then the second alone: the dimension that changes holds the samples.

    `head` is a module whose output is not needed and not computed.
    """
    batch = surface.first_samples(2)
    two = _observe(surface, batch, head)
    one = _observe(surface, _batches.take(batch, slice(1, 2)), head)
    rectifiers = _layouts(two.rectified, one.rectified)
    return ActivationSites(
        rectifiers={label: layout for label, layout in rectifiers.items() if layout is not None},
        inputs=_layouts(two.entered, one.entered),
        constant=frozenset(label for label, layout in rectifiers.items() if layout is None),
        layers=tuple(two.layers),
    )


class _Observed:
    """The tensors that were observed during one call of the model."""

    def __init__(self) -> None:
        self.rectified: dict[str, Tensor] = {}
        self.entered: dict[str, Tensor] = {}
        self.layers: dict[str, None] = {}

    def on_rectified(self, path: str, call: int, output: Tensor) -> None:
        self.rectified[label_of(path, call)] = (
            output.clone()
        )  # the model may change it in place later

    def on_entered(self, path: str, call: int, a: Tensor) -> None:
        self.entered[label_of(path, call)] = a.clone()
        self.layers[path] = None


def _observe(surface: Surface, batch: Any, head: nn.Module | None) -> _Observed:
    seen = _Observed()
    with (
        observed(surface, lambda: watching(surface, seen.on_rectified, seen.on_entered)),
        torch.no_grad(),
    ):
        if head is None:
            surface.outputs(batch, where=BatchLocation(0))
        else:
            surface.features(batch, where=BatchLocation(0), head=head)
    return seen


def _layouts(two: dict[str, Tensor], one: dict[str, Tensor]) -> dict[str, Layout | None]:
    for label in two.keys() ^ one.keys():
        raise SpiritlevelError(_unsteady(label))
    return {label: _layout(label, x, one[label]) for label, x in two.items()}


def _layout(label: str, two: Tensor, one: Tensor) -> Layout | None:
    """Where the samples are in a tensor, or None if it does not depend on them."""
    if one.shape == two.shape:
        return None
    for layout in candidate_layouts(two.shape, 2, one.shape, 1, leading=two.dim()):
        second = layout.split(two)[1]
        alone = dataclasses.replace(layout, num_samples=1).split(one)[0]
        # a sum in another order differs by round-off, another sample by its whole size
        if float((second - alone).abs().max()) <= 1e-2 * float(two.abs().max()):
            return layout
    raise SpiritlevelError(
        f"The samples cannot be told apart at {label!r}: two of them give a tensor of shape "
        f"{tuple(two.shape)}, one gives {tuple(one.shape)}. Keep one dimension for the samples "
        "there, or leave the measures of the family 'activity' out."
    )


class Activity:
    """Sums over the data at every activation site.

    If samples cannot be compared, the pass goes on, since it may serve other measures; the text of
    the error is kept in `troubles`, and `refuse` raises it.
    """

    def __init__(self, surface: Surface, sites: ActivationSites) -> None:
        """Start with empty sums."""
        self.surface, self.sites = surface, sites
        self.active = Moments(sites.rectifiers, surface.device)  # non-zero outputs of a sample
        self.squares = Moments(sites.layers, surface.device)  # ‖input‖² of a sample
        self.alive: dict[str, Tensor] = {}  # which outputs are nonzero for some sample
        self.troubles: dict[ActivityKind, str] = {}
        self.num_samples = 0  # in the next batch
        self._counts: dict[str, Tensor] = {}
        self._norms: dict[str, Tensor] = {}

    def refuse(self, kind: ActivityKind) -> None:
        """Raise SpiritlevelError if these sums could not be taken."""
        if kind in self.troubles:
            raise SpiritlevelError(self.troubles[kind])

    @contextlib.contextmanager
    def observer(self) -> Iterator[None]:
        """Observe one call of the model with `num_samples` samples."""
        self._counts, self._norms = {}, {}
        with watching(self.surface, self._rectified, self._entered):
            yield
        for label in self.sites.rectifiers.keys() - self._counts.keys():
            self.troubles.setdefault("rectifiers", _unsteady(label))
        ones = torch.ones(self.num_samples, dtype=torch.float64, device=self.surface.device)
        for moments, values in ((self.active, self._counts), (self.squares, self._norms)):
            if moments.index:
                rows = [values.get(name, torch.zeros_like(ones)) for name in moments.index]
                moments.add(torch.stack(rows), ones)

    def _rectified(self, path: str, call: int, output: Tensor) -> None:
        label = label_of(path, call)
        if label in self.sites.constant or "rectifiers" in self.troubles:
            return
        rows = self._split(self.sites.rectifiers.get(label), output)
        if rows is None:
            self.troubles["rectifiers"] = _unsteady(label)
            return
        nonzero = rows != 0
        alive = self.alive.setdefault(label, torch.zeros_like(nonzero[0]))
        if alive.shape != nonzero.shape[1:]:
            self.troubles["rectifiers"] = _uneven(label, alive.shape, nonzero.shape[1:])
            return
        # bytes and narrow sums: `any` and sums in 64 bits take longer than a layer
        alive |= nonzero.view(torch.uint8).amax(dim=0).bool()
        self._counts[label] = nonzero.flatten(1).sum(dim=1, dtype=torch.int32).double()

    def _entered(self, path: str, call: int, a: Tensor) -> None:
        label = label_of(path, call)
        layout = self.sites.inputs.get(label)
        shared = label in self.sites.inputs and layout is None  # by all samples
        rows = a[None] if shared else self._split(layout, a)
        if rows is None:
            self.troubles["inputs"] = _unsteady(label)
            return
        wide = torch.promote_types(a.dtype, torch.float32)
        norms = torch.linalg.vector_norm(rows.flatten(1), dim=1, dtype=wide).double().square()
        self._norms[path] = self._norms.get(path, 0.0) + norms.expand(self.num_samples)

    def _split(self, layout: Layout | None, x: Tensor) -> Tensor | None:
        """The tensor with one row per sample, or None if it cannot be split."""
        if layout is None or x.dim() <= layout.dim or x.shape[layout.dim] % self.num_samples:
            return None
        return dataclasses.replace(layout, num_samples=self.num_samples).split(x)

    def reduce(self, processes: Processes) -> None:
        """Add up over the processes; one without data uses the shapes of the others."""
        self.active.reduce(processes)
        self.squares.reduce(processes)
        if processes.size == 1:
            return
        for troubles in processes.gather(self.troubles):
            self.troubles = troubles | self.troubles
        shapes = processes.gather({label: bits.shape for label, bits in self.alive.items()})
        for label in self.sites.rectifiers:
            seen_shapes = [part[label] for part in shapes if label in part]
            for shape in seen_shapes:
                if shape != seen_shapes[0]:
                    self.troubles.setdefault("rectifiers", _uneven(label, seen_shapes[0], shape))
        if "rectifiers" in self.troubles or not any(shapes):  # the same in all processes
            return
        for label in self.sites.rectifiers:
            shape = next(part[label] for part in shapes if label in part)
            empty = torch.zeros(shape, dtype=torch.bool, device=self.surface.device)
            count = self.alive.get(label, empty).int()
            processes.sum_(count)
            self.alive[label] = count > 0


def _unsteady(label: str) -> str:
    return (
        f"The activity at {label!r} cannot be compared between samples: it is reached in some "
        "batches only, or with another layout. Leave the measures of the family 'activity' out, or "
        "measure batches of one kind."
    )


def _uneven(label: str, one: torch.Size, other: torch.Size) -> str:
    shapes = [tuple(shape[1:] if shape[0] == 1 else shape) for shape in (one, other)]
    return (
        f"The outputs of the rectifier at {label!r} must have one shape for all samples, since an "
        f"output is dead only if it is 0 for every one. Got {shapes[0]} and {shapes[1]} in "
        "different batches. Cut or pad the samples to one length."
    )
