"""Networks of one shape trained at once: their weights in one stack, one step for all of them.

Each member has its own weights, order of samples, learning rate, momentum, weight decay, labels
and end of training. The results are those of training one after another up to round-off.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from ..run_results import EpochRow
from ..settings.run import RunSettings
from .epochs import changed_batches
from .faster_steps import BatchForward, Captured, Fused, Recorded, recordable
from .networks import NetworkRun, build_model
from .outcomes import EpochSteps, StepMeans, finite
from .run_data import RunData, derived_generator, first_inputs, load_data, relabelled
from .running import follow
from .stacked_convolutions import patch_numbers, suits, use_products
from .stacked_optimizers import StackedOptimizer
from .steps import follows, rate_factor
from .training_snapshots import Snapshot, SnapshotFile

MEMORY = 1 << 30  # bytes on a CPU; on a GPU half of what is free, shared by the workers
ROWS = {"cpu": 1 << 13, "cuda": 1 << 16}  # outputs of all members that an evaluation has at once,
EVALUATED = 1 << 31  # and bytes of what leads to them
ALONE = {  # keys of `training` that work for a single network only, and why
    "method": "looks at displaced weights of one network",
    "penalty": "is computed for one network",
    "clip": "looks at the gradient of one network",
    "norm_control": "sets the weights of one network after each step",
    "freeze": "trains a part of one network",
    "autocast": "computes the steps of one network",
    "lr_backbone": "trains the parts of one network differently",
}
STARTS = ("init", "init_bias", "init_from", "init_head")  # keys of `model`
COPIES = 6  # of the weights: themselves, gradients, two moments, two in passing


@dataclasses.dataclass(kw_only=True)
class GroupMember(NetworkRun):
    """One of the networks, with its own order of samples."""

    generator: torch.Generator


@dataclasses.dataclass(frozen=True)
class TrainedGroup:
    """A group whose members all have ended, and the seconds that it took."""

    members: Sequence[GroupMember]
    seconds: float


def group_key(settings: RunSettings) -> str:
    """Runs with the same key may train together."""
    shared = ("optimizer", "batch_size", "dtype", "compile", "threads")
    training = {name: getattr(settings.training, name) for name in shared}
    # Labels are each member's own; what changes inputs, steps or the network must be the same.
    of_labels = ("label_noise", "label_noise_kind")
    changes = {k: v for k, v in settings.interventions.to_dict().items() if k not in of_labels}
    # A rule on the head's gradient looks at the head that the measures have.
    head = settings.measure_options.head if settings.stop.head_gradient is not None else None
    # Weights are each member's own, however they start.
    model = {k: v for k, v in settings.model.to_dict().items() if k not in STARTS}
    parts = [model, settings.data.to_dict(), training, changes, head]
    return json.dumps(parts, sort_keys=True)


def refusal_of(settings: RunSettings) -> str:
    """Why these runs have to be trained one by one, whatever the network; "" if not."""
    if settings.task is not None:
        return f"the task {settings.task.name!r} is no training"
    for name in changed_batches(settings.interventions):
        return f"{name} changes each batch by itself"
    for name, what in ALONE.items():
        if name in settings.training.to_dict():
            return f"training.{name} {what}"
    return ""


def refusal(settings: RunSettings, model: nn.Module) -> str:
    """Why runs with this network have to be trained one by one; "" if not."""
    if reason := refusal_of(settings):
        return reason
    for path, module in model.named_modules():
        kind = type(module).__name__
        if getattr(module, "running_mean", None) is not None:
            return f"{path} ({kind}) keeps running statistics"
        if "Dropout" in kind or getattr(module, "dropout", None):
            return f"{path} ({kind}) draws random numbers"
    if any(not p.requires_grad for p in model.parameters()):
        return "some of its parameters are frozen"
    return ""


def members_that_fit(
    settings: RunSettings,
    model: nn.Module,
    device: torch.device,
    *,
    sharing: int = 1,
    memory: int | None = None,
) -> int:
    """How many members the memory holds at once, at least one; `sharing` processes use the GPU."""
    if memory is None:
        memory = MEMORY
        if device.type == "cuda":
            memory = torch.cuda.mem_get_info(device)[0] // (2 * sharing)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    on_gpu = device.type == "cuda"
    of_one = _bytes_a_sample(model, first_inputs(settings), patches=on_gpu)
    activations = of_one * settings.training.batch_size
    return max(1, memory // (COPIES * weights + 3 * activations))


def train_together(
    settings: Sequence[RunSettings],
    device: str | torch.device,
    *,
    on_epoch: Callable[[int, int], None] | None = None,
    snapshots: SnapshotFile | None = None,
) -> TrainedGroup:
    """Train all of them; each member's model holds its final weights.

    `on_epoch` hears of epochs done and epochs at most. With `snapshots` training goes on from the
    last one, and saves others on the way and one at the end.
    """
    start = time.perf_counter()
    shared = load_data(settings[0], device)  # once: a copy a member would fill a GPU
    members = [_member(each, shared, device) for each in settings]
    active, epoch, before = list(members), 0, 0.0
    last = None if snapshots is None else snapshots.load()
    if last is not None:
        _restore(last, members)
        epoch, before = last.epoch, last.seconds
        active = [members[i] for i in last.state["active"]]
        if not active:
            return TrainedGroup(members, before)
    stack = _Stack(members, shared.x)
    if last is not None:
        stack.restore(last.state)
    most = max(each.training.epochs for each in settings)
    while active:
        epoch += 1
        steps = _train_epoch(stack, active, epoch)
        intact = finite(stack.optimizer.params.values()).tolist()
        due = [
            i for i, member in enumerate(active) if member.is_due(epoch, steps[i]) or not intact[i]
        ]
        rows = _evaluated(stack, shared, epoch, len(active)) if due else []
        going = []
        for i, member in enumerate(active):
            if i in due:
                if member.settings.measured_at(epoch):
                    stack.write_back(i, member.model)
                follow(member, rows[i], steps[i])
            if member.history.outcome:
                stack.write_back(i, member.model)
            else:
                going.append(i)
        if len(going) < len(active):
            active = [active[i] for i in going]
            stack.keep(torch.tensor(going, dtype=torch.int64))
        if on_epoch is not None:
            on_epoch(epoch, most)
        seconds = before + time.perf_counter() - start
        if snapshots is not None and (snapshots.due or not active):
            snapshots.save(_snapshot(epoch, members, stack, seconds))
    return TrainedGroup(members, seconds)


def _snapshot(
    epoch: int, members: Sequence[GroupMember], stack: _Stack, seconds: float
) -> Snapshot:
    ended = {i: m.model.state_dict() for i, m in enumerate(members) if m.history.outcome}
    state = {
        "active": [i for i in range(len(members)) if i not in ended],  # places in the group
        "optimizer": stack.optimizer.state(),
        "orders": [member.generator.get_state() for member in members],
        "ended": ended,
    }
    return Snapshot(epoch, [member.history for member in members], seconds, state)


def _restore(snapshot: Snapshot, members: Sequence[GroupMember]) -> None:
    """Bring new members to where the snapshot was taken."""
    for i, member in enumerate(members):
        member.generator.set_state(snapshot.state["orders"][i])
        member.history = snapshot.histories[i]
        member.ending.replay(member.history, member.settings)
        if i in snapshot.state["ended"]:
            member.model.load_state_dict(snapshot.state["ended"][i])


def _train_epoch(stack: _Stack, active: Sequence[GroupMember], epoch: int) -> list[EpochSteps]:
    first = active[0].settings
    size, repeats = first.training.batch_size, first.interventions.batch_cycles
    samples = stack.labels.shape[1]
    orders = torch.stack([torch.randperm(samples, generator=m.generator) for m in active])
    batches = orders.to(stack.labels.device).split(size, 1)
    steps = repeats * len(batches)
    changing = any(follows(member.settings.training) for member in active)
    for i, batch in enumerate(batches):
        for again in range(repeats):
            if changing:
                step = (epoch - 1) * steps + i * repeats + again
                stack.optimizer.set_rates(
                    [rate_factor(m.settings.training, step=step, steps=steps) for m in active]
                )
            stack.step(batch)
    if stack.means is None:
        return [EpochSteps()] * len(active)
    return stack.means.take(len(active), steps=steps)


def _evaluated(stack: _Stack, data: RunData, epoch: int, count: int) -> list[EpochRow]:
    train = stack.evaluate(data.x, stack.labels)
    test = stack.evaluate(data.test_x, data.test_y.expand(count, -1))
    validation: Sequence[tuple[float | None, float | None]] = [(None, None)] * count
    if data.validation is not None:
        x, y = data.validation
        validation = stack.evaluate(x, y.expand(count, -1))
    return [EpochRow(epoch, *train[i], *test[i], *validation[i]) for i in range(count)]


def _member(settings: RunSettings, shared: RunData, device: str | torch.device) -> GroupMember:
    model = build_model(settings, device)
    data, start = relabelled(shared, settings), copy.deepcopy(model.state_dict())
    generator = derived_generator(settings.seed, "shuffling")
    return GroupMember(settings, data, model, start, generator=generator)


class _Stack:
    """The weights of all active members, and what is done with them.

    Args:
        members: the networks.
        x: the inputs that all of them are trained on.
    """

    def __init__(self, members: Sequence[GroupMember], x: Tensor) -> None:
        params, self.buffers = stack_module_state([m.model for m in members])
        params = {name: value.detach() for name, value in params.items()}
        self.labels = torch.stack([m.data.y for m in members])
        self.optimizer = StackedOptimizer(params, [m.settings.training for m in members])
        stops = [m.settings.stop for m in members]
        self.means = None  # what adds up the steps of an epoch, where an end depends on them
        if any(stop.of_steps for stop in stops):
            self.means = StepMeans(stops, members[0].head)
        self._x = x
        base = copy.deepcopy(members[0].model).to("meta")
        trained = evaluated = base
        if x.is_cuda:
            trained = use_products(copy.deepcopy(base))
            evaluated = use_products(copy.deepcopy(base), first=False)
        self._all_the_same: BatchForward = vmap(_forward(evaluated), in_dims=(0, 0, None))
        self._each_its_own: BatchForward = vmap(_forward(trained))
        training = members[0].settings.training
        if training.compile:
            whole = min(training.batch_size, len(x))
            self._each_its_own = Fused(self._each_its_own, whole, dim=1)
        self._bytes = _bytes_a_sample(members[0].model, x, patches=x.is_cuda)
        self.step: Captured = self._step
        if recordable(members[0].settings.model.name, x.device):
            self.step = Recorded(self._step)

    def _step(self, batch: Tensor) -> Sequence[Tensor | None]:
        """One step of every member, each on its own samples, whose numbers are in its row.

        The members' losses are added up and differentiated outside of vmap, which is faster than
        vmap(grad) and the same: the loss of one member does not depend on the weights of another.
        """
        params = {n: p.detach().requires_grad_() for n, p in self.optimizer.params.items()}
        outputs = self._each_its_own(params, self.buffers, self._x[batch])
        losses = _losses(outputs, self.labels.gather(1, batch))
        loss = losses.sum() / batch.shape[1]
        found = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        grads = dict(zip(params, found, strict=True))
        if self.means is not None:
            self.means.add(losses.detach().mean(dim=1), grads)
        self.optimizer.step(grads)
        return ()

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor) -> list[tuple[float, float]]:
        """Mean loss and accuracy of every member on the same inputs."""
        loss = torch.zeros(len(y), dtype=torch.float64, device=x.device)
        correct = torch.zeros(len(y), dtype=torch.int64, device=x.device)
        rows = min(ROWS["cuda" if x.is_cuda else "cpu"], EVALUATED // self._bytes)
        size, params = max(1, rows // len(y)), self.optimizer.params
        for part, targets in zip(x.split(size), y.split(size, 1), strict=True):
            outputs = self._all_the_same(params, self.buffers, part)
            loss += _losses(outputs, targets).double().sum(dim=1)
            correct += (outputs.argmax(dim=2) == targets).sum(dim=1)
        pairs = zip((loss / len(x)).tolist(), correct.tolist(), strict=True)
        return [(value, count / len(x)) for value, count in pairs]

    def keep(self, members: Tensor) -> None:
        """Go on with these members only."""
        self.optimizer.keep(members)
        if self.means is not None:
            self.means.forget()
        if isinstance(self.step, Recorded):
            self.step.forget()
        self.labels = self.labels[members.to(self.labels.device)]
        self.buffers.update({n: b[members.to(b.device)] for n, b in self.buffers.items()})

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where the snapshot of a whole group was taken."""
        self.keep(torch.tensor(state["active"], dtype=torch.int64))
        self.optimizer.restore(state["optimizer"])

    @torch.no_grad()
    def write_back(self, index: int, model: nn.Module) -> None:
        """Copy the weights of one member into its own network."""
        params = self.optimizer.params
        for name, param in model.named_parameters():
            param.copy_(params[name][index])


def _forward(base: nn.Module) -> BatchForward:
    """The outputs of a network with these weights instead of its own."""
    return lambda params, buffers, x: functional_call(base, (params, buffers), (x,))


def _losses(outputs: Tensor, y: Tensor) -> Tensor:
    """One per member and sample; with classes in the middle torch's softmax is much faster.

    outputs: (members, samples, classes), y: (members, samples)
    """
    return F.cross_entropy(outputs.transpose(1, 2), y, reduction="none")


@torch.no_grad()
def _bytes_a_sample(model: nn.Module, x: Tensor, *, patches: bool) -> int:
    """What the forward pass of one sample keeps: its input and the output of every layer.

    With `patches` also those that convolutions are computed from.
    """
    total = x[0].numel() * x.element_size()

    def count(module: nn.Module, _: object, output: object) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            numbers = patch_numbers(module, output) if patches and suits(module) else 0
            total += (output.numel() + numbers) * output.element_size()

    handles = [m.register_forward_hook(count) for m in model.modules() if not any(m.children())]
    try:
        model(x[:1].to(next(model.parameters()).device))
    finally:
        for handle in handles:
            handle.remove()
    return total
