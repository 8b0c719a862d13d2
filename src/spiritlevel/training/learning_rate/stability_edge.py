"""Where the steps of torch's optimizers become unstable.

Near a minimum the loss is quadratic, and a step multiplies the weights by a matrix. With the
preconditioner P of the moment and the Hessian H, stability is lost when an eigenvalue of that
matrix reaches −1, and that is when the largest eigenvalue of P^-½ (H + W) P^-½ reaches

    SGD, RMSprop, Adagrad   2 (1 + β) / (η (1 − dampening))     β: momentum
    SGD with Nesterov       2 (1 + β) / (η (1 + 2β))
    Adam, AdamW             2 (1 + β₁) / (η (1 − β₁))           P holds the bias corrections
    NAdam                   2 / (η (a + b (1 − β₁) / (1 + β₁))) a, b: weights of gradient and mean

W is the weight decay that is added to the gradient. Weight decay that shrinks the weights instead
(AdamW) puts 2 − η·decay in place of the 2. The eigenvalue −1 comes first also for groups that
differ in all of this: on the rest of the unit circle the steps of all groups turn the same way, so
no real H balances them. The groups' thresholds then go into the preconditioner: one group's is
kept, and the rows of the others are scaled by the square root of the ratio.

Cohen et al., "Gradient descent on neural networks typically occurs at the edge of stability", ICLR
2021, and "Adaptive gradient methods at the edge of stability", 2022.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...errors import SpiritlevelError

Group = Mapping[str, Any]
State = Mapping[str, Any]
WRAPPERS = ("AcceleratedOptimizer", "LightningOptimizer")  # each has the user's as `optimizer`


@dataclasses.dataclass(frozen=True)
class Edge:
    """An optimizer's steps are stable while λ_max of S(H + W)S is below `threshold`."""

    rate: float  # the learning rate of the group whose threshold it is
    threshold: float  # infinite if all rates are 0
    scale: dict[str, Tensor]  # S by parameter; one that does not move has no entry
    decay: dict[str, float]  # W by parameter
    settled: bool  # whether its running means are long enough for the threshold to hold


@dataclasses.dataclass(frozen=True)
class _Step:
    """How a step treats one parameter: stable while λ_max of P^-½ (H + W) P^-½ < threshold."""

    threshold: float
    preconditioner: Tensor | None = None  # P; None for the identity
    moves: bool = True
    settled: bool = True


def plain_optimizer(optimizer: Any) -> Optimizer:
    """The optimizer inside of the wrappers of accelerate and Lightning."""
    while type(optimizer).__name__ in WRAPPERS:
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, Optimizer):
        raise SpiritlevelError(
            "The 'optimizer' argument must be the torch.optim.Optimizer that trains the model. "
            f"Got {type(optimizer).__name__}."
        )
    return optimizer


