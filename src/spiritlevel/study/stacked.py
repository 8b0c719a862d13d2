"""Networks of one shape trained at once: their weights in one stack, one step for all of them.

Each member has its own weights, order of samples, learning rate, momentum, weight decay, labels
and end of training. The results are those of training one after another up to round-off.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from .hooks import ON_BATCHES
from .measuring import build_model
from .results import EpochRow
from .run_data import RunData, derived_generator, load_data
from .running import ended
from .settings import RunSettings
from .stacked_optimizers import StackedOptimizer, Tensors

MEMORY = 1 << 30  # bytes on a CPU; on a GPU half of what is free
ROWS = 1 << 13  # outputs of all members together that an evaluation has at a time
COPIES = 6  # of the weights: themselves, gradients, two moments, two in passing


@dataclasses.dataclass
class Member:
    """One network: its end, once it has come."""

    settings: RunSettings
    data: RunData
    model: nn.Module
    initial: dict[str, Tensor]
    generator: torch.Generator
    rows: list[EpochRow] = dataclasses.field(default_factory=list)
    outcome: str = ""


def group_key(settings: RunSettings) -> str:
    """Runs with the same key may train together."""
    shared = ("optimizer", "batch_size", "dtype", "threads")
    training = {name: settings.training[name] for name in shared}
    return json.dumps([dict(settings.model), dict(settings.data), training], sort_keys=True)


def refusal(settings: RunSettings, model: nn.Module) -> str:
    """Why runs of this kind have to train one after another; "" if they need not."""
    for name in ON_BATCHES:
        if settings.interventions.get(name):
            return f"{name} changes each batch by itself"
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
    settings: RunSettings, model: nn.Module, device: torch.device, memory: int | None = None
) -> int:
    """How many members the memory holds at once, at least one."""
    if memory is None:
        memory = MEMORY
        if device.type == "cuda":
            memory = torch.cuda.mem_get_info(device)[0] // 2
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    data = load_data(settings)
    activations = _bytes_a_sample(model, data.x) * settings.training["batch_size"]
    return max(1, memory // (COPIES * weights + 3 * activations))


def train_together(settings: Sequence[RunSettings], device: str | torch.device) -> list[Member]:
    """Train all of them; each member's model holds its final weights."""
    members = [_member(each, device) for each in settings]
    shared = members[0].data
    stack = _Stack(members)
    active = list(members)
    epoch = 0
    while active:
        epoch += 1
        orders = [torch.randperm(len(shared.x), generator=m.generator) for m in active]
        for batch in torch.stack(orders).to(device).split(settings[0].training["batch_size"], 1):
            stack.step(shared.x[batch], stack.labels.gather(1, batch))
        train = stack.evaluate(shared.x, stack.labels)
        test = stack.evaluate(shared.test_x, shared.test_y.expand(len(active), -1))
        going = []
        for i, member in enumerate(active):
            member.rows.append(EpochRow(epoch, *train[i], *test[i]))
            member.outcome = ended(member.rows[-1], member.settings)
            if member.outcome:
                stack.write_back(i, member.model)
            else:
                going.append(i)
        if len(going) < len(active):
            active = [active[i] for i in going]
            stack.keep(torch.tensor(going, dtype=torch.int64))
    return members


def _member(settings: RunSettings, device: str | torch.device) -> Member:
    model = build_model(settings, device)
    return Member(
        settings,
        load_data(settings, device),
        model,
        copy.deepcopy(model.state_dict()),
        derived_generator(settings.seed, "shuffling"),
    )


class _Stack:
    """The weights of all active members, and what is done with them."""

    def __init__(self, members: Sequence[Member]) -> None:
        params, self.buffers = stack_module_state([m.model for m in members])
        params = {name: value.detach().clone() for name, value in params.items()}
        self.labels = torch.stack([m.data.y for m in members])
        self.optimizer = StackedOptimizer(params, [m.settings.training for m in members])
        base = copy.deepcopy(members[0].model).to("meta")

        def forward(params: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
            return functional_call(base, (params, buffers), (x,))

        self._each_its_own: Callable[..., Tensor] = vmap(forward)
        self._all_the_same: Callable[..., Tensor] = vmap(forward, in_dims=(0, 0, None))

    def step(self, x: Tensor, y: Tensor) -> None:
        """One batch a member.

        The members' losses are added up and differentiated outside of vmap, which is faster than
        vmap(grad) and the same: the loss of one member does not depend on the weights of another.
        """
        params = {n: p.requires_grad_() for n, p in self.optimizer.params.items()}
        outputs = self._each_its_own(params, self.buffers, x)
        loss = _losses(outputs, y).sum() / y.shape[1]
        grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        with torch.no_grad():
            self.optimizer.step(dict(zip(params, grads, strict=True)))

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor) -> list[tuple[float, float]]:
        """Mean loss and accuracy of every member on the same inputs."""
        loss = torch.zeros(len(y), dtype=torch.float64, device=x.device)
        correct = torch.zeros(len(y), dtype=torch.int64, device=x.device)
        size = max(1, ROWS // len(y))
        for part, targets in zip(x.split(size), y.split(size, 1), strict=True):
            outputs = self._all_the_same(self.optimizer.params, self.buffers, part)
            loss += _losses(outputs, targets).double().sum(dim=1)
            correct += (outputs.argmax(dim=2) == targets).sum(dim=1)
        pairs = zip((loss / len(x)).tolist(), correct.tolist(), strict=True)
        return [(value, count / len(x)) for value, count in pairs]

    def keep(self, members: Tensor) -> None:
        """Go on with these alone."""
        self.optimizer.keep(members)
        self.labels = self.labels[members.to(self.labels.device)]
        self.buffers = {n: b[members.to(b.device)] for n, b in self.buffers.items()}

    @torch.no_grad()
    def write_back(self, index: int, model: nn.Module) -> None:
        """The weights of one member, into its own network."""
        for name, param in model.named_parameters():
            param.copy_(self.optimizer.params[name][index])


def _losses(outputs: Tensor, y: Tensor) -> Tensor:
    """One a member and sample; with classes in the middle torch's softmax is several times faster.

    outputs: (members, samples, classes), y: (members, samples)
    """
    return F.cross_entropy(outputs.transpose(1, 2), y, reduction="none")


@torch.no_grad()
def _bytes_a_sample(model: nn.Module, x: Tensor) -> int:
    """What the forward pass of one sample keeps: its input and the output of every layer."""
    total = x[0].numel() * x.element_size()

    def count(_: nn.Module, __: object, output: object) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel() * output.element_size()

    handles = [m.register_forward_hook(count) for m in model.modules() if not any(m.children())]
    try:
        model(x[:1].to(next(model.parameters()).device))
    finally:
        for handle in handles:
            handle.remove()
    return total
