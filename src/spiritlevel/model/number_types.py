"""The number types of a model: what it is held in, and what it computes in while it is measured."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ..ground.errors import NotApplicable, SpiritlevelError, is_out_of_memory
from . import model_state
from .arithmetic import Arithmetic, calling, check_arithmetic, computing_fast
from .widening import HALF, PrecisionWatch, choose_width, widened

# Gets a sample ready, in the type of now; what it returns runs the model on that.
Trial = Callable[[], Callable[[], object]]


class NumberTypes:
    """Which types the model can be computed in, and which one it is computed in now."""

    def __init__(
        self, model: nn.Module, device: torch.device, arithmetic: Arithmetic, *, has_hooks: bool
    ) -> None:
        """`has_hooks`: on its parameters, which are dropped where values of another type come."""
        check_arithmetic(arithmetic, device)
        # quantized and complex weights, which are frozen, do not tell
        types = (p.dtype for p in model.parameters() if p.is_floating_point())
        own = next(types, torch.get_default_dtype())
        if has_hooks and own in HALF:
            raise SpiritlevelError(
                f"The model is in {str(own).removeprefix('torch.')} and wrapped in "
                "DistributedDataParallel. It is measured in a wider type, and torch would then "
                "drop the hooks that add up its gradients over the processes. Measure a copy "
                "instead: copy.deepcopy(model.module)."
            )
        self._model, self._device, self._has_hooks = model, device, has_hooks
        self.arithmetic: Arithmetic = arithmetic  # that of the blocks within `fast`
        self._is_fast = False
        self.own = own
        self.wide: torch.dtype | None = None  # what the model is held in while it is measured
        self.rounded_to: torch.dtype | None = None  # half precision that could not be avoided
        self.computed_in = own  # in the last measurement
        self._runs_in: dict[torch.dtype, bool] = {}
        self._coarsest: dict[torch.dtype, torch.dtype] = {}  # inside the model, by what it is in

    @property
    def held_in(self) -> torch.dtype:
        """What the model's parameters are held in now."""
        return self.wide or self.own

    def calling(self) -> contextlib.AbstractContextManager[Any]:
        """A context for a call of the model."""
        return calling(self.arithmetic if self._is_fast else "full", self._device)

    @contextlib.contextmanager
    def fast(self) -> Iterator[None]:
        """A context in which the arithmetic is the one that was asked for."""
        before, self._is_fast = self._is_fast, True
        try:
            with computing_fast(self.arithmetic):
                yield
        finally:
            self._is_fast = before

    @contextlib.contextmanager
    def measuring(self, trial: Trial) -> Iterator[None]:
        """A context in which a model that computes in half precision computes in a wider type."""
        try:
            self.wide, self.rounded_to = choose_width(
                self.own, functools.partial(self._half_seen, trial)
            )
            self.computed_in = self.rounded_to or self.held_in
            with widened(self._model, self.wide):
                yield
        finally:
            self.wide = None

    @contextlib.contextmanager
    def computing_in(self, dtype: torch.dtype) -> Iterator[None]:
        """A context in which model and data are in this type."""
        before = self.wide
        with widened(self._model, dtype):
            self.wide = dtype
            try:
                yield
            finally:
                self.wide = before

    @contextlib.contextmanager
    def as_given(self) -> Iterator[None]:
        """A context in which data is received in its own type, for runs in any other."""
        before, self.wide = self.wide, None
        try:
            yield
        finally:
            self.wide = before

    def runs_in(self, dtype: torch.dtype, trial: Trial) -> bool:
        """Whether the model's code accepts this type."""
        if dtype not in self._runs_in:
            try:
                with self.computing_in(dtype), torch.no_grad():
                    trial()()
                self._runs_in[dtype] = True
            except (RuntimeError, NotImplementedError) as error:
                if is_out_of_memory(error):
                    raise
                self._runs_in[dtype] = False
        return self._runs_in[dtype]

    def coarsest(self, trial: Trial) -> torch.dtype:
        """The coarsest type that the model computes in now, wherever its code changes it."""
        if self.held_in not in self._coarsest:
            run = trial()
            with torch.no_grad(), PrecisionWatch() as watch:
                run()
            self._coarsest[self.held_in] = watch.coarsest
        return self._coarsest[self.held_in]

    def _half_seen(self, trial: Trial, dtype: torch.dtype | None) -> torch.dtype | None:
        """The half precision that a sample meets inside the model, held in `dtype`."""
        if dtype is not None and self._has_hooks:
            raise NotApplicable("Hooks on its parameters would be lost.")
        self.wide = dtype
        with model_state.preserved(self._model, self._device), widened(self._model, dtype):
            run = trial()
            with torch.no_grad(), PrecisionWatch() as watch:
                run()
        return watch.half
