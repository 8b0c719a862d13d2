"""One step of training, in the way the run's settings ask for, and its learning rate."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...errors import NotFinite, brief
from ...training.norm_control.control import WeightConstraint
from ...training.penalties.penalty import Penalty
from ...training.penalties.registry import build_penalty
from ...training.sam.optimizers import build_perturbed
from ..settings.run import RunSettings
from ..settings.training import TrainingSettings
from .faster_steps import BatchForward, Captured, Fused, Recorded, recordable
from .networks import NetworkRun
from .outcomes import EpochSteps, StepMeans
from .run_data import derived_generator

# How much of a GPU NVIDIA's MPS gives to a process, in percent.
MPS_LIMIT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


class Steps:
    """The optimizer of a run, with its schedule, method and penalty; called with each batch."""

    def __init__(self, run: NetworkRun, *, steps_an_epoch: int, may_record: bool = True) -> None:
        model, settings, training = run.model, run.settings, run.settings.training
        channels_last(model, settings)
        if training.autocast != "none":
            warn_of_limited_gpu(next(model.parameters()).device)
        self._model, self._training = model, training
        self._steps_an_epoch, self._done, self._in_epoch = steps_an_epoch, 0, 0
        self._repeats = settings.interventions.batch_cycles
        apart = training.freeze != "none" or training.lr_backbone is not None
        head = model.get_submodule(run.head) if apart else None  # trained in another way
        of_head = {id(param) for param in head.parameters()} if head is not None else set()
        backbone = [p for p in model.parameters() if id(p) not in of_head] if apart else []
        self._head_alone = head if training.freeze != "none" else None  # the rest is not trained
        self._frozen = backbone if training.freeze != "none" else []
        self._plain = make_optimizer(_groups(model, training, head, backbone), training)
        self._rates = [group["lr"] for group in self._plain.param_groups]
        if training.norm_control:
            WeightConstraint(model).attach(self._plain)
        self._perturbed = build_perturbed(
            training.method,
            self._plain,
            training.rho,
            draws=training.draws,
            generator=derived_generator(settings.seed, "displacements"),
            every=training.every,
            model=model,
        )
        self._penalty = make_penalty(model, settings)
        groups = self._plain.param_groups
        self._trained = [p for group in groups for p in group["params"] if p.requires_grad]
        if training.clip is not None:
            self._plain.register_step_pre_hook(self._clip)
        self._names = {id(p): name for name, p in model.named_parameters()}
        self._means = StepMeans([settings.stop], run.head) if settings.stop.of_steps else None
        forward: BatchForward = model
        if training.compile:
            forward = Fused(model, min(training.batch_size, len(run.data.x)))
        self._gradients: Captured = functools.partial(
            gradients, forward, self._trained, autocast=training.autocast != "none"
        )
        if may_record and recordable(settings.model.name, next(model.parameters()).device):
            self._gradients = Recorded(self._gradients)

    def start_epoch(self) -> None:
        """Set training mode; a frozen backbone does not learn, nor do its statistics move."""
        self._model.train()
        if self._head_alone is not None:
            self._model.eval()
            self._head_alone.train()
        for param in self._frozen:
            param.requires_grad_(False)

    def end_epoch(self) -> EpochSteps:
        """Let all parameters have gradients again, and return what the steps saw."""
        for param in self._frozen:
            param.requires_grad_(True)
        steps, self._in_epoch = self._in_epoch, 0
        return EpochSteps() if self._means is None else self._means.take(1, steps=steps)[0]

    def __call__(self, x: Tensor, y: Tensor) -> None:
        """Take as many steps on one batch as the study says, usually one."""
        for _ in range(self._repeats):
            self._set_rate()
            self._one(x, y)
            self._done += 1
            self._in_epoch += 1

    def schedule_at(self, share: float) -> None:
        """Go on in the schedule as if this share of all epochs were done."""
        epochs = self._training.epochs
        self._done = int(share * epochs * self._repeats * self._steps_an_epoch)

    def state(self) -> dict[str, Any]:
        """After an epoch: all that the next steps depend on besides the weights."""
        return {
            "done": self._done,
            "optimizer": (self._perturbed or self._plain).state_dict(),
            "penalty": None if self._penalty is None else self._penalty.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on after the epoch at which this was the state."""
        self._done = state["done"]
        (self._perturbed or self._plain).load_state_dict(state["optimizer"])
        if self._penalty is not None:
            self._penalty.load_state_dict(state["penalty"])

    def _one(self, x: Tensor, y: Tensor) -> None:
        if self._perturbed is not None:
            for _ in self._perturbed.passes():
                self._perturbed.zero_grad()
                F.cross_entropy(self._model(x), y).backward()
            self._perturbed.step()
            return
        if self._penalty is None:
            seen, *grads = self._gradients(x, y)
            for param, grad in zip(self._trained, grads, strict=True):
                param.grad = grad
            self._saw(seen)
        else:
            self._plain.zero_grad()
            with self._penalty.shared_forward():
                loss = total = F.cross_entropy(self._model(x), y)
            with contextlib.suppress(NotFinite):  # then as without one: the run ends as diverged
                total = loss + self._penalty(x, y, loss=loss)
            total.backward()
            self._saw(loss)
        self._plain.step()

    def _clip(self, *_: object) -> None:
        assert self._training.clip is not None
        nn.utils.clip_grad_norm_(self._trained, self._training.clip)

    def _saw(self, loss: Tensor | None) -> None:
        if self._means is None:
            return
        assert loss is not None
        grads = {
            self._names[id(p)]: None if p.grad is None else p.grad[None] for p in self._trained
        }
        self._means.add(loss[None], grads)

    def _set_rate(self) -> None:
        if not follows(self._training):
            return
        steps = self._repeats * self._steps_an_epoch
        factor = rate_factor(self._training, step=self._done, steps=steps)
        for group, rate in zip(self._plain.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor


def channels_last(model: nn.Module, settings: RunSettings) -> None:
    """Lay out weights as the GPU's convolutions in bfloat16 read them; nothing else changes.

    With another layout every convolution copies its inputs and outputs.
    """
    if settings.training.autocast != "none" and next(model.parameters()).is_cuda:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def warn_of_limited_gpu(device: torch.device) -> None:
    """Some kernels in bfloat16 are wrong on a part of a GPU, and nothing else says so."""
    share = os.environ.get(MPS_LIMIT, "")
    if device.type == "cuda" and share and share.strip() != "100":
        warnings.warn(
            f"The variable {MPS_LIMIT} is {brief(share)}. With a part of a GPU, steps in bfloat16 "
            "ended as nan in some networks (DenseNet-121 and EfficientNet-Lite0 on an H200, torch "
            "2.11, cuDNN 9.19). Remove the variable, or train with autocast: none.",
            stacklevel=3,
        )


def gradients(
    model: BatchForward,
    trained: Sequence[Tensor],
    x: Tensor,
    y: Tensor,
    *,
    autocast: bool = False,
) -> Sequence[Tensor | None]:
    """The mean loss of a batch, and its gradients in the order of the parameters."""
    # No cache: a weight that is rounded while a step is recorded must be rounded in each replay.
    with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast, cache_enabled=False):
        outputs = model(x)
    loss = F.cross_entropy(outputs.float() if autocast else outputs, y)
    return loss.detach(), *torch.autograd.grad(loss, trained, allow_unused=True)


