"""The loss surface of a user's network: the only code that calls the model and reads the data.

Everything above asks a Surface for outputs, gradients and function values. It counts the work,
checks what comes in, and leaves the model as it found it, whatever happens in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from . import _batches
from ._batches import Forward
from ._core import Cost, SpiritlevelError
from .losses import Loss, resolve

ROOT = "(model)"  # the layer name of parameters that the outermost module owns itself

Progress = Callable[[int, int | None], None]  # samples done, samples in all if known


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
    ) -> None:
        """`layers` keeps the parameters of modules whose path matches one of the patterns."""
        self.model = model
        self.data = _as_loader(data)
        self.loss = resolve(loss)
        self.forward = forward or _batches.default_forward
        self.progress = progress
        self.cost = Cost()
        self._unchecked: tuple[_Verdict, Tensor, Tensor, Any, Place] | None = None
        self.watched: Tensor | None = None
        self._runner = _Runner(model, self.forward)
        self.parameters = select_parameters(model, layers)
        anchor = next(iter(model.parameters()), torch.empty(0))
        self.device, self.dtype = anchor.device, anchor.dtype

    # -- the model ---------------------------------------------------------------------------

    def layer_of(self, parameter: str) -> str:
        """The path of the module that owns a parameter."""
        return parameter.rpartition(".")[0] or ROOT

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
        self, batch: Any, *, where: Place, watch: nn.Module | None = None
    ) -> tuple[Tensor, Tensor]:
        """Outputs and targets of a batch, checked; the input of `watch` is kept in `watched`.

        On a GPU the values are looked at one batch later, so that nobody waits for them.
        """
        self.settle()
        with _input_of(watch) as taken:
            outputs, targets = self._runner(batch)
        self.watched = taken[-1] if taken else None
        self.cost += Cost(forwards=len(outputs))
        seen = outputs.detach()
        self.loss.check(seen, targets, where=str(where))
        bad = ~torch.isfinite(seen).all() | self.loss.invalid(seen, targets).any()
        for tensor in _batches.tensors(batch):
            if tensor.is_floating_point():
                bad = bad | ~torch.isfinite(tensor).all()
        self._unchecked = (_Verdict(bad), seen, targets, batch, where)
        if seen.device.type == "cpu":
            self.settle()
        return outputs, targets

    def settle(self) -> None:
        """Look at the values of the last batch, and raise if they cannot be measured."""
        if self._unchecked is not None:
            verdict, outputs, targets, batch, where = self._unchecked
            self._unchecked = None
            if verdict.bad():
                _check_finite(outputs, batch, where)
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

        def outputs(parameters: dict[str, Tensor]) -> Tensor:
            renamed = {f"model.{name}": value for name, value in parameters.items()}
            result, _ = functional_call(self._runner, renamed, (batch,))
            return result

        return outputs

    # -- the data ----------------------------------------------------------------------------

    def batches(self) -> Iterator[tuple[Place, Any]]:
        """(place, batch on the model's device) for every batch of the loader."""
        seen = 0
        for index, batch in enumerate(self.data):
            batch = _batches.map_tensors(lambda t: t.to(self.device), batch)
            seen += _batches.num_samples(batch)
            yield Place(index), batch
        if seen == 0:
            raise SpiritlevelError(
                "The data must hold at least one sample. Got an empty loader. Check the data set's "
                "length, drop_last=True with a batch larger than the data, or an exhausted "
                "generator."
            )

    def chunks(self, size: int) -> Iterator[tuple[Place, Any]]:
        """The same data in pieces of at most `size` samples, reporting progress."""
        total = _total_samples(self.data)
        done = 0
        for where, batch in self.batches():
            length = _batches.num_samples(batch)
            for start in range(0, length, size):
                place = dataclasses.replace(where, start=start)
                yield place, _batches.take(batch, slice(start, start + size))
                done += min(size, length - start)
                if self.progress is not None:
                    self.progress(done, total)
        self.settle()

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
        if found is None or _batches.num_samples(found) == 0:
            raise SpiritlevelError(
                "The data must hold at least one sample. Got only empty batches. "
                "Check the data set's length."
            )
        index = torch.arange(count, device=self.device) % _batches.num_samples(found)
        return _batches.take(found, index)

    # -- hygiene -----------------------------------------------------------------------------

    def check_model(self) -> None:
        """Refuse a model whose loss is not a fixed function of its parameters."""
        for name, module in self.model.named_modules():
            label = name or ROOT
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
                module.training or module.running_mean is None
            ):
                _refuse_batch_statistics(label, module)
            if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p:
                raise SpiritlevelError(
                    f"The module {label!r} ({type(module).__name__}, p={module.p}) is in train "
                    "mode, so the loss is random. Call model.eval() before measuring."
                )
        for name, parameter in self.model.named_parameters():
            bad = int((~torch.isfinite(parameter.detach())).sum())
            if bad:
                raise SpiritlevelError(
                    f"The parameter {name!r} has {bad} NaN or infinite values of "
                    f"{parameter.numel()}. The training run diverged or the checkpoint is damaged: "
                    "load an earlier checkpoint."
                )

    @contextlib.contextmanager
    def _differentiable_kernels(self) -> Iterator[None]:
        """Without cuDNN where its recurrent kernels would refuse a backward in eval mode."""
        recurrent = any(isinstance(module, nn.RNNBase) for module in self.model.modules())
        enabled = torch.backends.cudnn.enabled
        try:
            torch.backends.cudnn.enabled = enabled and not recurrent
            yield
        finally:
            torch.backends.cudnn.enabled = enabled

    @contextlib.contextmanager
    def full_precision(self) -> Iterator[None]:
        """No TF32 in the block: what is compared there is compared to float32's last digits."""
        backends: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
        before = [backend.allow_tf32 for backend in backends]
        try:
            for backend in backends:
                backend.allow_tf32 = False
            yield
        finally:
            for backend, allowed in zip(backends, before, strict=True):
                backend.allow_tf32 = allowed

    @contextlib.contextmanager
    def preserved(self) -> Iterator[None]:
        """Buffers and random states are on leaving what they were on entering."""
        buffers = [
            (module, name, buffer, buffer.detach().clone())
            for module in self.model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), self._differentiable_kernels():
            try:
                yield
            finally:
                with torch.no_grad():
                    for module, name, buffer, before in buffers:
                        module._buffers[name] = buffer
                        if not torch.equal(buffer, before):
                            buffer.copy_(before)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where in the data a batch came from: its number, and its first sample within it."""

    batch: int
    start: int = 0

    def __str__(self) -> str:
        return f"batch {self.batch}"


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

    def forward(self, batch: Any) -> tuple[Tensor, Tensor]:
        return self._call(self.model, batch)


def select_parameters(
    model: nn.Module, layers: str | Sequence[str] | None
) -> dict[str, nn.Parameter]:
    """Trainable parameters, all or those of the modules that match `layers`."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trainable:
        raise SpiritlevelError(
            "The model must have at least one parameter with requires_grad=True. Got none. "
            "Unfreeze what you want to measure: parameter.requires_grad_(True)."
        )
    if layers is None:
        return trainable
    patterns = [layers] if isinstance(layers, str) else list(layers)
    owners = {name: name.rpartition(".")[0] or ROOT for name in trainable}
    for pattern in patterns:
        if not fnmatch.filter(owners.values(), pattern):
            have = ", ".join(dict.fromkeys(owners.values()))
            raise SpiritlevelError(
                f"The 'layers' argument must name modules with trainable parameters. Nothing "
                f"matches {pattern!r}. Available: {have}."
            )
    return {
        name: parameter
        for name, parameter in trainable.items()
        if any(fnmatch.fnmatchcase(owners[name], pattern) for pattern in patterns)
    }


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


def _check_finite(outputs: Tensor, batch: Any, where: Place) -> None:
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


def _refuse_batch_statistics(label: str, module: nn.Module) -> None:
    kind = type(module).__name__
    if module.training:
        raise SpiritlevelError(
            f"The module {label!r} ({kind}) is in train mode: its outputs depend on the other "
            "samples of the batch, so there is no loss of one sample to measure. Call model.eval() "
            "before measuring."
        )
    raise SpiritlevelError(
        f"The module {label!r} ({kind}) keeps no running statistics and normalizes by the batch "
        "even in eval mode. Use track_running_stats=True, or GroupNorm."
    )