def check_known(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose edge of stability is not known."""
    name = type(optimizer).__name__
    if _rule(optimizer) is None:
        raise SpiritlevelError(
            "The 'optimizer' argument must be one whose edge of stability is known: "
            f"{', '.join(kind.__name__ for kind in RULES)}. Got {name}. Pass rates='critical': the "
            "critical sharpness along the last update can be measured for every optimizer."
        )
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise SpiritlevelError(
            f"The 'optimizer' argument must minimize the loss. Got {name} with maximize=True, "
            "whose steps have no edge of stability. Leave 'optimizer' out."
        )


def stability_edge(optimizer: Optimizer, parameters: Mapping[str, Tensor]) -> Edge:
    """The edge of an optimizer with the state it is in, for the parameters that it trains.

    >>> weight = torch.zeros(2, requires_grad=True)
    >>> edge = stability_edge(torch.optim.SGD([weight], lr=0.1, momentum=0.9), {"w": weight})
    >>> edge.rate, round(edge.threshold, 6), edge.scale["w"].tolist()
    (0.1, 38.0, [1.0, 1.0])
    """
    check_known(optimizer)
    rule = _rule(optimizer)
    assert rule is not None
    names = {id(parameter): name for name, parameter in parameters.items()}
    steps: dict[str, tuple[_Step, Group]] = {}
    for given in optimizer.param_groups:
        group = {**given, "decoupled_weight_decay": _decoupled(optimizer, given)}
        for parameter in given["params"]:
            if id(parameter) in names and parameter.requires_grad:
                step = rule(group, optimizer.state.get(parameter, {}))
                if step.moves:
                    steps[names[id(parameter)]] = step, group
    if not steps:
        raise SpiritlevelError(
            f"The state of {type(optimizer).__name__} is still empty, so its preconditioner is not "
            "known. Measure after the first optimizer.step()."
        )
    first, its_group = min(steps.values(), key=lambda each: each[0].threshold)
    if first.threshold <= 0:
        raise SpiritlevelError(
            "The learning rate times the weight decay must be below 2, or the weights grow "
            f"whatever the loss is. Got {float(its_group['lr']):g} times "
            f"{float(its_group['weight_decay']):g}. Lower one of them."
        )
    scale, decay = {}, {}
    for name, (step, own) in steps.items():
        # 1 for all of them where no rate is above 0, as at the start of a warm-up
        share = 1.0 if math.isinf(first.threshold) else first.threshold / step.threshold
        wide = torch.promote_types(parameters[name].dtype, torch.float32)
        ones = torch.ones_like(parameters[name], dtype=wide, requires_grad=False)
        P = ones if step.preconditioner is None else step.preconditioner.detach().to(wide)
        scale[name] = (share / P).sqrt()
        decay[name] = 0.0 if own["decoupled_weight_decay"] else float(own["weight_decay"])
    settled = all(step.settled for step, _ in steps.values())
    return Edge(float(its_group["lr"]), first.threshold, scale, decay, settled)


def _sgd(group: Group, state: State) -> _Step:
    momentum = float(group["momentum"])
    gain = 1.0 if not momentum else 1 - float(group["dampening"])
    if group["nesterov"]:
        gain = 1 + 2 * momentum
    return _Step(_over(2 * (1 + momentum), float(group["lr"]) * gain))


def _adam(group: Group, state: State) -> _Step:
    if not state:
        return _Step(math.inf, moves=False)
    step, (b1, b2), rate = float(state["step"]), map(float, group["betas"]), float(group["lr"])
    squares = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    root = (squares / (1 - b2**step)).sqrt() + float(group["eps"])
    threshold = _over((1 + b1) * (2 - rate * _shrinks(group)), rate * (1 - b1))
    return _Step(threshold, (1 - b1**step) * root, settled=_is_settled(step, b1))


def _nadam(group: Group, state: State) -> _Step:
    if not state:
        return _Step(math.inf, moves=False)
    step, (b1, b2), rate = float(state["step"]), map(float, group["betas"]), float(group["lr"])
    now, following = (
        b1 * (1 - 0.5 * 0.96 ** (k * float(group["momentum_decay"]))) for k in (step, step + 1)
    )
    product = float(state["mu_product"])
    of_gradient = (1 - now) / (1 - product)
    of_mean = following / (1 - product * following)
    gain = of_gradient + of_mean * (1 - b1) / (1 + b1)
    root = (state["exp_avg_sq"] / (1 - b2**step)).sqrt() + float(group["eps"])
    threshold = _over(2 - rate * _shrinks(group), rate * gain)
    return _Step(threshold, root, settled=_is_settled(step, b1))


def _rmsprop(group: Group, state: State) -> _Step:
    if not state:
        return _Step(math.inf, moves=False)
    squares = state["square_avg"]
    if group["centered"]:
        squares = (squares - state["grad_avg"].square()).clamp(min=0)
    threshold = _over(2 * (1 + float(group["momentum"])), float(group["lr"]))
    return _Step(threshold, squares.sqrt() + float(group["eps"]))


def _adagrad(group: Group, state: State) -> _Step:
    step = float(state.get("step", 0))
    if not step:  # the sums exist from the beginning
        return _Step(math.inf, moves=False)
    rate = float(group["lr"]) / (1 + (step - 1) * float(group["lr_decay"]))
    return _Step(_over(2.0, rate), state["sum"].sqrt() + float(group["eps"]))


RULES: dict[type[Optimizer], Callable[[Group, State], _Step]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adam,
    torch.optim.NAdam: _nadam,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adagrad: _adagrad,
}


def _rule(optimizer: Optimizer) -> Callable[[Group, State], _Step] | None:
    """Of the optimizer's class, or of one that it inherits its step from."""
    own: Any = type(optimizer).step  # torch wraps it for its hooks
    for kind, rule in RULES.items():
        step: Any = kind.step
        if isinstance(optimizer, kind) and inspect.unwrap(own) is inspect.unwrap(step):
            return rule
    return None


def _decoupled(optimizer: Optimizer, group: Group) -> bool:
    """Whether weight decay shrinks the weights; AdamW's groups did not say so before torch 2.7."""
    known = isinstance(optimizer, torch.optim.AdamW)
    return known or bool(group.get("decoupled_weight_decay"))


def _shrinks(group: Group) -> float:
    return float(group["weight_decay"]) if group["decoupled_weight_decay"] else 0.0


def _is_settled(step: float, b1: float) -> bool:
    """Bias corrections let a mean of few gradients act as one of many, which it is not.

    The preconditioner of the first steps is also of few gradients: weights that had none yet seem
    to take steps of any length.
    """
    return step * (1 - b1) >= 1


def _over(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf
