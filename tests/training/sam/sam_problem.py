"""A small problem for the SAM family: its gradients by hand, and the ways to make a step."""

import torch
from torch import nn
from torch.func import functional_call

from spiritlevel.training.sam.optimizers import ASAM, SAM, NoiseSAM

RHO = 0.3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def batch(n=12):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (n,), generator=generator)


def loss_of(net, x, y):
    return nn.functional.cross_entropy(net(x), y)


def weights_of(net):
    return {name: weight.detach().clone() for name, weight in net.named_parameters()}


def gradient_at(net, weights, x, y):
    """∇L at given weights, without touching the network."""
    weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    loss = nn.functional.cross_entropy(functional_call(net, weights, (x,)), y)
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))


def length(tensors):
    return sum(float(t.square().sum()) for t in tensors) ** 0.5


def plus(weights, moves):
    return {name: weights[name] + moves[name] for name in weights}


def sam_gradient(net, x, y, rho=RHO):
    weights = weights_of(net)
    g = gradient_at(net, weights, x, y)
    norm = length(g.values())
    return gradient_at(net, plus(weights, {k: rho * v / norm for k, v in g.items()}), x, y)


def asam_gradient(net, x, y, *, adaptive_bias, rho=RHO, eta=0.01):
    weights = weights_of(net)
    g = gradient_at(net, weights, x, y)
    T = {
        name: torch.ones_like(w) if w.ndim == 1 and not adaptive_bias else w.abs() + eta
        for name, w in weights.items()
    }
    norm = length([T[name] * g[name] for name in g])
    moves = {name: rho * T[name] ** 2 * g[name] / norm for name in g}
    return gradient_at(net, plus(weights, moves), x, y)


def noise_gradient(net, x, y, *, draws, seed, rho=RHO):
    generator = torch.Generator().manual_seed(seed)
    weights, total = weights_of(net), None
    num = sum(w.numel() for w in weights.values())
    for _ in range(draws):
        z = {
            name: torch.randn(w.shape, generator=generator, dtype=torch.float64)
            for name, w in weights.items()
        }
        u = float(torch.rand((), generator=generator))
        stretch = rho * u ** (1 / num) / length(z.values())
        g = gradient_at(net, plus(weights, {k: stretch * v for k, v in z.items()}), x, y)
        total = g if total is None else plus(total, g)
    return {name: value / draws for name, value in total.items()}


def seeded(seed=5):
    return torch.Generator().manual_seed(seed)


KINDS = {
    "sam": (lambda base: SAM(base, RHO), sam_gradient),
    "asam": (
        lambda base: ASAM(base, RHO, adaptive_bias=False),
        lambda *a: asam_gradient(*a, adaptive_bias=False),
    ),
    "asam_bias": (
        lambda base: ASAM(base, RHO, adaptive_bias=True),
        lambda *a: asam_gradient(*a, adaptive_bias=True),
    ),
    "noise": (
        lambda base: NoiseSAM(base, RHO, draws=3, generator=seeded()),
        lambda *a: noise_gradient(*a, draws=3, seed=5),
    ),
    "noise_once": (
        lambda base: NoiseSAM(base, RHO, generator=seeded()),
        lambda *a: noise_gradient(*a, draws=1, seed=5),
    ),
}


def by_closure(optimizer, net, x, y):
    def closure():
        optimizer.zero_grad()
        loss = loss_of(net, x, y)
        loss.backward()
        return loss

    return optimizer.step(closure)


def by_passes(optimizer, net, x, y):
    for _ in optimizer.passes():
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
    optimizer.step()


def by_parts(optimizer, net, x, y):
    """Gradients summed over batches of 5, 5 and 2."""
    for _ in optimizer.passes():
        optimizer.zero_grad()
        for part_x, part_y in zip(x.split(5), y.split(5), strict=True):
            (loss_of(net, part_x, part_y) * len(part_x) / len(x)).backward()
    optimizer.step()


def by_blocks(optimizer, net, x, y):
    if not isinstance(optimizer, NoiseSAM):
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
    for _ in range(optimizer.draws):
        with optimizer.perturbed():
            loss_of(net, x, y).backward()
    optimizer.step()
