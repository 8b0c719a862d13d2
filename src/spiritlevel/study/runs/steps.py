"""One step of training, in the way the run's settings ask for."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...training.norm_control.control import WeightConstraint
from ...training.penalties.flatness_penalty import FlatnessPenalty
from ...training.sam.optimizers import ASAM, SAM, NoiseSAM
from ...training.sam.perturbed_optimizer import AbstractPerturbedOptimizer
from ..settings.run import RunSettings
from .cuda_graphs import Captured, Recorded, recordable
from .run_data import derived_generator
from .schedules import follows, rate_factor
from .transfer import head_path, parts


class Steps:
    """The optimizer of a run, with its schedule, method and penalty; called with each batch."""

    def __init__(self, model: nn.Module, settings: RunSettings, *, steps_an_epoch: int) -> None:
        training = settings.training
        self._model, self._training = model, training
        self._head: str | None = settings.measure_options.get("head")
        self._steps_an_epoch, self._done = steps_an_epoch, 0
        self._repeats = int(settings.interventions.get("batch_cycles", 1))
        self._plain = make_optimizer(_groups(model, training, self._head), training)
        self._rates = [group["lr"] for group in self._plain.param_groups]
        if training.get("norm_control"):
            WeightConstraint(model).attach(self._plain)
        self._perturbed = _perturbed(self._plain, model, settings)
        self._penalty = _penalty(model, settings)
        groups = self._plain.param_groups
        self._trained = [p for group in groups for p in group["params"] if p.requires_grad]
        self._found: Captured = functools.partial(gradients, model, self._trained)
        if recordable(settings.model["name"], next(model.parameters()).device):
            self._found = Recorded(self._found)

    def start_epoch(self) -> None:
        """Into training mode; a frozen backbone does not learn, nor do its statistics move."""
        self._model.train()
        if "freeze" in self._training:
            self._model.eval()
            self._model.get_submodule(head_path(self._model, self._head)).train()
            for param in parts(self._model, self._head)[0]:
                param.requires_grad_(False)

    def end_epoch(self) -> None:
        """Every parameter counts again: what is measured does not depend on who was trained."""
        if "freeze" in self._training:
            for param in parts(self._model, self._head)[0]:
                param.requires_grad_(True)

    def __call__(self, x: Tensor, y: Tensor) -> None:
        """As many steps on one batch as the study says, usually one."""
        for _ in range(self._repeats):
            self._set_rate()
            self._one(x, y)
            self._done += 1

    def _one(self, x: Tensor, y: Tensor) -> None:
        if self._perturbed is not None:
            for _ in self._perturbed.passes():
                self._perturbed.zero_grad()
                F.cross_entropy(self._model(x), y).backward()
            self._perturbed.step()
            return
        if self._penalty is None:
            for param, grad in zip(self._trained, self._found(x, y), strict=True):
                param.grad = grad
        else:
            self._plain.zero_grad()
            with self._penalty.shared_forward():
                loss = F.cross_entropy(self._model(x), y)
            (loss + self._penalty(x, y, loss=loss)).backward()
        self._plain.step()

    def _set_rate(self) -> None:
        if not follows(self._training):
            return
        steps = self._repeats * self._steps_an_epoch
        factor = rate_factor(self._training, step=self._done, steps=steps)
        for group, rate in zip(self._plain.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor


def gradients(
    model: nn.Module, trained: Sequence[Tensor], x: Tensor, y: Tensor
) -> Sequence[Tensor | None]:
    """Of the mean loss of a batch, in the order of the parameters."""
    loss = F.cross_entropy(model(x), y)
    return torch.autograd.grad(loss, trained, allow_unused=True)


def make_optimizer(groups: Any, training: Mapping[str, Any]) -> torch.optim.Optimizer:
    """As torch has it."""
    common = {"lr": training["lr"], "weight_decay": training["weight_decay"]}
    if training["optimizer"] == "sgd":
        return torch.optim.SGD(groups, momentum=training["momentum"], **common)
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return kinds[training["optimizer"]](groups, **common)


def _groups(model: nn.Module, training: Mapping[str, Any], head: str | None) -> Any:
    if "freeze" in training:
        return parts(model, head)[1]
    if "lr_backbone" in training:
        backbone, own = parts(model, head)
        return [{"params": backbone, "lr": training["lr_backbone"]}, {"params": own}]
    return model.parameters()


def _perturbed(
    optimizer: torch.optim.Optimizer, model: nn.Module, settings: RunSettings
) -> AbstractPerturbedOptimizer | None:
    training = settings.training
    method = training.get("method")
    if method is None:
        return None
    every = training.get("every", 1)
    if method == "sam":
        return SAM(optimizer, training["rho"], every=every, model=model)
    if method == "asam":
        return ASAM(optimizer, training["rho"], adaptive_bias=False, every=every, model=model)
    return NoiseSAM(
        optimizer,
        training["rho"],
        draws=training["draws"],
        generator=derived_generator(settings.seed, "displacements"),
        every=every,
        model=model,
    )


def _penalty(model: nn.Module, settings: RunSettings) -> FlatnessPenalty | None:
    training = settings.training
    if "penalty" not in training:
        return None
    return FlatnessPenalty(
        model,
        training["penalty"],
        every=training.get("every", 1),
        generator=derived_generator(settings.seed, "penalty"),
    )
