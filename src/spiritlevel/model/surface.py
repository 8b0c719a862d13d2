"""The loss surface of a user's network: the only code that calls the model and reads the data.

All other code asks a Surface for outputs, gradients and function values. It counts the work, checks
inputs and outputs, and leaves the model as it was, whatever happens in between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from ..ground.errors import SpiritlevelError, is_out_of_memory
from ..records.measurements import Cost, Progress
from . import batches as _batches
from . import model_state
from .arithmetic import Arithmetic
from .attributes import Attributes, attributes_kept
from .autograd_graph import inside_transform, shape_of_graph
from .batches import BatchLocation, Forward
from .distributed import Processes, refuse_sharded, unwrapped
from .embedding_flags import PlainLookups
from .findings import Findings, findings_about
from .forwards import PretrainedForward, loss_and_forward
from .layer_hooks import recording_calls, returning_zeros
from .losses import AnyLoss
from .lost_digits import LostDigits
from .named_layers import Layers
from .number_types import NumberTypes
from .output_checks import OutputChecks
from .parameters import KeptData, frozen_text, select_parameters, substituted
from .shards import Shards, is_divided
from .surroundings import data_record
from .weight_matrices import MatrixSearch, WeightMatrix
from .weight_norm import PlainWeightNorm

FIRST_SAMPLES = 32  # of the data that are looked at before it is measured
FIRST_RUN = 2  # of them that show what the model does
FIRST_SEARCHED, LATER_SEARCHED = 3, 16  # of them that show how parameters are used, at a time
NOTHING = torch.zeros(())  # in the place of outputs that need not be finite


class Surface:
    """The loss of a model on its data, as a function of the trainable parameters."""

    def __init__(
        self,
        model: nn.Module,
        data: Iterable[Any],
        *,
        loss: AnyLoss = "cross_entropy",
        forward: Forward | None = None,
        layers: str | Sequence[str] | None = None,
        progress: Progress | None = None,
        processes: Processes | None = None,
        arithmetic: Arithmetic = "full",
    ) -> None:
        """`layers` restricts the parameters to modules whose path matches one of the patterns."""
        divided = is_divided(model)  # what may not stay so was gathered
        if not divided:
            refuse_sharded(model)
        has_hooks = isinstance(model, nn.parallel.DistributedDataParallel)
        self.model = model = unwrapped(model)
        self.data = _batches.as_batches(data)
        self._record = data_record(data)
        self.loss, self.forward = loss_and_forward(model, loss, forward)
        # Processes do the same work together, and each may know something else.
        joined = processes is not None and processes.size > 1
        self.findings = Findings((), ()) if joined else findings_about(model, loss, forward)
        self.progress = progress
        self.processes = processes or Processes(join=False)
        self.cost = Cost()
        self._checks = OutputChecks(self.loss)
        self.lost = LostDigits(self.loss, self.processes)
        self.watched: list[tuple[Tensor, Tensor]] = []  # input and output of the module to watch
        # entered around every plain call of the model, to observe what happens inside
        self.observer: Callable[[], contextlib.AbstractContextManager[object]] = (
            contextlib.nullcontext
        )
        self.parameters = select_parameters(model, layers)
        self.layers = Layers(model, self.parameters)
        self.shards: Shards | None = None
        if divided:
            self.shards = Shards(model, self.parameters)
            self.parameters = cast("dict[str, nn.Parameter]", self.shards.parts)
        anchor = next(iter(model.parameters()), torch.empty(0))
        self.device = anchor.device
        self.numbers = NumberTypes(model, self.device, arithmetic, has_hooks=has_hooks)
        self._measuring = False
        self._called = False  # whether the model has run
        self._weight_norm = PlainWeightNorm()
        self._needs_graph = False  # whether its code calls torch.autograd.grad
        self._first: Any = None  # the first samples of the data
        self._left: Attributes | None = None  # what the first call changed

    # -- the model ---------------------------------------------------------------------------

    def outputs(
        self,
        batch: Any,
        *,
        where: BatchLocation,
        watch: nn.Module | None = None,
        parameters: dict[str, Tensor] | None = None,
        may_overflow: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Outputs and targets of a batch, checked; `watched` holds the calls of module `watch`.

        `parameters` replace the model's own in this call; `may_overflow` allows infinite outputs.

        On a GPU the values are checked one batch later, so that nothing waits for them.
        """
        self.check_last_batch()
        self._find_label_shift(batch)
        with recording_calls(watch) as self.watched, self.observer():
            outputs, targets, mask = self._run(batch, parameters or {})
        finite = NOTHING if may_overflow else outputs.detach()
        self.cost += Cost(forwards=len(outputs))
        given = outputs.detach()
        targets = self._checks.counted(given, targets, mask, finite, batch, where)
        if not parameters:
            self.lost.see(given, targets)
        return outputs, targets

    def _find_label_shift(self, batch: Any) -> None:
        """Before the first batch: find out how a Hugging Face model reads its labels."""
        if isinstance(self.forward, PretrainedForward) and self.forward.shift is None:
            with attributes_kept(self.model):
                self.forward.find_label_shift(self.model, batch)

    def features(
        self, batch: Any, *, where: BatchLocation, head: nn.Module
    ) -> tuple[Tensor, Tensor]:
        """The input of the head, and the targets, without computing the head's output."""
        self.check_last_batch()
        with recording_calls(head) as calls, returning_zeros(head), self.observer():
            outputs, targets, mask = self._run(batch, {})
        if len(calls) != 1:
            raise SpiritlevelError(
                f"The head must be called once for every batch. In {where} the model calls it "
                f"{len(calls)} times. Leave head.* out of 'measures', or name another 'head'."
            )
        features = calls[0][0]
        self.cost += Cost(forwards=len(outputs))
        return features, self._checks.counted(
            outputs.detach(), targets, mask, features, batch, where
        )

    def check_last_batch(self) -> None:
        """Raise SpiritlevelError if the values of the last batch cannot be measured."""
        self._checks.read()

    @functools.cached_property
    def frozen(self) -> str | None:
        """How much of the network is frozen; every measure's settings hold it."""
        return frozen_text(self.model)

    @functools.cached_property
    def matrices(self) -> dict[str, WeightMatrix]:
        """The measured parameters that act as matrices, in their order, by layer or own name."""
        search = MatrixSearch(self.layers)
        if search.left:
            with self.preserved(), self.processes.together():
                for where, batch in self._first_and_all():
                    with torch.enable_grad():
                        outputs, _ = self.outputs(batch, where=where)
                    if search.ends_with(outputs):
                        break
                search.agree(self.processes)
        return search.found()

    def _first_and_all(self) -> Iterator[tuple[BatchLocation, Any]]:
        """The first samples, and then all of them in small parts."""
        yield BatchLocation(0), self.first_samples(FIRST_SEARCHED)
        yield from self.chunks(LATER_SEARCHED)

    def pull(
        self,
        root: Tensor | GradientEdge,
        cotangent: Tensor,
        inputs: Sequence[Any],
        num_samples: int | None = None,
    ) -> tuple[Tensor | None, ...]:
        """Gradients of ⟨cotangent, root⟩ in `inputs`; the graph is kept for the next column.

        The number of samples is the length of the cotangent where it is not given.
        """
        self.cost += Cost(backwards=len(cotangent) if num_samples is None else num_samples)
        return torch.autograd.grad(
            [root],  # type: ignore[arg-type]
            list(inputs),
            [cotangent],
            retain_graph=True,
            allow_unused=True,
        )

    def function(self, batch: Any) -> Callable[[dict[str, Tensor]], Tensor]:
        """The outputs as a pure function of some or all parameters, by name."""
        return lambda parameters: self._run(batch, parameters)[0]

    def substituting(
        self, parameters: dict[str, Tensor]
    ) -> contextlib.AbstractContextManager[None]:
        """Let the model compute with these tensors in place of its parameters during the block.

        A backward belongs into the block too: there a checkpointed part of the model runs again.
        """
        if not parameters:
            return contextlib.nullcontext()
        registered = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        return substituted(self.model, {registered[n]: value for n, value in parameters.items()})

    def _run(
        self, batch: Any, parameters: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        norm = self._weight_norm
        with (
            self._leaving_nothing(),
            KeptData() if inside_transform() else contextlib.nullcontext(),
            self.substituting(parameters),
            # looking at every function is slow, and the first call shows what the model calls
            contextlib.nullcontext() if self._called else PlainLookups(),
            contextlib.nullcontext() if self._called and not norm.is_used else norm,
            self.numbers.calling(),
        ):
            outputs, targets, *mask = self._called_model(batch)
        self._called = True
        return outputs, targets, mask[0] if mask else None

    def _called_model(self, batch: Any) -> tuple[Tensor, ...]:
        """What `forward` gives; with a graph inside for a model that differentiates by itself.

        It gets a copy: some models write to their input, and the next call needs it as it was.
        """
        if torch.is_grad_enabled() or not self._needs_graph:
            try:
                return self.forward(self.model, _batches.map_tensors(Tensor.clone, batch))
            except RuntimeError as error:
                if torch.is_grad_enabled() or is_out_of_memory(error):
                    raise
        with torch.enable_grad():
            outputs, *others = self.forward(self.model, _batches.map_tensors(Tensor.clone, batch))
        self._needs_graph = True
        return outputs.detach(), *others

    @contextlib.contextmanager
    def _leaving_nothing(self) -> Iterator[None]:
        """Take back what a call leaves on the modules, which the next one would use."""
        before = self._left or Attributes(self.model)
        try:
            yield
        finally:
            changed = before.restore()
        self._left = self._left or changed

    def trial(self) -> Callable[[], object]:
        """Get a sample ready; what this returns runs the model on it, and looks at nothing."""
        sample = self.first_samples(1)
        self.cost += Cost(forwards=1)
        return lambda: self._run(sample, {})

    @property
    def dtype(self) -> torch.dtype:
        """What the model's parameters are held in now."""
        return self.numbers.held_in

    # -- the data ----------------------------------------------------------------------------

    def batches(self) -> Iterator[tuple[BatchLocation, Any]]:
        """(location, batch on the model's device) for every batch of the data."""
        seen = 0
        if self._measuring:  # the random state will be restored
            self._record.advance()
        moved = (_batches.map_tensors(lambda t: t.to(self.device), each) for each in self.data)
        for index, batch in enumerate(self._record.watched(moved)):
            batch = self.received(batch)
            yield BatchLocation(index, first=seen), batch
            seen += _batches.num_samples(batch)
        if seen == 0 and self.processes.size == 1:
            raise SpiritlevelError(
                "The data must hold at least one sample. Got an empty loader. Check the data set's "
                "length, drop_last=True with a batch larger than the data, or an exhausted "
                "generator."
            )

    def received(self, batch: Any) -> Any:
        """A batch where the model is, in a number type that it can take."""
        return _batches.map_tensors(self._received, batch)

    def _received(self, tensor: Tensor) -> Tensor:
        """A tensor of the data, where the model is and in a number type that it can take."""
        tensor = tensor.to(self.device)
        if self.numbers.wide is not None and tensor.is_floating_point():
            return tensor.to(self.numbers.wide)
        return tensor

    def chunks(self, size: int) -> Iterator[tuple[BatchLocation, Any]]:
        """The data in pieces of at most `size` samples, reporting progress."""
        done = 0
        for where, batch in self.batches():
            length = _batches.num_samples(batch)
            for start in range(0, length, size):
                location = dataclasses.replace(where, start=start, first=where.first + start)
                yield location, _batches.take(batch, slice(start, start + size))
                done += min(size, length - start)
                self.report_progress(done)
        self.check_last_batch()

    def report_progress(self, done: int) -> None:
        """Tell the user's callback how many samples of a pass are done."""
        if self.progress is not None:
            self.progress(done, _batches.total_samples(self.data), "passing over the data")

    def count_samples(self) -> int:
        """How many samples this process has, without reading the data if its length is known."""
        total = _batches.total_samples(self.data)
        if total is not None and self.processes.size == 1:
            return total
        # with several processes a loader may yield only a part of its data set
        return sum(_batches.num_samples(batch) for _, batch in self.batches())

    def first_run(self) -> Hashable:
        """What the model does with the first samples now, and what these look like."""
        batch = self.first_samples(FIRST_RUN)
        with torch.enable_grad():
            outputs, _ = self.outputs(batch, where=BatchLocation(0))
        names = {id(p): name for name, p in self.parameters.items()}
        return shape_of_graph(outputs, names), _batches.form_of(batch)

    def first_samples(self, count: int) -> Any:
        """`count` of the first samples: those that differ and are not blank, as far as possible.

        They are repeated if there are fewer of one shape.
        """
        if self._first is None or self._first[0] < count:
            with self.numbers.as_given():
                self._first = count, self._read_first(count)
        first = self.received(self._first[1])
        index = torch.tensor(_batches.telling_samples(first, count), device=self.device)
        chosen = _batches.take(first, index)
        self._find_label_shift(chosen)
        return chosen

    def _read_first(self, count: int) -> Any:
        """The first batch, joined with the next ones until there are `count` samples."""
        first: Any = None
        for _, batch in self.batches():
            joined = batch if first is None else _batches.join(first, batch)
            if joined is None:
                break
            first = joined
            if _batches.num_samples(first) >= count:
                break
        if first is not None and _batches.num_samples(first) == 0:
            first = None
        if first is not None:  # enough to choose from
            first = _batches.take(first, slice(0, max(count, FIRST_SAMPLES)))
        if self.processes.size > 1:  # all plan on the same samples, even those without data
            on_host = None if first is None else _batches.map_tensors(lambda t: t.cpu(), first)
            parts = [part for part in self.processes.gather(on_host) if part is not None]
            first = parts[0] if parts else None
        if first is None:
            raise SpiritlevelError(
                "The data must hold at least one sample. Got only empty batches. "
                "Check the data set's length."
            )
        return first

    # -- the state ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def preserved(self) -> Iterator[None]:
        """A context that restores buffers and random states when it ends.

        Inside it a model that computes in half precision computes in a wider type.
        """
        with contextlib.ExitStack() as stack:
            alone = self.processes.size == 1  # elsewhere each process would shorten other rows
            look_up_all = self._look_up_all if alone else None
            stack.enter_context(model_state.preserved(self.model, self.device, look_up_all))
            if not self._measuring:
                stack.callback(self._stop_measuring)
                self._measuring = True
                stack.enter_context(self.numbers.measuring(self.trial))
            yield

    def _stop_measuring(self) -> None:
        self._measuring = False

    def _look_up_all(self) -> None:
        """Run the model on all data, for what that does to its embeddings."""
        for where, batch in self.batches():
            self.outputs(batch, where=where)
        self.check_last_batch()
