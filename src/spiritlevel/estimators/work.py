"""The shared work behind the measures: each piece is done once, however many measures use it."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .._core import Cost
from ..surface import Surface
from .certificate import Certificate, certify_parameters
from .exact import Needs, Pass, run_pass
from .heads import Head, choose_head
from .plan import Plan, make_plan

CPU_MEMORY = 640 << 20  # beyond this, chunks outgrow the caches and get slower


class Work:
    """A surface, the plan for it, and what has been computed on it so far."""

    def __init__(
        self,
        surface: Surface,
        *,
        head: str | None = None,
        memory: int | None = None,
        seed: int = 0,
    ) -> None:
        """`memory` bounds in bytes what a chunk of samples may take."""
        self.surface = surface
        self.seed = seed
        self.head_name = head
        self._memory = memory
        self._pass: Pass | None = None
        self._wanted = Needs()

    def want(self, needs: Needs) -> None:
        """Announce what will be asked for, so that the first pass brings all of it."""
        self._wanted = needs

    @functools.cached_property
    def plan(self) -> Plan:
        """How this surface is measured."""
        with self.surface.full_precision():
            return make_plan(self.surface, kappa=self._wanted.kappa)

    @functools.cached_property
    def head(self) -> Head:
        """The last linear map."""
        return choose_head(self.plan.heads, self.head_name)

    @functools.cached_property
    def certificates(self) -> dict[str, Certificate]:
        """Per parameter, whether the outputs are linear in it."""
        batches = self.run(Needs()).sampled
        with self.surface.full_precision():
            return certify_parameters(self.surface, self.plan, batches, self.seed)

    @functools.cached_property
    def memory(self) -> int:
        """Bytes that a chunk of samples may take."""
        if self._memory is not None:
            return self._memory
        if self.surface.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.surface.device)
            return int(free // 2)
        return CPU_MEMORY

    def run(self, needs: Needs) -> Pass:
        """The pass over the data, with at least these needs."""
        if self._pass is None or not self._pass.needs.covers(needs):
            self._wanted = self._wanted | needs
            wanted = self._wanted
            self._pass = run_pass(
                self.surface,
                self.plan,
                wanted,
                head=self.head if wanted.head else None,
                chunk=self.plan.footprint.chunk(self.memory, sweep=wanted.sweep),
                seed=self.seed,
            )
        return self._pass

    def settings(self) -> dict[str, Any]:
        """What a reader needs to repeat the numbers."""
        surface = self.surface
        return {
            "loss": surface.loss.name,
            "reduction": "mean",
            "layers": list(surface.layers()),
            "num_samples": self._pass.num_samples if self._pass is not None else 0,
            "num_outputs": self.plan.num_outputs,
            "seed": self.seed,
            "dtype": str(surface.dtype).removeprefix("torch."),
            "device": surface.device.type,
            "tf32": surface.device.type == "cuda" and torch.backends.cudnn.allow_tf32,
            "torch": torch.__version__,
        }

    @property
    def cost(self) -> Cost:
        """All work counted so far, the plan and the certificate included."""
        return self.surface.cost