def make_optimizer(groups: Any, training: TrainingSettings) -> torch.optim.Optimizer:
    """One of torch's, with the study's numbers."""
    common: dict[str, Any] = {"lr": training.lr, "weight_decay": training.weight_decay}
    if training.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=training.momentum, **common)
    kinds = {
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
        "rmsprop": torch.optim.RMSprop,
    }
    return kinds[training.optimizer](groups, **common)


def _groups(
    model: nn.Module,
    training: TrainingSettings,
    head: nn.Module | None,
    backbone: Sequence[nn.Parameter],
) -> Any:
    if head is None:
        return model.parameters()
    if training.freeze != "none":
        return head.parameters()
    return [
        {"params": backbone, "lr": training.lr_backbone},
        {"params": list(head.parameters())},
    ]


def make_penalty(model: nn.Module, settings: RunSettings) -> Penalty | None:
    """The penalty that the settings ask for, or None."""
    penalty = settings.training.penalty
    if penalty is None:
        return None
    return build_penalty(
        penalty.name,
        model,
        weight=penalty.weight,
        every=settings.training.every,
        generator=derived_generator(settings.seed, "penalty"),
        **penalty.arguments,
    )


def follows(training: TrainingSettings) -> bool:
    """Whether the learning rate changes during training."""
    return training.schedule != "constant" or training.warmup > 0


def rate_factor(training: TrainingSettings, *, step: int, steps: int) -> float:
    """What the rate is multiplied by at `step` (from 0), with `steps` to an epoch.

    During the warmup it rises in equal parts up to 1, whatever comes after. A cosine falls to 0
    over the rest; "step" multiplies by gamma at each milestone: below 1 a share of all epochs, else
    an epoch that has been completed.

    >>> half = TrainingSettings(epochs=4, schedule="step", milestones=(0.5,), gamma=0.1)
    >>> [rate_factor(half, step=step, steps=2) for step in (0, 3, 4, 7)]
    [1.0, 1.0, 0.1, 0.1]
    """
    epochs, warmup = training.epochs, training.warmup
    if step < warmup * steps:
        return (step + 1) / (warmup * steps)
    done = step / steps  # epochs
    if training.schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * (done - warmup) / (epochs - warmup)))
    if training.schedule == "step":
        places = (m if m >= 1 else m * epochs for m in training.milestones)
        return float(training.gamma ** sum(done >= place for place in places))
    return 1.0
