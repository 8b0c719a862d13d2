"""The number types of a surface: what its model is held in, and what it computes in."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..ground.errors import NotApplicable, SpiritlevelError, is_out_of_memory
from ..records.measurements import Cost
from . import model_state
from .arithmetic import (
    Arithmetic,
    calling,
    check_arithmetic,
    computing_fast,
)
from .widening import HALF, PrecisionWatch, widened


class NumberTypes(abc.ABC):
    """What a surface knows of the types that its model can be computed in."""

    model: nn.Module
    device: torch.device
    cost: Cost
    _has_hooks: bool  # on its parameters, which are dropped where values of another type come

    def _set_types(self, own: torch.dtype, arithmetic: Arithmetic) -> None:
        check_arithmetic(arithmetic, self.device)
        if self._has_hooks and own in HALF:
            raise SpiritlevelError(
                f"The model is in {str(own).removeprefix('torch.')} and wrapped in "
                "DistributedDataParallel. It is measured in a wider type, and torch would then "
                "drop the hooks that add up its gradients over the processes. Measure a copy "
                "instead: copy.deepcopy(model.module)."
            )
        self.arithmetic: Arithmetic = arithmetic
        self._is_fast = False
        self.own_dtype = own
        self._wide: torch.dtype | None = None  # what the model computes in while it is measured
        self.rounded_to: torch.dtype | None = None  # half precision that could not be avoided
        self.computed_in = own  # in the last measurement
        self._runs_in: dict[torch.dtype, bool] = {}
        self._coarsest: dict[torch.dtype, torch.dtype] = {}  # inside the model, by what it is in

    @abc.abstractmethod
    def first_samples(self, count: int) -> Any:
        """`count` of the first samples."""

    @abc.abstractmethod
    def _run(self, batch: Any, parameters: dict[str, Tensor]) -> Any:
        """Outputs of the model."""

    @property
    def dtype(self) -> torch.dtype:
        """What the model's parameters are held in while it is measured."""
        return self._wide or self.own_dtype

    def _calling(self) -> contextlib.AbstractContextManager[Any]:
        """A context for a call of the model."""
        return calling(self.arithmetic if self._is_fast else "full", self.device)

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
    def computing_in(self, dtype: torch.dtype) -> Iterator[None]:
        """A context in which model and data are in this type."""
        before = self._wide
        with widened(self.model, dtype):
            self._wide = dtype
            try:
                yield
            finally:
                self._wide = before

    def runs_in(self, dtype: torch.dtype) -> bool:
        """Whether the model's code accepts this type."""
        if dtype not in self._runs_in:
            try:
                with self.computing_in(dtype), torch.no_grad():
                    self._run(self.first_samples(1), {})
                self._runs_in[dtype] = True
            except (RuntimeError, NotImplementedError) as error:
                if is_out_of_memory(error):
                    raise
                self._runs_in[dtype] = False
            self.cost += Cost(forwards=1)
        return self._runs_in[dtype]

    def coarsest_type(self) -> torch.dtype:
        """The coarsest type that the model computes in now, wherever its code changes it."""
        if self.dtype not in self._coarsest:
            sample = self.first_samples(1)
            self.cost += Cost(forwards=1)
            with torch.no_grad(), PrecisionWatch() as watch:
                self._run(sample, {})
            self._coarsest[self.dtype] = watch.coarsest
        return self._coarsest[self.dtype]

    def _half_seen(self, dtype: torch.dtype | None) -> torch.dtype | None:
        """The half precision that a sample meets inside the model, held in `dtype`."""
        if dtype is not None and self._has_hooks:
            raise NotApplicable("Hooks on its parameters would be lost.")
        self._wide = dtype
        with model_state.preserved(self.model, self.device), widened(self.model, dtype):
            sample = self.first_samples(1)
            self.cost += Cost(forwards=1)
            with torch.no_grad(), PrecisionWatch() as watch:
                self._run(sample, {})
        return watch.half
