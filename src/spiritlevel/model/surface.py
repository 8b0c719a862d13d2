"""The loss surface of a user's network: the only code that calls the model and reads the data.

Everything above asks a Surface for outputs, gradients and function values. It counts the work,
checks what comes in, and leaves the model as it found it, whatever happens in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..errors import SpiritlevelError
from ..records import Cost, Progress
from . import batches as _batches
from . import huggingface
from . import model_state as hygiene
from .batches import BatchLocation, Forward
from .distributed import Processes, refuse_sharded, unwrapped
from .losses import Loss, as_mask, resolve
from .model_state import ROOT
from .parameters import select_parameters


class Surface:
    """A model, its data and its loss, seen as one function of the trainable parameters."""

    def __init__(
        self,
        model: nn.Module,
        data: Iterable[Any],
        *,
        loss: str | nn.Module | Callable[[Tensor, Tensor], Tensor] | Loss = "cross_entropy",
        forward: Forward | None = None,
        layers: str | Sequence[str] | None = None,
        progress: Progress | None = None,
        processes: Processes | None = None,
    ) -> None:
        """`layers` keeps the parameters of modules whose path matches one of the patterns."""
        refuse_sharded(model)
        self.model = model = unwrapped(model)
        self.data = _as_loader(data)
        self.loss = huggingface.loss_for(model, resolve(loss))
        self.forward = forward or huggingface.forward_for(
            model, self.loss, by_name=isinstance(loss, str)
        )
        self.progress = progress
        self.processes = processes or Processes(join=False)
        self.cost = Cost()
        self._unchecked: (
            tuple[_Verdict, Tensor, Tensor, Tensor, Any, BatchLocation, bool] | None
        ) = None
        self.watched: Tensor | None = None
        # entered around every plain call of the model, by those who look inside while it runs
        self.observer: Callable[[], contextlib.AbstractContextManager[object]] = (
            contextlib.nullcontext
        )
        self._runner = _Runner(model, self.forward)
        self.parameters = select_parameters(model, layers)
        anchor = next(iter(model.parameters()), torch.empty(0))
        self.device, self.dtype = anchor.device, anchor.dtype

    # -- the model ---------------------------------------------------------------------------

    def layer_of(self, parameter: str) -> str:
        """The path of the module that owns a parameter."""
        return parameter.rpartition(".")[0] or ROOT

    @functools.cached_property
    def tied(self) -> dict[str, str]:
        """Other names of measured parameters, by the name they are measured under."""
        known = {id(p): name for name, p in self.parameters.items()}
        return {
            known[id(p)]: name
            for name, p in self.model.named_parameters(remove_duplicate=False)
            if id(p) in known and name != known[id(p)]
        }

    def module(self, layer: str) -> nn.Module:
        """The module of a layer name."""
        return self.model if layer == ROOT else self.model.get_submodule(layer)

    def layers(self) -> dict[str, list[str]]:
        """Parameter names by layer, in the model's order."""
        found: dict[str, list[str]] = {}
        for name in self.parameters:
            found.setdefault(self.layer_of(name), []).append(name)
        return found

    def outputs(
        self,
        batch: Any,
        *,
        where: BatchLocation,
        watch: nn.Module | None = None,
        parameters: dict[str, Tensor] | None = None,
        may_overflow: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Outputs and targets of a batch, checked; the input of `watch` is kept in `watched`.

        `parameters` take the place of the model's own for this call; with them the outputs may be
        allowed to overflow.

        On a GPU the values are looked at one batch later, so that nobody waits for them.
        """
        self.settle()
        self._decide(batch)
        with _input_of(watch) as taken, self.observer():
            outputs, targets, mask = self._run(batch, parameters or {})
        self.watched = taken[-1] if taken else None
        finite = outputs.new_zeros(()) if may_overflow else outputs.detach()
        return outputs, self._checked(outputs, targets, mask, finite, batch, where)

    def _decide(self, batch: Any) -> None:
        """Before any batch goes through: how the model reads its labels, where that is open."""
        if isinstance(self.forward, huggingface.PretrainedForward):
            self.forward.decide(self.model, batch)

    def features(
        self, batch: Any, *, where: BatchLocation, head: nn.Module
    ) -> tuple[Tensor, Tensor]:
        """What goes into the head, and the targets, without computing the head's output."""
        self.settle()
        with _input_of(head) as taken, _stand_in(head), self.observer():
            outputs, targets, mask = self._runner(batch)
        (features,) = taken
        return features, self._checked(outputs, targets, mask, features, batch, where)

    def _checked(
        self,
        outputs: Tensor,
        targets: Tensor,
        mask: Tensor | None,
        finite: Tensor,
        batch: Any,
        where: BatchLocation,
    ) -> Tensor:
        """The targets that count; `finite` is what must be so beside the batch itself."""
        self.cost += Cost(forwards=len(outputs))
        outputs = outputs.detach()
        if not targets.is_floating_point():
            targets = targets.long()  # −100 is another number in eight bits
        _check_rows(outputs, batch, where)
        self.loss.check(outputs, targets, where=str(where))
        bad = ~torch.isfinite(finite).all()
        invalid, counted = self.loss.invalid(outputs, targets), targets
        if mask is None:
            for tensor in _batches.tensors(batch):
                if tensor.is_floating_point():
                    bad = bad | ~torch.isfinite(tensor).all()
        else:  # what a mask hides may be anything
            counted = self.loss.hidden(targets, mask, where=str(where))
            kept = as_mask(mask, targets.shape)
            assert kept is not None  # or `hidden` would have refused it
            invalid = invalid & kept
        bad = bad | invalid.any()
        self._unchecked = (_Verdict(bad), finite, outputs, counted, batch, where, mask is not None)
        if outputs.device.type == "cpu":
            self.settle()
        return counted

    def settle(self) -> None:
        """Look at the values of the last batch, and raise if they cannot be measured."""
        if self._unchecked is not None:
            verdict, finite, outputs, targets, batch, where, masked = self._unchecked
            self._unchecked = None
            if verdict.bad():
                if not masked or not bool(torch.isfinite(finite).all()):
                    _check_finite(finite, batch, where)
                self.loss.explain(outputs, targets, where=str(where))

    def pull(
        self, outputs: Tensor, cotangent: Tensor, inputs: Sequence[Any]
    ) -> tuple[Tensor | None, ...]:
        """Gradients of ⟨cotangent, outputs⟩ in `inputs`; the graph stays for the next column."""
        self.cost += Cost(backwards=len(outputs))
        return torch.autograd.grad(
            outputs, list(inputs), cotangent, retain_graph=True, allow_unused=True
        )

    def function(self, batch: Any) -> Callable[[dict[str, Tensor]], Tensor]:
        """Outputs as a pure function of (some of) the parameters, by their names in the model."""
        return lambda parameters: self._run(batch, parameters)[0]

    def _run(
        self, batch: Any, parameters: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        if not parameters:
            found: tuple[Tensor, Tensor, Tensor | None] = self._runner(batch)
        else:
            renamed = {f"model.{name}": value for name, value in parameters.items()}
            # Looking for tied weights takes as long as a small network's forward.
            tied = bool(self.tied)
            found = functional_call(self._runner, renamed, (batch,), tie_weights=tied)
        return found

    # -- the data ----------------------------------------------------------------------------

    def batches(self) -> Iterator[tuple[BatchLocation, Any]]:
        """(place, batch on the model's device) for every batch of the loader."""
        seen = 0
        for index, batch in enumerate(self.data):
            batch = _batches.map_tensors(lambda t: t.to(self.device), batch)
            yield BatchLocation(index, first=seen), batch
            seen += _batches.num_samples(batch)
        if seen == 0 and self.processes.size == 1:
            raise SpiritlevelError(
                "The data must hold at least one sample. Got an empty loader. Check the data set's "
                "length, drop_last=True with a batch larger than the data, or an exhausted "
                "generator."
            )

    def chunks(self, size: int) -> Iterator[tuple[BatchLocation, Any]]:
        """The same data in pieces of at most `size` samples, reporting progress."""
        total = _total_samples(self.data)
        done = 0
        for where, batch in self.batches():
            length = _batches.num_samples(batch)
            for start in range(0, length, size):
                place = dataclasses.replace(where, start=start, first=where.first + start)
                yield place, _batches.take(batch, slice(start, start + size))
                done += min(size, length - start)
                if self.progress is not None:
                    self.progress(done, total, "passing over the data")
        self.settle()

    def count_samples(self) -> int:
        """How many samples this process has, read off the data where it says so."""
        known = _total_samples(self.data)
        if known is not None and self.processes.size == 1:
            return known
        return sum(_batches.num_samples(batch) for batch in self.data)  # a shard may be a part

    def first_samples(self, count: int) -> Any:
        """A batch of the first `count` samples, repeated if there are fewer of one shape."""
        found: Any = None
        for _, batch in self.batches():
            joined = batch if found is None else _batches.join(found, batch)
            if joined is None:
                break
            found = joined
            if _batches.num_samples(found) >= count:
                break
        if found is not None and _batches.num_samples(found) == 0:
            found = None
        if self.processes.size > 1:  # all plan on the same samples, also those who have none
            mine = None if found is None else _batches.map_tensors(lambda t: t.cpu(), found)
            parts = [part for part in self.processes.gather(mine) if part is not None]
            found = parts[0] if parts else None
            found = _batches.map_tensors(lambda t: t.to(self.device), found)
        if found is None:
            raise SpiritlevelError(
                "The data must hold at least one sample. Got only empty batches. "
                "Check the data set's length."
            )
        index = torch.arange(count, device=self.device) % _batches.num_samples(found)
        chosen = _batches.take(found, index)
        self._decide(chosen)
        return chosen

    # -- hygiene -----------------------------------------------------------------------------

    def check_model(self) -> None:
        """Refuse a model whose loss is not a fixed function of its parameters."""
        hygiene.check_model(self.model)

    def preserved(self) -> contextlib.AbstractContextManager[None]:
        """Buffers and random states are on leaving what they were on entering."""
        return hygiene.preserved(self.model, self.device)


@contextlib.contextmanager
def _input_of(module: nn.Module | None) -> Iterator[list[Tensor]]:
    """Collects what goes into a module during the block."""
    taken: list[Tensor] = []
    if module is None:
        yield taken
        return
    handle = module.register_forward_pre_hook(lambda _, args: taken.append(args[0].detach()))
    try:
        yield taken
    finally:
        handle.remove()


@contextlib.contextmanager
def _stand_in(head: nn.Module) -> Iterator[None]:
    """During the block the head returns zeros of the right shape that take no memory."""
    weight: Tensor = head.weight  # type: ignore[assignment]

    def forward(a: Tensor) -> Tensor:
        return a.new_zeros(()).expand(*a.shape[:-1], len(weight))

    own = head.__dict__.get("forward")
    head.forward = forward
    try:
        yield
    finally:
        if own is None:
            del head.forward
        else:
            head.forward = own


class _Verdict:
    """A yes or no that travels to the host behind the work that decides it, and no other."""

    def __init__(self, flag: Tensor) -> None:
        self._flag = flag
        self._arrived: torch.cuda.Event | None = None
        if flag.device.type == "cuda":
            self._flag = torch.empty((), dtype=torch.bool, pin_memory=True)
            self._flag.copy_(flag, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(flag.device))

    def bad(self) -> bool:
        if self._arrived is not None:
            self._arrived.synchronize()
        return bool(self._flag)


class _Runner(nn.Module):
    """The model and how a batch goes through it, as one module for `functional_call`."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._call = forward
        self.training = model.training

    def forward(self, batch: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        outputs, targets, *mask = self._call(self.model, batch)
        return outputs, targets, mask[0] if mask else None


def _as_loader(data: Any) -> Iterable[Any]:
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(t, Tensor) for t in data):
        return [data]
    if not isinstance(data, Iterable) or isinstance(data, Tensor):
        raise SpiritlevelError(
            "The data must be a loader of (x, y) batches or a pair of tensors (x, y). "
            f"Got {type(data).__name__}. For tensors pass (x, y)."
        )
    if isinstance(data, Iterator):
        raise SpiritlevelError(
            "The data must be iterable more than once. Got a one-shot iterator "
            f"({type(data).__name__}). Pass the DataLoader itself, or list(iterator)."
        )
    return data


def _total_samples(data: Iterable[Any]) -> int | None:
    dataset = getattr(data, "dataset", None)
    try:
        if dataset is not None:
            return len(dataset)
        if isinstance(data, list | tuple):
            return sum(_batches.num_samples(batch) for batch in data)
    except TypeError:
        pass  # a streaming data set has no length; progress then shows counts only
    return None


def _check_rows(outputs: Tensor, batch: Any, where: BatchLocation) -> None:
    count = _batches.num_samples(batch)
    if outputs.dim() == 0 or len(outputs) != count:
        raise SpiritlevelError(
            f"The outputs must hold one row a sample. Got outputs of shape {tuple(outputs.shape)} "
            f"for {count} samples in {where}. Return them with the samples first and positions "
            "after them: (samples, positions, classes), not flattened or transposed."
        )


def _check_finite(outputs: Tensor, batch: Any, where: BatchLocation) -> None:
    sample = _batches.nonfinite_sample(batch)
    if sample is not None:
        raise SpiritlevelError(
            f"The data of {where} must be finite. Sample {where.start + sample} holds NaN or "
            "infinity. Remove or repair that sample."
        )
    if bool(torch.isfinite(outputs).all()):
        return
    raise SpiritlevelError(
        f"The model's outputs are NaN or infinite in {where} although its data is finite. "
        "Look for an overflow in the model, for example by running it in float32 or float64."
    )
